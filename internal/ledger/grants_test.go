package ledger

import (
	"testing"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/wire"
)

type grantLab struct {
	*tinyLog
	t *testing.T
}

// newGrantLab has a tree top → low, a second root other, and top's secret.
func newGrantLab(t *testing.T) *grantLab {
	l := &grantLab{newTinyLog(t), t}
	all := "[memory.read, memory.write]"
	documents := []string{"apiVersion: ledgerd/v1\nkind: Policy\nversion: v\nenvironment: " + all + "\nnamespaces: {credentials: {class: secret}}\n"}
	for id, parent := range map[string]string{"top": "", "low": "parent: top\n", "other": ""} {
		documents = append(documents, "kind: Agent\nid: "+id+"\n"+parent+"capabilities: "+all+"\npublic_key: "+publicKey(id)+"\n")
	}
	l.want(reason.ControlDone, l.ask(wire.Control, AdminID, "apply", toJSON(object{"documents": documents})))
	l.want(reason.OwnerWrite, l.ask(wire.Propose, "top", "memory.write", `{"owner_agent_id":"top","namespace":"credentials","key":"token","value":"x","visibility":"descendants"}`))
	l.want(reason.OwnerWrite, l.ask(wire.Propose, "top", "memory.write", `{"owner_agent_id":"top","namespace":"notes","key":"n","value":1}`))
	return l
}

func (l *grantLab) want(code reason.Code, o *Outcome) {
	l.t.Helper()
	if o.Decision.Reason != string(code) {
		l.t.Fatalf("%s by %s: %s, want %s", o.Decision.Operation, o.Decision.Subject, o.Decision.Reason, code)
	}
}

func (l *grantLab) give(who, to string, more object) *Outcome {
	request := object{"namespace": "credentials", "key": "token", "to": to, "expires_seconds": 60}
	for k, v := range more {
		request[k] = v
	}
	return l.ask(wire.Propose, who, "grant.give", toJSON(request))
}

func (l *grantLab) read(who string) *Outcome {
	return l.ask(wire.Propose, who, "memory.read", `{"owner_agent_id":"top","namespace":"credentials","key":"token"}`)
}

// R30: a grant is one grantee's, for one record; the walk never finds it.
func TestR30_AGrantIsOneAgentsForOneRecord(t *testing.T) {
	l := newGrantLab(t)
	l.want(reason.GrantRequired, l.read("low"))
	l.want(reason.GrantRequired, l.read("other"))
	o := l.give("top", "other", nil)
	l.want(reason.GrantGiven, o)
	if o.Decision.Resource != "top:credentials.token" {
		t.Error(o.Decision.Resource)
	}
	o = l.read("other")
	l.want(reason.GrantedBy, o)
	if o.Read == nil || o.Read.Class != "secret" || o.Decision.Owner != "top" || o.Hidden {
		t.Errorf("%+v", o.Decision)
	}
	o = l.read("low")
	l.want(reason.GrantRequired, o)
	if !o.Hidden || o.Read != nil {
		t.Error("the lack of a grant is told")
	}
	l.want(reason.GrantGiven, l.give("top", "low", nil))
	l.want(reason.NotVisibleFrom, l.ask(wire.Propose, "low", "memory.read", `{"namespace":"credentials","key":"token"}`))
	for who, c := range map[string]struct {
		to   string
		more object
	}{
		"low": {"other", nil}, "other": {"low", nil}, // not their secret
		"top": {"nobody", nil},
	} {
		l.want(reason.NotFound, l.give(who, c.to, c.more))
	}
	l.want(reason.NotFound, l.give("top", "top", nil))
	l.want(reason.NotFound, l.give("top", AdminID, nil))
	l.want(reason.NotFound, l.give("top", "low", object{"namespace": "notes", "key": "n"}))
	for _, bad := range []object{{"expires_seconds": 0}, {"expires_seconds": events.GrantSecondsMax + 1}, {"expires_seconds": 1.5}, {"uses": 0}, {"owner_agent_id": "low"}} {
		request := object{"namespace": "credentials", "key": "token", "to": "low", "expires_seconds": 60}
		for k, v := range bad {
			request[k] = v
		}
		if _, code := wire.Decode(wire.Propose, "grant.give", []byte(toJSON(request))); code != reason.MalformedRequest {
			t.Errorf("%v: %s", bad, code)
		}
	}
	l.verify()
}

