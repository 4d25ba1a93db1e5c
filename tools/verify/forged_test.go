package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/audit/logtest"
	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
)

var update = flag.Bool("update", false, "write the forged histories of docs/format/vectors anew")

const corpus = "../../docs/format/vectors/forged"

// forgery is one consistent false history. honest is what really happened; forge
// changes it and returns the index of the event that the auditor must name.
type forgery struct {
	kind   string
	what   string
	limits string
	check  string // that finds it; empty for replay
	honest func(h *history)
	forge  func(h *history) int
}

const (
	upload = `{"action":"external.upload","arguments":{"to":"there"}}`
	save   = `{"action":"artifact.save","arguments":{"size":1}}`
	big    = `{"action":"artifact.save","arguments":{"size":11}}`
)

func write(owner, key, more string) string {
	return `{"owner_agent_id":"` + owner + `","namespace":"notes","key":"` + key + `","value":1` + more + `}`
}

func record(owner, key string, revision uint64) *events.MemoryWritten {
	return &events.MemoryWritten{Record: events.Record{Owner: owner, Namespace: "notes", Key: key, Visibility: "private", Class: "preference", Revision: revision}}
}

func turn(h *history, was, is string) int {
	i, d := h.decision(was)
	d.Allowed, d.Reason, d.Rule, d.Failed, d.Owner, d.Blind = true, is, "", nil, "", ""
	return i
}

// child is a registration by worker.
func child(id, capabilities string) string {
	return `{"agent_id":"` + id + `","capabilities":[` + capabilities + `],"public_key":"` + publicKey(id) + `"}`
}

