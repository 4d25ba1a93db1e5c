package replay

import (
	"fmt"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/policy"
	"github.com/ledgerd/ledgerd/internal/projection"
)

// Candidate is what might be put in force.
type Candidate struct {
	Policy *policy.Policy
	Agents map[string]*policy.Agent // by id; who is not in it stays as it was
}

// Flip is a decision that the candidate turns around, or gives another reason.
type Flip struct {
	Seq       uint64 `json:"seq"`
	Agent     string `json:"agent"`
	Operation string `json:"operation"`
	Resource  string `json:"resource"`
	Was       string `json:"was"`
	Would     string `json:"would"`
}

// Rejudged is what the last decisions on agents' proposals would have been.
type Rejudged struct {
	State    *projection.State `json:"-"` // at the end of the log
	Judged   uint64            `json:"judged"`
	Flips    []Flip            `json:"flips"`
	Unjudged map[string]uint64 `json:"unjudged"` // by what was missing
}

// Rejudge judges the last proposals of agents in a log once more, each against
// the state before it but under the candidate. What happened in between stays
// as it happened: a decision that would have gone otherwise changes nothing for
// the ones after it. Decisions on a run's steps at their moment are left out.
func Rejudge(src Source, c Candidate, last uint64) (*Rejudged, error) {
	from, err := src.lastProposals(last)
	if err != nil {
		return nil, err
	}
	out := &Rejudged{Flips: []Flip{}, Unjudged: map[string]uint64{}}
	src.State = nil
	r := &run{src: src, s: projection.New(), erasures: map[uint64]bool{}}
	r.judged = func(found *logged, d *events.Decision, p *ledger.Proposal, missing string) {
		switch {
		case found.Seq < from || !proposed(r.s, d):
		case missing != "":
			out.Unjudged[missing]++
		default:
			out.Judged++
			r.s.Under(c.Policy, c.Agents, func() {
				would := ledger.Decide(r.s, p)
				if would.Retry == 0 && would.Decision.Reason != d.Reason {
					out.Flips = append(out.Flips, Flip{found.Seq, d.Subject, d.Operation, d.Resource, d.Reason, would.Decision.Reason})
				}
			})
		}
	}
	if err := r.all(); err != nil {
		return nil, err
	}
	if r.Found > 0 {
		return nil, fmt.Errorf("the log is not as the rules would have it, so that nothing is said of another policy: %s", r.Findings[0])
	}
	out.State = r.s
	return out, nil
}

// proposed reports whether a decision is one on an agent's proposal.
func proposed(s *projection.State, d *events.Decision) bool { return s.Agent(d.Subject) != nil }

// lastProposals is the seq of the first of the last proposals: of a few more,
// since who is an agent is not known yet.
func (s *Source) lastProposals(last uint64) (uint64, error) {
	if last == 0 {
		return s.Size + 1, nil
	}
	const block = 1024
	var seqs []uint64
	for end := s.Size; end > 0 && uint64(len(seqs)) < last; end -= min(end, block) {
		var here []uint64
		err := s.Events(end-min(end, block)+1, end, func(seq uint64, b []byte) error {
			e, err := events.Parse(b)
			d, ok := e.Body.(*events.Decision)
			if ok && d.Operation != ledger.StepOperation && !ledger.IsStep(d) && len(d.Lineage) > 0 && d.Subject != ledger.AdminID {
				here = append(here, seq)
			}
			return err
		})
		if err != nil {
			return 0, err
		}
		seqs = append(here, seqs...)
	}
	if len(seqs) == 0 {
		return s.Size + 1, nil
	}
	return seqs[max(0, len(seqs)-int(min(last, uint64(len(seqs)))))], nil
}
