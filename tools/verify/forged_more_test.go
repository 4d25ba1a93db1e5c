package main

import (
	"slices"
	"time"

	"github.com/ledgerd/ledgerd/internal/audit/logtest"
	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/reason"
)

// What no request gives, and what follows from one that nobody can read, forged.

const gone = "whose request is not at hand"

// handler registers a handler of artifact.save, who is there.
func (h *history) handler() {
	h.t.Helper()
	h.admin("principal.register", `{"id":"tools","role":"handler","actions":["artifact.save"],"public_key":"`+publicKey("tools")+`"}`)
	if code := h.writer.Hello("tools", []string{"artifact.save"}); code != "" {
		h.t.Fatal(code)
	}
}

// start has worker submit a procedure of one step, whose effect starts.
func (h *history) start() {
	h.t.Helper()
	h.handler()
	h.does("sop_admitted", "worker", "sop.submit", `{"sop":{"sop_id":"s","version":1,"steps":[{"step_id":"one","action":"artifact.save","arguments":{"size":1}}]}}`)
	h.tick()
}

// goesOn has proposals decided in as many seconds, one after the other.
func (h *history) goesOn(seconds int) {
	h.t.Helper()
	for range seconds {
		h.elapsed += time.Second
		h.does("malformed_request", "worker", "action.authorize", `{}`)
	}
}

// refusals are of worker, n of them in the last millisecond.
func (h *history) refusals(n uint64) events.Refusals {
	last := h.events[len(h.events)-1].Time
	return events.Refusals{ID: "worker", Code: string(reason.RateLimited), Count: n, First: last - 1000, Last: last}
}

// forget takes the request away that decision i rests on.
func (h *history) forget(i int) {
	if h.events[i].Payload.IsZero() {
		h.t.Fatal("it has none")
	}
	delete(h.payloads, h.events[i].Seq)
}

// forgotten forgets the documents of the last apply, and returns the index of an event
// that follows from it.
func forgotten[B events.Body](h *history, fits func(B) bool) (int, B) {
	h.t.Helper()
	i, _ := find(h, func(d *events.Decision) bool { return d.Operation == "apply" })
	h.forget(i)
	return find(h, fits)
}

// authorized forgets a decision on an action.
func authorized(h *history, was string) (int, *events.Decision) {
	i, d := h.decision(was)
	h.forget(i)
	return i, d
}

func refused(kind, what string, change func(h *history, b *events.Refusals)) forgery {
	return forgery{kind: kind, what: what, honest: func(h *history) { h.does("action_allowed", "worker", "action.authorize", save) }, forge: func(h *history) int {
		b := h.refusals(2)
		change(h, &b)
		return h.refused(&events.RequestsRefused{Refusals: b})
	}}
}

func apply(kind, what string, forge func(h *history) int) forgery {
	return forgery{kind: kind, what: what + ", under an apply " + gone, honest: func(*history) {}, forge: forge}
}