var forgeries = []forgery{
	{kind: "allowed-instead-of-denied", what: "an action that nobody of the lineage lends is allowed", honest: func(h *history) {
		h.does("registered", "worker", "agent.register", child("helper", `"memory.read"`))
		h.does("action_not_in_effective_capabilities", "helper", "action.authorize", save)
	}, forge: func(h *history) int { return turn(h, "action_not_in_effective_capabilities", "action_allowed") }},
	{kind: "denied-instead-of-allowed", what: "an action that the rules allow is denied", honest: func(h *history) {
		h.does("action_allowed", "worker", "action.authorize", save)
	}, forge: func(h *history) int {
		i, d := h.decision("action_allowed")
		d.Allowed, d.Reason = false, "action_not_in_effective_capabilities"
		return i
	}},
	{kind: "wrong-reason", what: "a denial gives another reason than the first guard that fails", honest: func(h *history) {
		h.does("unknown_action", "worker", "action.authorize", `{"action":"shell.run"}`)
	}, forge: func(h *history) int {
		i, d := h.decision("unknown_action")
		d.Reason = "action_not_in_effective_capabilities"
		return i
	}},
	{kind: "wrong-policy-version", what: "a decision names a policy version that was never in force", honest: func(h *history) {
		h.does("action_allowed", "worker", "action.authorize", save)
	}, forge: func(h *history) int {
		i, d := h.decision("action_allowed")
		d.PolicyVersion = "lab-2"
		return i
	}},
	{kind: "wrong-policy-digest", what: "a decision names the version in force with the digest of another document", honest: func(h *history) {
		h.does("action_allowed", "worker", "action.authorize", save)
	}, forge: func(h *history) int {
		i, d := h.decision("action_allowed")
		d.PolicyDigest[0]++
		return i
	}},
	{kind: "policy-not-in-the-log", what: "a policy was put in force and taken out of the log; a decision still rests on it", honest: func(h *history) {
		h.admin("apply", request("documents", []string{"apiVersion: ledgerd/v1\nkind: Policy\nversion: lab-2\nenvironment: [memory.read, memory.write, artifact.save]\nactions: {artifact.save: {}, external.upload: {}}\nnamespaces: {policy: {class: mandatory, combine: all_true}, credentials: {class: secret}}\n"}))
		h.does("action_allowed", "worker", "action.authorize", big)
	}, forge: func(h *history) int {
		i, _ := find(h, func(b *events.PolicyActivated) bool { return b.Version == "lab-2" })
		h.remove(i-1, 2)
		return i - 1
	}},
	{kind: "shadowed-mandatory-record", what: "a child's record is taken for the root's mandatory one, and what that forbids is allowed", honest: func(h *history) {
		h.does("requirement_failed", "worker", "action.authorize", upload)
	}, forge: func(h *history) int { return turn(h, "requirement_failed", "action_allowed") }},
	{kind: "mandatory-value-turned", what: "the root's mandatory record says true where the admin wrote false", honest: func(h *history) {}, forge: func(h *history) int {
		i, _ := find(h, func(b *events.MemoryWritten) bool { return b.Class == "mandatory" })
		h.repay(i, "true")
		return i
	}},
	{kind: "foreign-write", what: "an agent writes a record that its ancestor owns", honest: func(h *history) {
		h.does("owner_write", "manager", "memory.write", write("manager", "a", ""))
		h.does("actor_is_not_owner", "worker", "memory.write", write("manager", "a", ""))
	}, forge: func(h *history) int {
		i := turn(h, "actor_is_not_owner", "owner_write")
		h.events[i].Body.(*events.Decision).PreviousRevision = 1
		h.follow(i, record("manager", "a", 2))
		return i
	}},
	{kind: "read-through-a-hidden-ancestor", what: "a record that its owner keeps private is read from below", honest: func(h *history) {
		h.does("owner_write", "manager", "memory.write", write("manager", "a", ""))
		h.does("not_visible_from", "worker", "memory.read", `{"namespace":"notes","key":"a"}`)
	}, forge: func(h *history) int {
		i := turn(h, "not_visible_from", "visible_from")
		h.events[i].Body.(*events.Decision).Owner = "manager"
		return i
	}},
	{kind: "missing-step-decision", what: "a procedure is judged, and the decision on one of its steps is not there", honest: func(h *history) {
		h.does("sop_admitted", "worker", "sop.validate", `{"sop":{"sop_id":"s","version":1,"steps":[{"step_id":"one","action":"artifact.save","arguments":{"size":1}},{"step_id":"two","action":"artifact.save","arguments":{"size":2}}]}}`)
	}, forge: func(h *history) int {
		i, _ := find(h, func(d *events.Decision) bool { return d.StepID == "two" })
		h.remove(i, 1)
		return i
	}},
	{kind: "procedure-admitted-in-spite-of-a-step", what: "one step is refused and the whole is admitted", honest: func(h *history) {
		h.does("requirement_failed", "worker", "sop.validate", `{"sop":{"sop_id":"s","version":1,"steps":[{"step_id":"one","action":"artifact.save","arguments":{"size":11}}]}}`)
	}, forge: func(h *history) int {
		i, d := find(h, func(d *events.Decision) bool { return d.StepID == "" && d.SOPID == "s" })
		d.Allowed, d.Reason, d.Rule, d.Failed = true, "sop_admitted", "", nil
		return i
	}},
	{kind: "step-before-the-whole", what: "a run begins, and its first step is decided, before the procedure is judged", honest: func(h *history) { h.run() }, forge: func(h *history) int {
		i, _ := find(h, func(d *events.Decision) bool { return d.Operation == "sop.submit" })
		k, _ := find(h, func(d *events.Decision) bool {
			return d.RunID != "" && d.StepID == "one" && d.Operation != "sop.validate"
		})
		moved := h.events[k]
		h.remove(k, 1)
		moved.Time, moved.Cause = h.events[i-1].Time, 0
		h.events = slices.Insert(h.events, i-1, moved)
		return i - 1
	}},
	{kind: "step-decision-after-effect", what: "an effect starts, and the decision on its step comes after it", honest: func(h *history) { h.run() }, forge: func(h *history) int {
		i, _ := find(h, func(b *events.EffectStarted) bool { return true })
		k, _ := find(h, func(d *events.Decision) bool {
			return d.RunID != "" && d.StepID == "one" && d.Operation != "sop.validate"
		})
		moved := h.events[k]
		h.remove(k, 1)
		h.events = slices.Insert(h.events, i, moved)
		for j := k; j < i; j++ { // what stood after it now follows from the whole
			h.events[j].Cause = h.events[k-2].Seq
		}
		return k
	}},
	{kind: "widened-child", what: "an agent is registered with more than it asked for", honest: func(h *history) {
		h.does("registered", "worker", "agent.register", child("helper", `"memory.read"`))
	}, forge: func(h *history) int {
		i, b := find(h, func(b *events.AgentRegistered) bool { return b.AgentID == "helper" })
		b.Capabilities = []string{"external.upload", "memory.read"}
		return i
	}},
	{kind: "wider-than-its-parent", what: "an agent is registered with what its parent does not hold", honest: func(h *history) {
		h.does("registered", "worker", "agent.register", child("helper", `"memory.read","agent.register"`))
		h.does("capability_not_inherited", "helper", "agent.register", child("below", `"artifact.save"`))
	}, forge: func(h *history) int {
		i := turn(h, "capability_not_inherited", "registered")
		h.follow(i, &events.AgentRegistered{AgentID: "below", ParentID: "helper", Capabilities: []string{"artifact.save"}, PublicKey: publicKey("below")})
		return i
	}},
	{kind: "revived-revision", what: "a deleted record comes back with a revision that it had", honest: func(h *history) {
		h.does("owner_write", "worker", "memory.write", write("worker", "a", ""))
		h.does("owner_delete", "worker", "memory.delete", `{"owner_agent_id":"worker","namespace":"notes","key":"a","expected_revision":1}`)
		h.does("owner_write", "worker", "memory.write", write("worker", "a", ""))
	}, forge: func(h *history) int {
		i, b := find(h, func(b *events.MemoryWritten) bool { return b.Key == "a" })
		b.Revision = 1
		return i
	}},
	{kind: "stale-write", what: "a write on top of an old revision is accepted", honest: func(h *history) {
		h.does("owner_write", "worker", "memory.write", write("worker", "a", ""))
		h.does("owner_write", "worker", "memory.write", write("worker", "a", `,"expected_revision":1`))
		h.does("revision_conflict", "worker", "memory.write", write("worker", "a", `,"expected_revision":1`))
	}, forge: func(h *history) int {
		i := turn(h, "revision_conflict", "owner_write")
		h.follow(i, record("worker", "a", 3))
		return i
	}},
	{kind: "effect-after-a-denial", what: "a record is written though the decision before it denies it", honest: func(h *history) {
		h.does("registered", "worker", "agent.register", child("helper", `"memory.read"`))
		h.does("capability_not_inherited", "helper", "memory.write", write("helper", "a", ""))
	}, forge: func(h *history) int {
		i, _ := h.decision("capability_not_inherited")
		h.follow(i, record("helper", "a", 1))
		return i + 1
	}},
	{kind: "missing-effect", what: "a write is allowed, and nothing is written", honest: func(h *history) {
		h.does("owner_write", "worker", "memory.write", write("worker", "a", ""))
		h.does("action_allowed", "worker", "action.authorize", save)
	}, forge: func(h *history) int {
		i, _ := find(h, func(b *events.MemoryWritten) bool { return b.Key == "a" })
		h.remove(i, 1)
		return i
	}},
	{kind: "act-under-an-emergency", what: "an agent acts while an emergency deny takes everything from it", honest: func(h *history) {
		h.admin("emergency.deny", `{"agent_id":"worker","all":true,"reason":"stop"}`)
		h.does("emergency_deny", "worker", "action.authorize", save)
	}, forge: func(h *history) int {
		i := turn(h, "emergency_deny", "action_allowed")
		return i
	}},
	{kind: "revoked-agent-acting", what: "an agent acts after it was revoked", honest: func(h *history) {
		h.admin("agent.revoke", `{"agent_id":"worker"}`)
		h.does("agent_revoked", "worker", "action.authorize", save)
	}, forge: func(h *history) int { return turn(h, "agent_revoked", "action_allowed") }},
	{kind: "revocation-left-out", what: "an agent is revoked, and the log does not say so", honest: func(h *history) {
		h.admin("agent.revoke", `{"agent_id":"worker"}`)
	}, forge: func(h *history) int {
		i, _ := find(h, func(b *events.AgentRevoked) bool { return true })
		h.remove(i, 1)
		return i - 1
	}},
	{kind: "operation-decided-twice", what: "a retry is decided once more, instead of answered with what was decided", check: "operations", honest: func(h *history) {
		h.does("owner_write", "worker", "memory.write", write("worker", "a", `,"operation_id":"w1"`))
	}, forge: func(h *history) int {
		i, d := h.decision("owner_write")
		e, again := h.events[i], *d
		again.PreviousRevision = 1
		e.Seq, e.Body = 1<<40, &again
		h.payloads[e.Seq] = h.payloads[h.events[i].Seq]
		h.events = append(h.events, e)
		h.follow(len(h.events)-1, record("worker", "a", 2))
		h.events[len(h.events)-1].Seq++
		return len(h.events) - 2
	}},
	{kind: "grant-used-after-its-end", what: "a secret is read under a grant that has expired", honest: func(h *history) {
		h.does("owner_write", "manager", "memory.write", strings.Replace(write("manager", "token", ""), "notes", "credentials", 1))
		h.does("grant_given", "manager", "grant.give", `{"namespace":"credentials","key":"token","to":"worker","expires_seconds":60}`)
		h.elapsed += time.Hour
		h.does("grant_required", "worker", "memory.read", `{"owner_agent_id":"manager","namespace":"credentials","key":"token"}`)
	}, forge: func(h *history) int {
		i := turn(h, "grant_required", "granted_by")
		h.events[i].Body.(*events.Decision).Owner = "manager"
		return i
	}},
	{kind: "rule-turned", what: "a requirement denies, and the action is allowed", honest: func(h *history) {
		h.does("requirement_failed", "worker", "action.authorize", big)
	}, forge: func(h *history) int { return turn(h, "requirement_failed", "action_allowed") }},
	{kind: "restriction-forgotten", what: "an agent's own restriction denies, and the action is allowed", honest: func(h *history) {
		h.does("restriction_added", "manager", "restriction.add", `{"id":"few","action":"artifact.save","require":"args.size < 1"}`)
		h.does("requirement_failed", "worker", "action.authorize", save)
	}, forge: func(h *history) int { return turn(h, "requirement_failed", "action_allowed") }},
	{kind: "quota-exceeded", what: "an agent keeps one record more than it may", limits: "limits: {records: 1}\n", honest: func(h *history) {
		h.does("owner_write", "worker", "memory.write", write("worker", "a", ""))
		h.does("quota_exceeded", "worker", "memory.write", write("worker", "b", ""))
	}, forge: func(h *history) int {
		i := turn(h, "quota_exceeded", "owner_write")
		h.follow(i, record("worker", "b", 1))
		return i
	}},
	{kind: "environment-wider-than-set", what: "the environment is narrowed by less than the admin said", honest: func(h *history) {
		h.admin("environment.set", `{"capabilities":["memory.read"]}`)
	}, forge: func(h *history) int {
		i, b := find(h, func(b *events.EnvironmentChanged) bool { return true })
		b.Capabilities = []string{"external.upload", "memory.read"}
		return i
	}},
	{kind: "another-identity", what: "a decision names another subject than the connection that asked", honest: func(h *history) {
		h.does("action_allowed", "worker", "action.authorize", save)
	}, forge: func(h *history) int {
		i, _ := h.decision("action_allowed")
		h.events[i].Agent = "manager"
		return i
	}},
	{kind: "other-arguments", what: "what was allowed was asked with other arguments", honest: func(h *history) {
		h.does("action_allowed", "worker", "action.authorize", save)
	}, forge: func(h *history) int {
		i, _ := h.decision("action_allowed")
		h.repay(i, `{"action":"artifact.save","arguments":{"size":2}}`)
		return i
	}},
}

