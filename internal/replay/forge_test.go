package replay_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/replay"
)

// copy returns a log that can be changed without changing l.
func (l *log) copy() *log {
	c := &log{payloads: maps.Clone(l.payloads), stored: l.stored, storedSeq: l.storedSeq}
	for _, e := range l.events {
		b, err := e.Append(nil)
		if err != nil {
			panic(err)
		}
		e, err := events.Parse(b)
		if err != nil {
			panic(err)
		}
		c.events = append(c.events, e)
	}
	return c
}

// rechain numbers and chains the events anew, as the holder of the log's keys
// can, and returns the source of the forged log.
func (l *log) rechain(t testing.TB) replay.Source {
	t.Helper()
	number := map[uint64]uint64{}
	payloads, seen := map[uint64]payload{}, map[[16]byte]bool{}
	prev := events.GenesisHash(l.events[0].Body.(*events.LedgerCreated).Origin)
	var log [][]byte
	for i := range l.events {
		e := &l.events[i]
		old := e.Seq
		e.Seq, e.Prev = uint64(i)+1, prev
		if fresh := freshID(e); !l.ids && (seen[e.ID] || !bytes.Equal(e.ID[:6], fresh[:6])) {
			e.ID = fresh
		}
		seen[e.ID] = true
		if _, taken := number[old]; !taken {
			number[old] = e.Seq
		}
		if p, ok := l.payloads[old]; ok {
			payloads[e.Seq] = p
		}
		if cause, ok := number[e.Cause]; ok && e.Cause != 0 {
			e.Cause = cause
		}
		b, err := e.Append(nil)
		if err != nil {
			t.Fatalf("forge %s: %v", e.Body.Type(), err)
		}
		log = append(log, b)
		prev = events.LeafHash(b)
	}
	return replay.Source{
		Size: uint64(len(log)),
		Events: func(from, to uint64, fn func(uint64, []byte) error) error {
			for seq := from; seq <= to; seq++ {
				if err := fn(seq, log[seq-1]); err != nil {
					return err
				}
			}
			return nil
		},
		Payload: func(seq uint64) ([events.SaltLen]byte, []byte, bool, error) {
			p, ok := payloads[seq]
			return p.salt, p.bytes, ok, nil
		},
	}
}

// freshID is the id that the writer could have given e.
func freshID(e *events.Event) (id [16]byte) {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], uint64(e.Time)/1000)
	copy(id[:6], b[2:])
	id[6], id[8] = 0x70, 0x80
	binary.BigEndian.PutUint32(id[12:], uint32(e.Seq))
	return id
}

// at returns the first event that fits and its index.
func (l *log) at(t testing.TB, fits func(*events.Event) bool) (int, *events.Event) {
	t.Helper()
	for i := range l.events {
		if fits(&l.events[i]) {
			return i, &l.events[i]
		}
	}
	t.Fatal("the log holds no such event")
	return 0, nil
}

// decision returns the first decision of subject with a reason, and its index.
func (l *log) decision(t testing.TB, subject, operation, reason string) (int, *events.Decision) {
	t.Helper()
	i, e := l.at(t, func(e *events.Event) bool {
		d, ok := e.Body.(*events.Decision)
		return ok && d.Subject == subject && d.Operation == operation && d.Reason == reason
	})
	return i, e.Body.(*events.Decision)
}

func (l *log) body(t testing.TB, typ events.Type) (int, events.Body) {
	t.Helper()
	i, e := l.at(t, func(e *events.Event) bool { return e.Body.Type() == typ })
	return i, e.Body
}

// follow inserts an event after index i as if it followed from decision i.
func (l *log) follow(i int, b events.Body) {
	e := events.Event{Seq: 1 << 40, Time: l.events[i].Time, ID: l.events[i].ID, Agent: l.events[i].Agent, Cause: l.events[i].Seq, Body: b}
	l.events = slices.Insert(l.events, i+1, e)
}

func (l *log) remove(i int) { l.events = slices.Delete(l.events, i, i+1) }

// repay replaces the payload of event i and its commitment.
func (l *log) repay(i int, b []byte) {
	p := payload{l.payloads[l.events[i].Seq].salt, b}
	l.payloads[l.events[i].Seq] = p
	l.events[i].Payload = events.PayloadCommitment(p.salt, b)
}

