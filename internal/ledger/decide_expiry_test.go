package ledger

import (
	"fmt"
	"testing"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// newTaskLab has a tree top → low and namespaces of every class.
func newTaskLab(t *testing.T) *grantLab {
	l := &grantLab{newTinyLog(t), t}
	all := "[memory.read, memory.write]"
	documents := []string{"apiVersion: ledgerd/v1\nkind: Policy\nversion: v\nenvironment: " + all + "\nnamespaces: {credentials: {class: secret}, must: {class: mandatory, combine: all_true}," +
		" tasks: {class: task}, tasks.short: {class: task, ttl_seconds: 10}, tasks.short.more: {class: task}}\n"}
	for id, parent := range map[string]string{"top": "", "low": "parent: top\n", "other": ""} {
		documents = append(documents, "kind: Agent\nid: "+id+"\n"+parent+"capabilities: "+all+"\npublic_key: "+publicKey(id)+"\n")
	}
	l.want(reason.ControlDone, l.ask(wire.Control, AdminID, "apply", toJSON(object{"documents": documents})))
	return l
}

func (l *grantLab) write(who, namespace string, more object) *Outcome {
	request := object{"owner_agent_id": who, "namespace": namespace, "key": "k", "value": true, "visibility": "descendants"}
	for k, v := range more {
		request[k] = v
	}
	return l.ask(wire.Propose, who, "memory.write", toJSON(request))
}

func (l *grantLab) walk(who, namespace string) *Outcome {
	return l.ask(wire.Propose, who, "memory.read", toJSON(object{"namespace": namespace, "key": "k"}))
}

// until lets time pass up to the moment at.
func (l *grantLab) until(at events.Time) { l.ahead += at - l.now() }

// bySnapshot goes on with a state that was written down and read again.
func (l *grantLab) bySnapshot() {
	l.t.Helper()
	b, err := l.state.EncodeSnapshot(nil)
	if err != nil {
		l.t.Fatal(err)
	}
	restored, err := projection.DecodeSnapshot(b, nil)
	if err != nil {
		l.t.Fatal(err)
	}
	if restored.Digest() != l.state.Digest() {
		l.t.Fatal("a snapshot of another state")
	}
	l.state = restored
}

// R31: a record is there up to the moment its time comes, and gone from it on,
// whether or not an event has said so; a snapshot changes nothing of that.
func TestR31_GoneFromTheMomentOn(t *testing.T) {
	for _, snapshot := range []bool{false, true} {
		for _, said := range []bool{false, true} {
			t.Run(fmt.Sprintf("snapshot %v, said %v", snapshot, said), func(t *testing.T) {
				l := newTaskLab(t)
				l.want(reason.OwnerWrite, l.write("top", "notes", nil))
				asked := l.now()
				l.want(reason.OwnerWrite, l.write("low", "notes", object{"ttl_seconds": 60}))
				record := l.state.Record("low", "notes", "k")
				if want := asked + 60_000_000; record.Expires != want {
					t.Fatalf("expires at %s, want %s", record.Expires, want)
				}
				l.until(record.Expires - 1)
				if o := l.walk("low", "notes"); o.Decision.Owner != "low" {
					t.Fatalf("a microsecond before: %+v", o.Decision)
				}
				if snapshot {
					l.bySnapshot()
				}
				l.until(record.Expires)
				if said {
					l.add(events.System, 0, l.state.Expiry(record, l.now()), nil, false)
				}
				o := l.walk("low", "notes") // and so falls through to the nearest other
				if l.want(reason.VisibleFrom, o); o.Decision.Owner != "top" {
					t.Errorf("at the moment: %+v", o.Decision)
				}
				l.want(reason.RecordNotFound, l.ask(wire.Propose, "low", "memory.read", `{"owner_agent_id":"low","namespace":"notes","key":"k"}`))
				for _, revision := range []int{1, 2} {
					l.want(reason.RevisionConflict, l.ask(wire.Propose, "low", "memory.delete", toJSON(object{"owner_agent_id": "low", "namespace": "notes", "key": "k", "expected_revision": revision})))
					l.want(reason.RevisionConflict, l.write("low", "notes", object{"expected_revision": revision}))
				}
				if got := l.state.Record("low", "notes", "k"); got.Deleted != said {
					t.Errorf("refusals left %+v", got)
				}
				o = l.write("low", "notes", nil)
				l.want(reason.OwnerWrite, o)
				got := l.state.Live("low", "notes", "k", l.now()+1<<40)
				if o.Decision.PreviousRevision != 2 || got == nil || got.Revision != 3 || got.Expires != 0 {
					t.Errorf("written again, after %d: %+v", o.Decision.PreviousRevision, got)
				}
				if n := l.count(events.TypeMemoryExpired); n != 1 {
					t.Errorf("%d events say that it is gone", n)
				}
				l.verify()
			})
		}
	}
}

func (l *tinyLog) count(typ events.Type) (n int) {
	for _, b := range l.events {
		if e, err := events.Parse(b); err == nil && e.Body.Type() == typ {
			n++
		}
	}
	return n
}

// R31: task state has an end: its own, its rule's or its run's. Nothing mandatory has one.
func TestR31_TaskStateHasAnEnd(t *testing.T) {
	for _, c := range []struct {
		namespace string
		seconds   int // 0: not said
		code      reason.Code
		lasts     events.Time // seconds; 0 for ever
	}{
		{"notes", 0, reason.OwnerWrite, 0},
		{"notes", 1, reason.OwnerWrite, 1},
		{"notes", events.TTLSecondsMax, reason.OwnerWrite, events.TTLSecondsMax},
		{"notes", events.TTLSecondsMax + 1, reason.MalformedRequest, 0},
		{"notes", -1, reason.MalformedRequest, 0},
		{"credentials", 5, reason.OwnerWrite, 5},
		{"must", 0, reason.OwnerWrite, 0},
		{"must", 5, reason.ValueNotAllowed, 0},
		{"tasks", 0, reason.ValueNotAllowed, 0},
		{"tasks", 100, reason.OwnerWrite, 100},
		{"tasks.short", 0, reason.OwnerWrite, 10},
		{"tasks.short", 10, reason.OwnerWrite, 10},
		{"tasks.short", 11, reason.ValueNotAllowed, 0},
		{"tasks.short.more", 0, reason.OwnerWrite, 10},
		{"tasks.short.more", 11, reason.ValueNotAllowed, 0},
	} {
		l := newTaskLab(t)
		more := object{}
		if c.seconds != 0 {
			more["ttl_seconds"] = c.seconds
		}
		now := l.now()
		l.want(c.code, l.write("top", c.namespace, more))
		r := l.state.Record("top", c.namespace, "k")
		switch {
		case c.code != reason.OwnerWrite:
			if r != nil {
				t.Errorf("%s %d: refused, and written", c.namespace, c.seconds)
			}
		case c.lasts == 0 && r.Expires != 0, c.lasts != 0 && r.Expires != now+c.lasts*1_000_000:
			t.Errorf("%s %d: expires %s after %s", c.namespace, c.seconds, r.Expires, now)
		}
		step := object{"owner_agent_id": "top", "namespace": c.namespace, "key": "k2", "value": true}
		for k, v := range more {
			step[k] = v
		}
		o := l.ask(wire.Propose, "top", "sop.validate", toJSON(object{"sop": object{"sop_id": "s", "version": 1, "steps": []object{{"step_id": "a", "action": "memory.write", "arguments": step}}}}))
		want := c.code
		switch {
		case c.code == reason.OwnerWrite || c.namespace == "tasks" && c.seconds == 0: // the run's
			want = reason.SOPAdmitted
		case c.code == reason.MalformedRequest:
			want = reason.ArgumentSchema
		}
		l.want(want, o)
		l.verify()
	}
	l := newTaskLab(t)
	for namespace, code := range map[string]reason.Code{"tasks": reason.ValueNotAllowed, "tasks.short": reason.ControlDone} {
		l.want(code, l.ask(wire.Control, AdminID, "memory.load", toJSON(object{"owner_agent_id": "top", "namespace": namespace, "key": "k", "value": 1, "visibility": "private"})))
	}
	if r := l.state.Record("top", "tasks.short", "k"); r == nil || r.Expires == 0 {
		t.Errorf("loaded: %+v", r)
	}
	l.verify()
}

// R31: what is written last decides whether there is an end.
func TestR31_TheLastWriteDecides(t *testing.T) {
	l := newTaskLab(t)
	l.want(reason.OwnerWrite, l.write("top", "notes", object{"ttl_seconds": 5}))
	l.want(reason.OwnerWrite, l.write("top", "notes", object{"expected_revision": 1}))
	l.until(l.now() + 6_000_000)
	l.want(reason.VisibleFrom, l.walk("top", "notes"))
	l.want(reason.OwnerWrite, l.write("top", "notes", object{"expected_revision": 2, "ttl_seconds": 5}))
	if l.state.Due(l.now()) != nil {
		t.Error("due before its time")
	}
	l.until(l.now() + 6_000_000)
	l.want(reason.RecordNotFound, l.walk("top", "notes"))
	if r := l.state.Due(l.now()); r == nil || r.Revision != 3 {
		t.Errorf("due: %+v", r)
	}
	l.verify()
}

// R31, R30: a grant ends with its secret, at the moment, and does not come back
// with the next one of that name.
func TestR31_AGrantEndsWithItsSecret(t *testing.T) {
	l := newTaskLab(t)
	l.want(reason.OwnerWrite, l.write("top", "credentials", object{"ttl_seconds": 5}))
	give := toJSON(object{"namespace": "credentials", "key": "k", "to": "other", "expires_seconds": 60})
	l.want(reason.GrantGiven, l.ask(wire.Propose, "top", "grant.give", give))
	read := func() *Outcome {
		return l.ask(wire.Propose, "other", "memory.read", `{"owner_agent_id":"top","namespace":"credentials","key":"k"}`)
	}
	l.want(reason.GrantedBy, read())
	l.until(l.state.Record("top", "credentials", "k").Expires)
	l.want(reason.RecordNotFound, read())
	l.want(reason.NotFound, l.ask(wire.Propose, "top", "grant.give", give))
	l.want(reason.NotFound, l.ask(wire.Propose, "top", "grant.revoke", `{"namespace":"credentials","key":"k","to":"other"}`))
	if len(l.state.Grants(l.now())) != 0 {
		t.Error("a grant of nothing is listed")
	}
	l.want(reason.OwnerWrite, l.write("top", "credentials", nil))
	l.want(reason.GrantRequired, read())
	l.verify()
}