// terms are what removed the capability, as the report must say.
var terms = map[string]string{
	"allowed-instead-of-denied": "declared(helper) not_declared;",
	"denied-instead-of-allowed": "",
	"act-under-an-emergency":    "¬emergency emergency_deny;",
	"revoked-agent-acting":      "declared(worker) revoked;",
	"wider-than-its-parent":     "",
	"widened-child":             "",
	"rule-turned":               "",
	"quota-exceeded":            "",
	"foreign-write":             "",
}

// run has worker run a procedure of one step to its end.
func (h *history) run() {
	h.t.Helper()
	h.admin("principal.register", `{"id":"tools","role":"handler","actions":["artifact.save"],"public_key":"`+publicKey("tools")+`"}`)
	if code := h.writer.Hello("tools", []string{"artifact.save"}); code != "" {
		h.t.Fatal(code)
	}
	h.does("sop_admitted", "worker", "sop.submit", `{"sop":{"sop_id":"s","version":1,"steps":[{"step_id":"one","action":"artifact.save","arguments":{"size":1}}]}}`)
	for range 3 {
		h.tick()
	}
	e, err := events.Parse(h.log.Batch.Events[len(h.log.Batch.Events)-1])
	if err != nil {
		h.t.Fatal(err)
	}
	started, ok := e.Body.(*events.EffectStarted)
	if !ok {
		h.t.Fatalf("the run ends with %s", e.Body.Type())
	}
	h.report("tools", started.OperationID)
	h.tick()
}