// A forger holds every key of the log and changes one thing, everywhere it
// shows. forge returns the index of the event where it must be found.
var forgeries = []struct {
	name  string
	forge func(testing.TB, *log) int
}{
	{"a payload on the end of a run", func(t testing.TB, l *log) int {
		i, _ := l.body(t, events.TypeRunFinished)
		l.repay(i, []byte(`1`))
		return i
	}},
	{"a payload on a doubt", func(t testing.TB, l *log) int {
		i, _ := l.body(t, events.TypeRunDoubted)
		l.repay(i, []byte(`1`))
		return i
	}},
	{"a result that is no JSON", func(t testing.TB, l *log) int {
		i, _ := l.at(t, func(e *events.Event) bool {
			b, ok := e.Body.(*events.EffectFinished)
			return ok && b.Handler == "tools"
		})
		l.repay(i, []byte("\xff{"))
		return i
	}},
	{"a run without an id", func(t testing.TB, l *log) int {
		i, d := l.at(t, func(e *events.Event) bool {
			d, ok := e.Body.(*events.Decision)
			return ok && d.Operation == "sop.submit" && d.Allowed
		})
		id := d.Body.(*events.Decision).RunID
		d.Body.(*events.Decision).RunID = ""
		for k := range l.events { // the whole run, so that nothing of it disagrees
			switch b := l.events[k].Body.(type) {
			case *events.RunAdmitted:
				b.RunID = strings.Replace(b.RunID, id, "", 1)
			case *events.RunStarted:
				b.RunID = strings.Replace(b.RunID, id, "", 1)
			case *events.RunFinished:
				b.RunID = strings.Replace(b.RunID, id, "", 1)
			case *events.Decision:
				b.RunID = strings.Replace(b.RunID, id, "", 1)
			case *events.EffectStarted:
				b.RunID, b.OperationID = strings.Replace(b.RunID, id, "", 1), strings.Replace(b.OperationID, id, "", 1)
			case *events.EffectFinished:
				b.RunID, b.OperationID = strings.Replace(b.RunID, id, "", 1), strings.Replace(b.OperationID, id, "", 1)
			}
		}
		return i
	}},
	{"a foreign write allowed", func(t testing.TB, l *log) int {
		i, d := l.decision(t, "researcher", "memory.write", "actor_is_not_owner")
		d.Allowed, d.Reason, d.Owner, d.PreviousRevision = true, "owner_write", "", 1
		l.follow(i, &events.MemoryWritten{Record: events.Record{Owner: "report_manager", Namespace: "report", Key: "retention_days", Visibility: "descendants", Class: "preference", Revision: 2}})
		return i
	}},
	{"an upload allowed that nobody inherits", func(t testing.TB, l *log) int {
		i, d := l.decision(t, "researcher", "action.authorize", "action_not_in_effective_capabilities")
		d.Allowed, d.Reason = true, "action_allowed"
		return i
	}},
	{"another reason for a denial", func(t testing.TB, l *log) int {
		i, d := l.decision(t, "researcher", "action.authorize", "unknown_action")
		d.Reason = "action_not_in_effective_capabilities"
		return i
	}},
	{"an allowed action denied", func(t testing.TB, l *log) int {
		i, d := l.decision(t, "researcher", "action.authorize", "action_allowed")
		d.Allowed, d.Reason = false, "action_not_in_effective_capabilities"
		return i
	}},
	{"a policy version that was not in force", func(t testing.TB, l *log) int {
		i, d := l.decision(t, "researcher", "action.authorize", "action_allowed")
		d.PolicyVersion = "lab-2"
		return i
	}},
	{"a missing step decision", func(t testing.TB, l *log) int {
		i, _ := l.at(t, func(e *events.Event) bool {
			d, ok := e.Body.(*events.Decision)
			return ok && d.SOPID == "good" && d.StepID == "two"
		})
		l.remove(i)
		return i // the whole now stands there
	}},
	{"a missing step decision in the middle", func(t testing.TB, l *log) int {
		i, _ := l.at(t, func(e *events.Event) bool {
			d, ok := e.Body.(*events.Decision)
			return ok && d.SOPID == "mixed" && d.StepID == "four"
		})
		l.remove(i)
		return i
	}},
	{"a step decided that was not asked", func(t testing.TB, l *log) int {
		i, e := l.at(t, func(e *events.Event) bool {
			d, ok := e.Body.(*events.Decision)
			return ok && d.SOPID == "good" && d.StepID == "two"
		})
		extra := *e.Body.(*events.Decision)
		extra.StepID, extra.Resource = "three", "good:three"
		l.follow(i, &extra)
		l.events[i+1].Cause = 0
		return i + 1
	}},
	{"a bad step allowed", func(t testing.TB, l *log) int {
		i, d := l.decision(t, "researcher", "sop.validate", "action_not_in_effective_capabilities")
		d.Allowed, d.Reason = true, "step_allowed"
		return i
	}},
	{"a procedure admitted in spite of its steps", func(t testing.TB, l *log) int {
		i, e := l.at(t, func(e *events.Event) bool {
			d, ok := e.Body.(*events.Decision)
			return ok && d.SOPID == "mixed" && d.Resource == "mixed"
		})
		d := e.Body.(*events.Decision)
		d.Allowed, d.Reason = true, "sop_admitted"
		return i
	}},
	{"steps without a whole", func(t testing.TB, l *log) int {
		i, _ := l.at(t, func(e *events.Event) bool {
			d, ok := e.Body.(*events.Decision)
			return ok && d.Resource == "good"
		})
		l.remove(i)
		return i - 2 // the next whole is another procedure's: these steps are not its
	}},
	{"a widened child", func(t testing.TB, l *log) int {
		i, e := l.at(t, func(e *events.Event) bool {
			b, ok := e.Body.(*events.AgentRegistered)
			return ok && b.AgentID == "helper"
		})
		b := e.Body.(*events.AgentRegistered)
		b.Capabilities = append([]string{"external.upload"}, b.Capabilities...)
		return i
	}},
	{"a child under another parent", func(t testing.TB, l *log) int {
		i, e := l.at(t, func(e *events.Event) bool {
			b, ok := e.Body.(*events.AgentRegistered)
			return ok && b.AgentID == "helper"
		})
		e.Body.(*events.AgentRegistered).ParentID = "report_manager"
		return i
	}},
	{"a wider child asked for and allowed", func(t testing.TB, l *log) int {
		i, d := l.decision(t, "researcher", "agent.register", "capability_not_inherited")
		d.Allowed, d.Reason = true, "registered"
		l.follow(i, &events.AgentRegistered{AgentID: "wider", ParentID: "researcher", Capabilities: []string{"external.upload"}, PublicKey: "UA"})
		return i
	}},
	{"a clerk made admin", func(t testing.TB, l *log) int {
		i, e := l.at(t, func(e *events.Event) bool {
			b, ok := e.Body.(*events.PrincipalRegistered)
			return ok && b.ID == "clerk"
		})
		e.Body.(*events.PrincipalRegistered).Role = "admin"
		return i
	}},
	{"an old revision accepted", func(t testing.TB, l *log) int {
		i, d := l.decision(t, "researcher", "memory.delete", "revision_conflict")
		d.Allowed, d.Reason = true, "owner_delete"
		return i
	}},
	{"a revision that starts again after a deletion", func(t testing.TB, l *log) int {
		i, e := l.at(t, func(e *events.Event) bool {
			b, ok := e.Body.(*events.MemoryWritten)
			return ok && b.Owner == "researcher" && b.Key == "a" && b.Revision == 4
		})
		e.Body.(*events.MemoryWritten).Revision = 1
		return i
	}},
	{"a record said to be gone before its time", func(t testing.TB, l *log) int {
		i, e := l.at(t, func(e *events.Event) bool {
			b, ok := e.Body.(*events.MemoryWritten)
			return ok && b.Key == "soon"
		})
		gone := e.Body.(*events.MemoryWritten).Record
		gone.Revision++
		l.follow(i, &events.MemoryExpired{Record: gone})
		l.events[i+1].Agent, l.events[i+1].Cause = events.System, 0
		return i + 1
	}},
	{"a record that lasts longer than was asked", func(t testing.TB, l *log) int {
		i, e := l.at(t, func(e *events.Event) bool {
			b, ok := e.Body.(*events.MemoryWritten)
			return ok && b.Key == "soon"
		})
		e.Body.(*events.MemoryWritten).Expires++
		return i
	}},
	{"a run's record that outlives it", func(t testing.TB, l *log) int {
		i, e := l.at(t, func(e *events.Event) bool {
			b, ok := e.Body.(*events.MemoryWritten)
			return ok && b.RunID != ""
		})
		e.Body.(*events.MemoryWritten).RunID = ""
		return i
	}},
	{"an effect after a denial", func(t testing.TB, l *log) int {
		i, _ := l.decision(t, "formatter", "memory.write", "capability_not_inherited")
		l.follow(i, &events.MemoryWritten{Record: events.Record{Owner: "formatter", Namespace: "notes", Key: "a", Visibility: "private", Class: "preference", Revision: 1}})
		return i + 1
	}},
	{"a second effect", func(t testing.TB, l *log) int {
		i, _ := l.body(t, events.TypeMemoryDeleted)
		b := l.events[i].Body.(*events.MemoryDeleted).Record
		b.Revision++
		l.follow(i, &events.MemoryWritten{Record: b})
		l.events[i+1].Cause = l.events[i].Cause
		return i + 1
	}},
	{"a missing effect", func(t testing.TB, l *log) int {
		i, _ := l.body(t, events.TypeMemoryDeleted)
		l.remove(i)
		return i
	}},
	{"a missing effect among many", func(t testing.TB, l *log) int {
		i, _ := l.at(t, func(e *events.Event) bool {
			b, ok := e.Body.(*events.MemoryWritten)
			return ok && b.Namespace == "credentials"
		})
		l.remove(i)
		return i
	}},
	{"a missing effect at the very end", func(t testing.TB, l *log) int {
		i, _ := l.body(t, events.TypeMemoryDeleted)
		l.events = l.events[:i]
		return i - 1
	}},
	{"effects in another order", func(t testing.TB, l *log) int {
		i, _ := l.at(t, func(e *events.Event) bool {
			b, ok := e.Body.(*events.MemoryWritten)
			return ok && b.Namespace == "project"
		})
		l.events[i], l.events[i+1] = l.events[i+1], l.events[i]
		return i
	}},
	{"an outcome left out that a later one rests on", func(t testing.TB, l *log) int {
		i, _ := l.decision(t, "researcher", "memory.write", "owner_write")
		l.remove(i)
		l.remove(i)
		return i
	}},
	{"an operation decided twice", func(t testing.TB, l *log) int {
		i, d := l.decision(t, "researcher", "action.authorize", "action_allowed")
		e := l.events[i]
		again := *d
		e.Seq, e.Body = 1<<40, &again
		l.payloads[e.Seq] = l.payloads[l.events[i].Seq]
		l.events = slices.Insert(l.events, i+1, e)
		return i + 1
	}},
	{"another owner named", func(t testing.TB, l *log) int {
		i, d := l.decision(t, "researcher", "memory.read", "visible_from")
		d.Owner = "researcher"
		return i
	}},
	{"a hidden record shown", func(t testing.TB, l *log) int {
		i, d := l.decision(t, "formatter", "memory.read", "not_visible_from")
		d.Allowed, d.Reason, d.Blind = true, "visible_from", ""
		return i
	}},
	{"a lineage cut short", func(t testing.TB, l *log) int {
		i, d := l.decision(t, "formatter", "memory.read", "visible_from")
		d.Lineage = d.Lineage[:2]
		return i
	}},
	{"an effect at another time", func(t testing.TB, l *log) int {
		i, _ := l.body(t, events.TypeMemoryDeleted)
		l.events[i].Time++
		return i
	}},
	{"time that runs backwards", func(t testing.TB, l *log) int {
		i, _ := l.decision(t, "researcher", "action.authorize", "action_allowed")
		l.events[i].Time = l.events[0].Time - 1
		return i
	}},
	{"a step at another time", func(t testing.TB, l *log) int {
		i, _ := l.at(t, func(e *events.Event) bool {
			d, ok := e.Body.(*events.Decision)
			return ok && d.SOPID == "good" && d.StepID == "two"
		})
		l.events[i].Time++
		return i
	}},
	{"another agent named as the sender", func(t testing.TB, l *log) int {
		i, _ := l.decision(t, "researcher", "action.authorize", "action_allowed")
		l.events[i].Agent = "formatter"
		return i
	}},
	{"another cause", func(t testing.TB, l *log) int {
		i, _ := l.body(t, events.TypeMemoryDeleted)
		l.events[i].Cause = l.events[i].Cause - 1
		return i
	}},
	{"a payload changed, its commitment not", func(t testing.TB, l *log) int {
		i, _ := l.decision(t, "researcher", "action.authorize", "action_allowed")
		seq := l.events[i].Seq
		l.payloads[seq] = payload{l.payloads[seq].salt, []byte(`{"action":"document.summarize","arguments":{"path":"other"}}`)}
		return i
	}},
	{"arguments changed, their digest not", func(t testing.TB, l *log) int {
		i, _ := l.decision(t, "researcher", "action.authorize", "action_allowed")
		l.repay(i, []byte(`{"action":"document.summarize","arguments":{"path":"other"}}`))
		return i
	}},
	{"a step's arguments changed, their digest not", func(t testing.TB, l *log) int {
		i, _ := l.at(t, func(e *events.Event) bool {
			d, ok := e.Body.(*events.Decision)
			return ok && d.Resource == "good"
		})
		l.repay(i, bytes.Replace(l.payloads[l.events[i].Seq].bytes, []byte(`"path":"b"`), []byte(`"path":"c"`), 1))
		return i - 1
	}},
	{"a request for another record", func(t testing.TB, l *log) int {
		i, _ := l.decision(t, "researcher", "memory.read", "visible_from")
		l.repay(i, []byte(`{"key":"retention_days","namespace":"report"}`))
		return i
	}},
	{"a request that is not canonical", func(t testing.TB, l *log) int {
		i, _ := l.decision(t, "researcher", "memory.read", "visible_from")
		l.repay(i, []byte(`{"namespace":"project","key":"client_region"}`))
		return i
	}},
	{"a mandatory value turned", func(t testing.TB, l *log) int {
		i, _ := l.at(t, func(e *events.Event) bool {
			b, ok := e.Body.(*events.MemoryWritten)
			return ok && b.Namespace == "policy" && b.Owner == "researcher"
		})
		l.repay(i, []byte("false"))
		return i
	}},
	{"an applied value exchanged", func(t testing.TB, l *log) int {
		i, _ := l.at(t, func(e *events.Event) bool {
			b, ok := e.Body.(*events.MemoryWritten)
			return ok && b.Namespace == "project"
		})
		l.repay(i, []byte(`"US"`))
		return i
	}},
	{"another policy document", func(t testing.TB, l *log) int {
		i, b := l.body(t, events.TypePolicyActivated)
		text := strings.Replace(string(l.payloads[l.events[i].Seq].bytes), "children: 20", "children: 21", 1)
		l.repay(i, []byte(text))
		_ = b
		return i
	}},
	{"a class that the policy does not give", func(t testing.TB, l *log) int {
		i, e := l.at(t, func(e *events.Event) bool {
			b, ok := e.Body.(*events.MemoryWritten)
			return ok && b.Namespace == "credentials"
		})
		e.Body.(*events.MemoryWritten).Class = "preference"
		return i
	}},
	{"an environment that is wider", func(t testing.TB, l *log) int {
		i, b := l.body(t, events.TypeEnvironmentChanged)
		changed := b.(*events.EnvironmentChanged)
		changed.Capabilities = append(changed.Capabilities, "z")
		return i
	}},
	{"a revoked agent served", func(t testing.TB, l *log) int {
		i, d := l.decision(t, "researcher", "memory.read", "agent_revoked")
		d.Allowed, d.Reason, d.Owner = true, "visible_from", "report_manager"
		return i
	}},
	{"a revocation left out", func(t testing.TB, l *log) int {
		i, _ := l.body(t, events.TypeAgentRevoked)
		l.remove(i)
		return i
	}},
	{"an agent that nobody registered", func(t testing.TB, l *log) int {
		i, _ := l.decision(t, "researcher", "action.authorize", "action_allowed")
		l.follow(i, &events.AgentRegistered{AgentID: "ghost", PublicKey: "UG"})
		l.events[i+1].Cause, l.events[i+1].Agent = 0, events.System
		return i + 1
	}},
	{"a blind taken away", func(t testing.TB, l *log) int {
		i, d := l.decision(t, "formatter", "memory.read", "not_visible_from")
		d.Blind = ""
		return i
	}},
	{"a blind that is no random number", func(t testing.TB, l *log) int {
		i, d := l.decision(t, "formatter", "memory.read", "not_visible_from")
		d.Blind = "none"
		return i
	}},
	{"a blind where nothing is hidden", func(t testing.TB, l *log) int {
		i, d := l.decision(t, "researcher", "memory.read", "visible_from")
		d.Blind = strings.Repeat("0a", 16)
		return i
	}},
	{"a malformed request that names a record", func(t testing.TB, l *log) int {
		i, d := l.decision(t, "researcher", "memory.read", "malformed_request")
		d.Resource = "project.client_region"
		return i
	}},
	{"a malformed request with an effect", func(t testing.TB, l *log) int {
		i, _ := l.decision(t, "researcher", "memory.read", "malformed_request")
		l.follow(i, &events.AgentRevoked{AgentID: "researcher"})
		return i + 1
	}},
	{"a judged denial passed off as malformed", func(t testing.TB, l *log) int {
		i, d := l.decision(t, "researcher", "action.authorize", "unknown_action")
		d.Reason, d.Resource = "malformed_request", ""
		return i
	}},
	{"a known operation called unsupported", func(t testing.TB, l *log) int {
		i, d := l.decision(t, "researcher", "memory.read", "malformed_request")
		d.Reason = "unsupported_operation"
		return i
	}},
	{"a door's refusal that allows", func(t testing.TB, l *log) int {
		i, d := l.decision(t, "researcher", "memory.read", "bad_reply_subject")
		d.Allowed, d.Reason = true, "visible_from"
		return i
	}},
	{"a payload taken from its decision", func(t testing.TB, l *log) int {
		i, _ := l.decision(t, "researcher", "action.authorize", "action_allowed")
		l.events[i].Payload = events.Hash{}
		return i
	}},
	{"a registrar's verb", func(t testing.TB, l *log) int {
		i, d := l.decision(t, "clerk", "apply", "not_permitted_for_role")
		d.Allowed, d.Reason = true, "control_done"
		return i
	}},
	{"an agent's registration passed off as another lane's", func(t testing.TB, l *log) int {
		i, d := l.decision(t, "researcher", "agent.register", "capability_not_inherited")
		d.Reason = "not_permitted_for_role"
		return i
	}},
	{"no word of the rules in force", func(t testing.TB, l *log) int {
		i, _ := l.body(t, events.TypeLedgerOpened)
		l.remove(i)
		return i
	}},
	{"rules taken back", func(t testing.TB, l *log) int {
		i, b := l.body(t, events.TypeLedgerOpened)
		b.(*events.LedgerOpened).Rules = 0
		return i
	}},
	{"a refusal counted that never was", func(t testing.TB, l *log) int {
		i, b := l.body(t, events.TypeRequestsRefused)
		b.(*events.RequestsRefused).Count = 0
		return i
	}},
	{"a ledger founded twice", func(t testing.TB, l *log) int {
		again := l.events[0]
		again.Seq = 1 << 40
		l.events = slices.Insert(l.events, 2, again)
		return 2
	}},
	{"another first admin", func(t testing.TB, l *log) int {
		l.events[0].Body.(*events.LedgerCreated).AdminID = "intruder"
		return 0
	}},
}

