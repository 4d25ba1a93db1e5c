package natsapi

import (
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// runs lists the open runs whose agent the asker sees.
func runs(s *projection.State, w asker, q *wire.QueryRequest) func() []byte {
	out := wire.Runs{Runs: []wire.OpenRun{}, Seq: s.Seq}
	var all []wire.OpenRun
	for _, r := range s.OpenRuns() {
		if r.Decision < q.From || !w.sees(s, r.Agent) {
			continue
		}
		entry := wire.OpenRun{
			RunID: r.ID, Agent: r.Agent, SOPID: r.SOPID, SOPVersion: r.SOPVersion, State: string(r.State), Reason: r.Reason,
			Admitted: r.Admitted.String(), Decision: r.Decision, Steps: len(r.Steps), Done: r.Next,
		}
		if r.Next < len(r.Steps) {
			entry.StepID = r.Steps[r.Next].ID
		}
		all = append(all, entry)
	}
	return func() []byte {
		size := 0
		for _, entry := range all {
			size += len(wire.Encode(entry)) + 1
			if size > replyRoom || q.Limit > 0 && uint64(len(out.Runs)) == q.Limit {
				out.Next = entry.Decision
				break
			}
			out.Runs = append(out.Runs, entry)
		}
		return wire.Encode(out)
	}
}