// forged is a line of the corpus' manifest.
type forged struct {
	Kind     string `json:"kind"`
	What     string `json:"false"` // what is false
	Seq      uint64 `json:"seq"`   // of the event that says so
	Check    string `json:"check"` // which finds it
	Expected string `json:"expected"`
	Found    string `json:"found"`

	Derivation *audit.Derivation `json:"derivation,omitempty"`
}

// publish returns the published directory of an export, which must hold just
// these files; with -update it makes it.
func publish(t *testing.T, kind string, files map[string][]byte) (dir string) {
	t.Helper()
	dir = filepath.Join(corpus, kind)
	if *update {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		if err := logtest.Write(dir, files); err != nil {
			t.Fatal(err)
		}
	}
	size := 0
	for name, b := range files {
		published, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || !bytes.Equal(published, b) {
			t.Errorf("%s is not what is published; run the test with -update: %v", name, err)
		}
		size += len(b)
	}
	if size > 16<<10 {
		t.Errorf("%d bytes", size)
	}
	return dir
}

// TestR82_ForgedHistoriesWithoutPayloads: an export that holds open payloads
// only. What cannot be judged then is counted, and no history passes: neither
// the false nor the true.
func TestR82_ForgedHistoriesWithoutPayloads(t *testing.T) {
	found, left := 0, 0
	for _, f := range append([]forgery{{kind: "honest"}}, forgeries...) {
		dir := filepath.Join(t.TempDir(), "export")
		if err := os.CopyFS(dir, os.DirFS(filepath.Join(corpus, f.kind))); err != nil {
			t.Fatal(err)
		}
		source, err := audit.OpenExport(os.DirFS(dir))
		if err != nil {
			t.Fatal(err)
		}
		err = source.Events(1, source.Size, func(seq uint64, b []byte) error {
			e, err := events.Parse(b)
			if err == nil && !ledger.HasOpenPayload(e.Body) {
				if err := os.Remove(filepath.Join(dir, "payloads", fmt.Sprint(seq))); err != nil && !errors.Is(err, fs.ErrNotExist) {
					return err
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		exit, r := verifyJSON(t, "--export", dir, "--replay")
		said := strings.Contains(r.Semantics.Checks[0].Open, "decisions were not judged") || strings.Contains(r.Semantics.Checks[0].Open, "payloads are missing")
		switch {
		case exit == audit.ExitPass, !said:
			t.Errorf("%s: exit %d: %+v", f.kind, exit, r.Semantics)
		case exit == audit.ExitFail:
			found++
		default:
			left++
		}
	}
	t.Logf("%d found all the same, %d not judged for want of payloads", found, left)
}

// TestR82_ForgedHistories: somebody with all keys writes a false history, sealed
// as a true one: under the pinned key its integrity passes, and judging it again
// finds the event that is false. The histories are published, and made here.
func TestR82_ForgedHistories(t *testing.T) {
	vkey := logtest.New(forgedOrigin, forgedKey).VKey
	var manifest []forged
	for _, f := range forgeries {
		t.Run(f.kind, func(t *testing.T) {
			h := newHistory(t)
			h.family(f.limits)
			f.honest(h)
			h.stop()
			if exit, r := verifyJSON(t, "--export", export(t, h.sealed().Files()), "--vkey", vkey, "--replay"); exit != audit.ExitPass || r.Semantics.Status != audit.Pass {
				t.Fatalf("before anything is forged: exit %d: %+v %+v", exit, r.Semantics, r.Faults)
			}
			seq := uint64(f.forge(h)) + 1
			dir := publish(t, f.kind, h.sealed().Files())
			check := cmp.Or(f.check, "replay")
			if f.check != "" { // needs no rules to be seen
				finds(t, check, seq, "--export", dir, "--vkey", vkey)
			} else if exit, r := verifyJSON(t, "--export", dir, "--vkey", vkey); exit != audit.ExitPass || r.Verdict != "authentic" || r.Semantics.Status != audit.NotRun || !strings.Contains(open(r), "decisions were not judged again") {
				t.Errorf("by its hashes: exit %d, %s: %+v", exit, r.Verdict, r.Faults)
			}
			if f.check == "" || f.check == "operations" {
				finds(t, "replay", seq, "--export", dir, "--vkey", vkey, "--replay")
			}
			r := finds(t, check, seq, "--export", dir, "--vkey", vkey, "--replay")
			if r.Faults[0].Seq != seq {
				t.Errorf("named first: %+v, forged at %d", r.Faults[0], seq)
			}
			manifest = append(manifest, forged{f.kind, f.what, seq, check, r.Faults[0].Expected, r.Faults[0].Found, r.Faults[0].Derivation})
		})
	}
	t.Run("honest", func(t *testing.T) { // what the same writer leaves when nobody forges
		h := newHistory(t)
		h.family("")
		h.run()
		h.stop()
		dir := publish(t, "honest", h.sealed().Files())
		if exit, r := verifyJSON(t, "--export", dir, "--vkey", vkey, "--replay"); exit != audit.ExitPass || r.Verdict != "authentic" {
			t.Errorf("exit %d: %+v", exit, r)
		}
	})
	if len(forgeries) < 15 {
		t.Errorf("only %d kinds", len(forgeries))
	}
	for _, f := range manifest {
		removed := ""
		if f.Derivation != nil {
			for _, t := range f.Derivation.Removed {
				removed += t.Of + " " + t.Why + ";"
			}
			if f.Derivation.PolicySeq != 4 || f.Derivation.Policy != "lab-1" || f.Derivation.Recorded == "" || f.Derivation.Recorded == f.Derivation.Recomputed && !strings.HasPrefix(f.Kind, "wrong-policy") && f.Kind != "another-identity" && f.Kind != "other-arguments" {
				t.Errorf("%s: %+v", f.Kind, f.Derivation)
			}
		}
		if want, ok := terms[f.Kind]; ok && (f.Derivation == nil || removed != want) {
			t.Errorf("%s: removed by %q, want %q", f.Kind, removed, want)
		}
	}
	text := map[string]any{"origin": forgedOrigin, "vkey": vkey, "forged": manifest}
	b, err := json.MarshalIndent(text, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	b = append(b, '\n')
	path := filepath.Join(corpus, "manifest.json")
	if *update {
		if err := os.WriteFile(path, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if published, err := os.ReadFile(path); err != nil || !bytes.Equal(published, b) {
		t.Errorf("the manifest is not what is published; run the test with -update: %v", err)
	}
}