func TestR82_AForgeryWithTheLogsOwnKeysIsFound(t *testing.T) {
	honest := read(t, scenario(t))
	if report := replay.Run(honest.copy().rechain(t)); report.Found != 0 || report.Err != nil || report.Unjudged() != 0 {
		t.Fatalf("the log as it is: %+v", report)
	}
	for _, f := range forgeries {
		t.Run(f.name, func(t *testing.T) {
			l := honest.copy()
			at := f.forge(t, l)
			report := replay.Run(l.rechain(t))
			if report.Found == 0 {
				t.Fatalf("nothing was found; err %v", report.Err)
			}
			if first := report.Findings[0]; first.Seq != uint64(at)+1 {
				t.Errorf("found first at %d, forged at %d: %v", first.Seq, at+1, report.Findings)
			}
			t.Log(report.Findings[0])
		})
	}
	t.Logf("%d forgeries", len(forgeries))
}

// What a log alone cannot contradict: the roots of trust and what only the
// writer saw. Everything else that an event says follows from the requests.
func underivable(b events.Body, field string) bool {
	switch b := b.(type) {
	case *events.LedgerCreated:
		return field == "Ledger"
	case *events.LedgerOpened:
		return field == "Build"
	case *events.ClockAccepted:
		return true
	case *events.TransportDenied, *events.RequestsRefused:
		return field == "Count" || field == "First" || field == "Last" // within what is left open
	case *events.Decision:
		return field == "TraceID" || field == "OperationID" || field == "Blind" && b.Blind != ""
	}
	return false
}