// R30: a grant ends when it is revoked, used up, or its record or either agent
// goes; the first decision after that denies.
func TestR30_AGrantEnds(t *testing.T) {
	for name, end := range map[string]func(l *grantLab){
		"revoked": func(l *grantLab) {
			revoke := `{"namespace":"credentials","key":"token","to":"other"}`
			l.want(reason.NotFound, l.ask(wire.Propose, "low", "grant.revoke", revoke))
			l.want(reason.GrantedBy, l.read("other"))
			l.want(reason.GrantRevoked, l.ask(wire.Propose, "top", "grant.revoke", revoke))
			l.want(reason.NotFound, l.ask(wire.Propose, "top", "grant.revoke", revoke))
		},
		"used up": func(l *grantLab) {
			l.want(reason.GrantGiven, l.give("top", "other", object{"uses": 2}))
			l.want(reason.GrantedBy, l.read("other"))
			l.want(reason.GrantedBy, l.read("other"))
		},
		"record deleted and written again": func(l *grantLab) {
			l.want(reason.OwnerDelete, l.ask(wire.Propose, "top", "memory.delete", `{"owner_agent_id":"top","namespace":"credentials","key":"token","expected_revision":1}`))
			l.want(reason.OwnerWrite, l.ask(wire.Propose, "top", "memory.write", `{"owner_agent_id":"top","namespace":"credentials","key":"token","value":"y"}`))
		},
		"owner loses memory.read": func(l *grantLab) {
			l.want(reason.ControlDone, l.ask(wire.Control, AdminID, "apply", toJSON(object{"documents": []string{"kind: Agent\nid: top\ncapabilities: [memory.write]\n"}})))
		},
		"owner revoked": func(l *grantLab) {
			l.want(reason.ControlDone, l.ask(wire.Control, AdminID, "agent.revoke", `{"agent_id":"top"}`))
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newGrantLab(t)
			l.want(reason.GrantGiven, l.give("top", "other", nil))
			l.want(reason.GrantedBy, l.read("other"))
			end(l)
			o := l.read("other")
			l.want(reason.GrantRequired, o)
			if o.Read != nil {
				t.Error("a value all the same")
			}
			l.verify()
		})
	}
}

// R30, kind 16: no yes outlives the expiry. A grant of five seconds, asked for
// every second for ten, over a snapshot too.
func TestR30_NoYesOutlivesTheExpiry(t *testing.T) {
	l := newGrantLab(t)
	l.want(reason.GrantGiven, l.give("top", "other", object{"expires_seconds": 5}))
	start := l.state.Time
	r, code := wire.Decode(wire.Propose, "memory.read", []byte(`{"owner_agent_id":"top","namespace":"credentials","key":"token"}`))
	if code != "" {
		t.Fatal(code)
	}
	b, err := l.state.EncodeSnapshot(nil)
	if err != nil {
		t.Fatal(err)
	}
	restored, err := projection.DecodeSnapshot(b, nil)
	if err != nil {
		t.Fatal(err)
	}
	expires := l.state.Grants(0)[0].Expires
	for second := range events.Time(11) {
		for _, now := range []events.Time{start + second*1_000_000, expires - 1, expires} {
			for _, state := range []*projection.State{l.state, restored} {
				o := Decide(state, &Proposal{Lane: wire.Propose, Subject: "other", Operation: "memory.read", Request: r, Now: now})
				want := reason.GrantRequired
				if now < expires {
					want = reason.GrantedBy
				}
				if o.Decision.Reason != string(want) {
					t.Errorf("at %d of %d: %s", now, expires, o.Decision.Reason)
				}
			}
		}
	}
}