func init() {
	forgeries = append(forgeries, []forgery{
		{kind: "event-id-twice", what: "two events have one id", honest: func(h *history) { h.note() }, forge: func(h *history) int {
			h.ids = true
			last := len(h.events) - 1
			h.events[last].ID = h.events[last-1].ID
			return last
		}},
		{kind: "event-id-of-another-time", what: "an event's id was made at another time than the event", honest: func(h *history) { h.note() }, forge: func(h *history) int {
			h.ids = true
			last := len(h.events) - 1
			h.events[last].ID[5]++
			return last
		}},
		refused("refusals-of-none", "a count of refusals that there were none of", func(_ *history, b *events.Refusals) { b.Count = 0 }),
		refused("refusals-of-no-known-reason", "refusals for a reason that does not exist", func(_ *history, b *events.Refusals) { b.Code = "none" }),
		refused("refusals-that-allow", "refusals for a reason that allows", func(_ *history, b *events.Refusals) { b.Code = "owner_write" }),
		refused("refusals-of-nobody", "refusals of an id that nobody ever had", func(_ *history, b *events.Refusals) { b.ID = "stranger" }),
		refused("refusals-that-end-before-they-begin", "the last refusal was before the first", func(_ *history, b *events.Refusals) { b.First, b.Last = b.Last, b.First }),
		refused("refusals-yet-to-come", "refusals of a time after their event", func(_ *history, b *events.Refusals) { b.Last++ }),
		refused("refusals-before-the-ledger", "refusals of a time before the ledger was opened", func(h *history, b *events.Refusals) { b.First = h.events[0].Time - 1 }),
		refused("one-refusal-at-two-times", "one refusal, with two times", func(_ *history, b *events.Refusals) { b.Count = 1 }),
		refused("refusals-counted-twice", "refusals that are in the count before too", func(h *history, b *events.Refusals) {
			h.refused(&events.RequestsRefused{Refusals: *b})
			b.First++
			b.First = b.Last - 1
		}),
		{kind: "run-that-does-not-end", what: "the last event of a run is left out, and the ledger goes on for long", honest: func(h *history) {
			h.run()
			h.goesOn(11)
		}, forge: func(h *history) int {
			i, _ := find(h, func(*events.RunFinished) bool { return true })
			h.remove(i, 1)
			return i + 9
		}},
		{kind: "effect-that-is-never-in-doubt", what: "nobody reported an effect, its time is long over, and no event says that it is in doubt", honest: func(h *history) {
			h.start()
			h.elapsed += 31 * time.Second
			h.tick()
			h.goesOn(11)
		}, forge: func(h *history) int {
			i, _ := find(h, func(*events.RunDoubted) bool { return true })
			h.remove(i, 1)
			return i + 9
		}},
		{kind: "record-that-is-never-gone", what: "a record's time has come, and no event says that it is gone", honest: func(h *history) {
			h.does("owner_write", "worker", "memory.write", write("worker", "a", `,"ttl_seconds":1`))
			h.elapsed += 2 * time.Second
			h.tick()
			h.goesOn(11)
		}, forge: func(h *history) int {
			i, _ := find(h, func(*events.MemoryExpired) bool { return true })
			h.remove(i, 1)
			return i + 9
		}},
		{kind: "permit-key-of-checkpoints", what: "one key signs checkpoints and permits", check: "origin", honest: func(h *history) { h.note() }, forge: func(h *history) int {
			b := h.events[0].Body.(*events.LedgerCreated)
			b.PermitKey = logtest.New(forgedOrigin+"/permit", forgedKey).VKey
			return 0
		}},
		{kind: "permit-key-rotated-to-that-of-checkpoints", what: "the next permit key is the one that signs checkpoints", honest: func(h *history) {
			h.watcher()
			h.controls("not_permitted_for_role", "watcher", "key.rotate", `{"key":"permit"}`)
		}, forge: func(h *history) int {
			i := turn(h, "not_permitted_for_role", "control_done")
			d := h.events[i].Body.(*events.Decision)
			h.events[i].Agent, d.Subject, d.Lineage = "admin", "admin", []string{"admin"}
			h.follow(i, &events.KeyRotated{Key: events.KeyPermit, Number: 2, PublicKey: logtest.New(forgedOrigin+"/permit", forgedKey).VKey})
			return i + 1
		}},
		{kind: "first-admin-with-no-key", what: "the first admin's key is none", honest: func(h *history) { h.note() }, forge: func(h *history) int {
			h.events[0].Body.(*events.LedgerCreated).AdminPublicKey = "U"
			return 0
		}},
		{kind: "clock-accepted-and-not-followed", what: "an admin is said to have accepted a clock that the next event is behind", honest: func(h *history) {
			h.admin("clock.accept", `{}`)
			h.does("action_allowed", "worker", "action.authorize", save)
		}, forge: func(h *history) int {
			i, b := find(h, func(*events.ClockAccepted) bool { return true })
			b.Wall += 3600_000_000
			return i
		}},
		{kind: "run-id-of-a-later-time", what: "a run's id was made after its run was admitted", honest: func(h *history) {
			h.start()
		}, forge: func(h *history) int {
			i, d := find(h, func(d *events.Decision) bool { return d.Operation == "sop.submit" })
			was, is := d.RunID, "0fffffff-ffff-7000-8000-000000000001"
			for k := range h.events {
				switch b := h.events[k].Body.(type) {
				case *events.Decision:
					if b.RunID == was {
						b.RunID = is
					}
				case *events.RunAdmitted:
					b.RunID = is
				case *events.RunStarted:
					b.RunID = is
				case *events.EffectStarted:
					b.RunID, b.OperationID = is, is+"/one"
				}
			}
			return i
		}},
		{kind: "text-where-a-handler-said-nothing", what: "a handler's empty word on a failed effect is kept", honest: func(h *history) {
			h.start()
			h.fails("why")
		}, forge: func(h *history) int {
			i, _ := find(h, func(*events.EffectFailed) bool { return true })
			h.repay(i, `""`)
			return i
		}},
		{kind: "result-that-is-too-large-and-kept", what: "a result that was too large to keep lies beside its event", honest: func(h *history) {
			h.start()
			h.fails("why")
		}, forge: func(h *history) int {
			i, b := find(h, func(*events.EffectFailed) bool { return true })
			b.Outcome = string(reason.OutputTooLarge)
			_, failed := find(h, func(*events.RunFailed) bool { return true })
			failed.Reason = b.Outcome
			return i
		}},
		{kind: "trace-that-no-request-can-have", what: "a decision " + gone + " has a trace id outside of its grammar", honest: func(h *history) {
			h.does("action_allowed", "worker", "action.authorize", `{"action":"artifact.save","arguments":{"size":1},"trace_id":"t"}`)
		}, forge: func(h *history) int {
			i, d := authorized(h, "action_allowed")
			d.TraceID = "two\nlines"
			return i
		}},
		{kind: "rule-that-is-not-there", what: "an action is denied by a rule that neither the policy nor anybody of the lineage has; its request is not at hand", honest: func(h *history) {
			h.does("requirement_failed", "worker", "action.authorize", big)
		}, forge: func(h *history) int {
			i, d := authorized(h, "requirement_failed")
			d.Rule, d.Failed = "smaller", []string{"smaller"}
			return i
		}},
		{kind: "schema-where-there-is-none", what: "an action's arguments are denied for their form, and no rule is on them; the request is not at hand", honest: func(h *history) {
			h.admin("apply", request("documents", []string{"apiVersion: ledgerd/v1\nkind: Policy\nversion: lab-2\nenvironment: [memory.read, memory.write, artifact.save]\nactions: {artifact.save: {}, external.upload: {}}\nnamespaces: {policy: {class: mandatory, combine: all_true}}\n"}))
			h.does("action_allowed", "worker", "action.authorize", save)
		}, forge: func(h *history) int {
			i, d := authorized(h, "action_allowed")
			d.Allowed, d.Reason = false, string(reason.ArgumentSchema)
			return i
		}},
		{kind: "erased-and-still-there", what: "all that an agent wrote is said to be destroyed, and some of it lies there", check: "payloads", honest: func(h *history) {
			h.note()
			h.admin("payload.erase", `{"basis":"subject_request","agent_id":"worker"}`)
			h.purged = true
		}, forge: func(h *history) int {
			i, _ := find(h, func(d *events.Decision) bool { return d.Operation == "memory.write" })
			h.payloads[h.events[i].Seq] = h.erased
			return i
		}},
		apply("agent-of-no-parent", "an agent's parent is nobody", func(h *history) int {
			i, b := forgotten(h, func(b *events.AgentRegistered) bool { return b.AgentID == "worker" })
			b.ParentID = "director"
			return i
		}),
		apply("agent-with-anothers-key", "an agent has the admin's key", func(h *history) int {
			i, b := forgotten(h, func(b *events.AgentRegistered) bool { return b.AgentID == "worker" })
			b.PublicKey = publicKey("admin")
			return i
		}),
		apply("capability-that-is-declared-nowhere", "an agent is given what no policy knows", func(h *history) int {
			i, b := forgotten(h, func(b *events.AgentRegistered) bool { return b.AgentID == "worker" })
			b.Capabilities = slices.Insert(b.Capabilities, 3, "file.delete")
			slices.Sort(b.Capabilities)
			return i
		}),
		apply("policy-that-the-decision-does-not-name", "a policy comes into force that its decision does not name", func(h *history) int {
			i, _ := forgotten(h, func(*events.PolicyActivated) bool { return true })
			h.events[i-1].Body.(*events.Decision).Resource = "lab-2"
			return i
		}),
		apply("record-written-over-one-that-is-there", "a record is loaded in the place of one that is there", func(h *history) int {
			i, b := forgotten(h, func(*events.MemoryWritten) bool { return true })
			again := *b
			again.Revision++
			h.follow(i, &again)
			h.events[i+1].Cause, h.events[i+1].Payload = h.events[i].Cause, h.events[i].Payload
			h.payloads[h.events[i+1].Seq] = h.payloads[h.events[i].Seq]
			return i + 1
		}),
		apply("principal-among-the-agents", "a principal is registered before the agents", func(h *history) int {
			i, _ := forgotten(h, func(b *events.AgentRegistered) bool { return b.AgentID == "manager" })
			h.follow(i-1, &events.PrincipalRegistered{ID: "mallory", Role: "admin", PublicKey: publicKey("mallory")})
			h.events[i].Cause = h.events[i+1].Cause
			return i + 1
		}),
		{kind: "environment-of-unknown-actions", what: "the environment is narrowed to what no policy knows, by a request that is not at hand", honest: func(h *history) {
			h.admin("environment.set", `{"capabilities":["memory.read"]}`)
		}, forge: func(h *history) int {
			i, b := find(h, func(*events.EnvironmentChanged) bool { return true })
			b.Capabilities = []string{"file.delete", "memory.read"}
			h.forget(i - 1)
			return i
		}},
		{kind: "deny-of-an-epoch-too-many", what: "an emergency deny, of a request that is not at hand, leaves out an epoch", honest: func(h *history) {
			h.admin("emergency.deny", `{"agent_id":"worker","all":true,"reason":"stop"}`)
		}, forge: func(h *history) int {
			i, b := find(h, func(*events.EmergencyDenied) bool { return true })
			b.Epoch++
			h.forget(i - 1)
			return i
		}},
	}...)
}

// fails has the handler report that the effect under way was not done.
func (h *history) fails(why string) {
	h.t.Helper()
	i := seqOf(h, func(*events.EffectStarted) bool { return true })
	e, err := events.Parse(h.log.Batch.Events[i-1])
	if err != nil {
		h.t.Fatal(err)
	}
	h.reports("tools", e.Body.(*events.EffectStarted).OperationID, false, why)
	h.tick()
}