// TestR82_EveryFieldOfEveryEventIsJudged changes one field of one event at a
// time.
func TestR82_EveryFieldOfEveryEventIsJudged(t *testing.T) {
	honest := read(t, scenario(t))
	changed, kept := 0, map[string]int{}
	seen := map[string]bool{}
	for i := range honest.events {
		if kind := kindOf(&honest.events[i]); seen[kind] {
			continue
		} else {
			seen[kind] = true
		}
		typ := reflect.TypeOf(honest.events[i].Body).Elem()
		for _, field := range reflect.VisibleFields(typ) {
			if field.Anonymous || field.Type.Kind() == reflect.Pointer {
				continue
			}
			l := honest.copy()
			b := l.events[i].Body
			if d, ok := b.(*events.Decision); ok && field.Name == "Allowed" {
				d.Allowed = !d.Allowed
			} else if !alter(reflect.ValueOf(b).Elem().FieldByIndex(field.Index)) {
				t.Fatalf("%s.%s is of a kind that cannot be altered", typ.Name(), field.Name)
			}
			if _, err := l.events[i].Append(nil); err != nil {
				continue
			}
			l.events = l.events[:min(i+40, len(l.events))]
			report := replay.Run(l.rechain(t))
			changed++
			switch {
			case report.Found == 0 && report.Err == nil && !underivable(honest.events[i].Body, field.Name):
				t.Errorf("event %d %s.%s changed and nothing found", i+1, typ.Name(), field.Name)
			case report.Found == 0:
				kept[typ.Name()+"."+field.Name]++
			case report.Found > 0 && !honest.together(int(report.Findings[0].Seq)-1, i) && !underivable(honest.events[i].Body, field.Name):
				t.Errorf("event %d %s.%s changed, found first: %v", i+1, typ.Name(), field.Name, report.Findings[0])
			}
		}
	}
	t.Logf("%d changes; nothing follows from %v", changed, kept)
}

// together reports whether event found is event i, or a step decision of the
// same procedure before it.
func (l *log) together(found, i int) bool {
	for ; found < i; found++ {
		if d, ok := l.events[found].Body.(*events.Decision); !ok || !ledger.IsStep(d) {
			return false
		}
	}
	return found == i
}

// kindOf tells events apart that are made in different ways.
func kindOf(e *events.Event) string {
	if d, ok := e.Body.(*events.Decision); ok {
		return fmt.Sprint(d.Operation, d.Reason, d.StepID, d.SOPID)
	}
	return string(e.Body.Type())
}

func alter(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.String:
		v.SetString(v.String() + "x")
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.Uint64:
		v.SetUint(v.Uint() + 1)
	case reflect.Int64:
		v.SetInt(v.Int() + 1)
	case reflect.Slice:
		more := reflect.ValueOf("x")
		if v.Type().Elem().Kind() == reflect.Uint64 { // ascending
			more = reflect.ValueOf(uint64(1))
			if n := v.Len(); n > 0 {
				more = reflect.ValueOf(v.Index(n-1).Uint() + 1)
			}
		}
		v.Set(reflect.Append(v, more))
	case reflect.Array:
		v.Index(0).SetUint(v.Index(0).Uint() ^ 1)
	default:
		return false
	}
	return true
}

func TestR82_RulesOfANewerReleaseCannotBeJudged(t *testing.T) {
	l := read(t, scenario(t))
	i, b := l.body(t, events.TypeLedgerOpened)
	b.(*events.LedgerOpened).Rules = ledger.Rules + 1
	report := replay.Run(l.rechain(t))
	if report.Err == nil || report.Found != 0 || report.Events != uint64(i)+1 {
		t.Errorf("report: %+v", report)
	}
}

func TestR82_AnEmptyLogIsNotJudged(t *testing.T) {
	if report := replay.Run(replay.Source{}); report.Err == nil {
		t.Error("an empty log passed")
	}
}

func TestR82_AStoredProjectionOfAnotherStateIsFound(t *testing.T) {
	l := read(t, scenario(t))
	src := l.rechain(t)
	for name, bend := range map[string]func(*projection.State){
		"":      func(*projection.State) {},
		"rules": func(s *projection.State) { s.Rules++ },
		"time":  func(s *projection.State) { s.Time++ },
		"a record": func(s *projection.State) {
			s.Records(s.Time, func(r *projection.Record) bool { r.Revision++; return false })
		},
		"an agent":    func(s *projection.State) { a := s.Agent("researcher"); a.Revoked = !a.Revoked },
		"a principal": func(s *projection.State) { s.Principal("admin").Actions = []string{"x"} },
		"an id":       func(s *projection.State) { s.Agent("researcher").PublicKey = "U" },
	} {
		stored := l.storedState(t)
		bend(stored)
		src.State = func() (*projection.State, error) { return stored, nil }
		report := replay.Run(src)
		same := name == ""
		if !report.Stored || report.StoredSame != same || (report.Found == 0) != same {
			t.Errorf("%s bent: report %+v", name, report)
		}
		if !same && (report.Found < 2 || !strings.HasPrefix(report.Findings[1].Where, "projection ") || report.Findings[1].Expected == report.Findings[1].Found) {
			t.Errorf("%s bent: no key of a projection is named: %v", name, report.Findings)
		}
		if !same && report.Findings[0].Seq != l.storedSeq {
			t.Errorf("%s: found at %d, stored at %d", name, report.Findings[0].Seq, l.storedSeq)
		}
	}
	src.State = func() (*projection.State, error) { return nil, errors.New("damaged") }
	if report := replay.Run(src); report.Found != 1 || report.Stored || report.Err != nil || report.Unjudged() > 0 {
		t.Errorf("a stored state that cannot be read: %+v", report)
	}
	src.State = func() (*projection.State, error) { return nil, nil }
	if report := replay.Run(src); report.Found != 0 || report.Stored {
		t.Errorf("no stored state: %+v", report)
	}
}

// TestR82_WithoutSealedPayloads judges what an export allows: only open payloads
// are there.
func TestR82_WithoutSealedPayloads(t *testing.T) {
	l := read(t, scenario(t))
	src := l.rechain(t)
	all := src.Payload
	src.Payload = func(seq uint64) ([events.SaltLen]byte, []byte, bool, error) {
		if ledger.HasOpenPayload(l.events[seq-1].Body) {
			return all(seq)
		}
		return [events.SaltLen]byte{}, nil, false, nil
	}
	report := replay.Run(src)
	if report.Found != 0 || report.Err != nil || report.Unjudged() == 0 || report.Rebuilt < 30 || report.Judged < 40 {
		t.Errorf("report: %+v", report)
	}
	t.Logf("%d of %d judged, %d from rebuilt requests; not: %v", report.Judged, report.Decisions, report.Rebuilt, report.Unverifiable)

	forged := l.copy()
	i, d := forged.decision(t, "formatter", "memory.read", "not_visible_from")
	d.Allowed, d.Reason, d.Blind = true, "visible_from", ""
	bad := forged.rechain(t)
	bad.Payload = src.Payload
	if report := replay.Run(bad); report.Found == 0 || report.Findings[0].Seq != uint64(i)+1 {
		t.Errorf("a forged read without its payload: %+v", report)
	}
}

func TestR82_APayloadThatDoesNotOpenIsFound(t *testing.T) {
	l := read(t, scenario(t))
	i, _ := l.decision(t, "researcher", "action.authorize", "action_allowed")
	src := l.rechain(t)
	all := src.Payload
	src.Payload = func(seq uint64) ([events.SaltLen]byte, []byte, bool, error) {
		if seq == uint64(i)+1 {
			return [events.SaltLen]byte{}, nil, false, fmt.Errorf("payload %d: %w", seq, ledger.ErrPayload)
		}
		return all(seq)
	}
	report := replay.Run(src)
	if report.Found != 1 || report.Findings[0].Seq != uint64(i)+1 || report.Unjudged() != 1 {
		t.Errorf("report: %+v", report)
	}
}
