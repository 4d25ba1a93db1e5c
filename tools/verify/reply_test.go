package main

import (
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/audit/logtest"
	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// TestR81_ForgedReplies: a reply is held against its event, wherever the event
// is at hand; with a proof alone it is said that only seq and hash are shown.
// The implementation in Python agrees.
func TestR81_ForgedReplies(t *testing.T) {
	l := logtest.Sample("ledgerd.example/replies", 1, 12)
	seq := int(l.Add("researcher", 0, &events.Decision{Subject: "researcher", Lineage: []string{"researcher"}, Operation: "memory.read",
		Resource: "hr.salary", Reason: "not_visible_from", PolicyVersion: "lab-1", OperationID: "op-x", Owner: "researcher", Blind: strings.Repeat("0", 32)}))
	p := &promised{t, t.TempDir(), l}
	e, err := events.Parse(l.Entries[seq-1])
	if err != nil {
		t.Fatal(err)
	}
	of := wire.Reply{Decision: e.Body.(*events.Decision), Seq: e.Seq, EventID: e.ID, Hash: events.LeafHash(l.Entries[seq-1])}
	told := string(of.Encode())
	of.Full = true
	full := string(of.Encode())
	dir, proof, event := export(t, l.Files()), p.file("proof", inclusion(t, l, seq)), p.file("event", l.Entries[seq-1])
	for what, c := range map[string]struct{ reply, member string }{
		"as it was told":   {told, ""},
		"as admins are":    {full, ""},
		"allowed":          {strings.Replace(told, `"allowed":false`, `"allowed":true`, 1), "allowed"},
		"allowed, as text": {strings.Replace(told, `"allowed":false`, `"allowed":"false"`, 1), "allowed"},
		"another reason":   {strings.Replace(told, "record_unavailable", "action_allowed", 1), "reason_code"},
		"another hidden":   {strings.Replace(told, "record_unavailable", "record_not_found", 1), "reason_code"},
		"another subject":  {strings.Replace(told, `"subject":"researcher"`, `"subject":"manager"`, 1), "subject"},
		"operation":        {strings.Replace(told, "memory.read", "memory.write", 1), "operation"},
		"resource":         {strings.Replace(told, "hr.salary", "hr.salaries", 1), "resource"},
		"policy":           {strings.Replace(told, "lab-1", "lab-2", 1), "policy_version"},
		"operation id":     {strings.Replace(told, "op-x", "op-y", 1), "operation_id"},
		"owner":            {strings.Replace(full, `"owner":"researcher"`, `"owner":"manager"`, 1), "owner"},
		"rule":             {strings.Replace(told, `{"type"`, `{"rule":"free","type"`, 1), "rule"},
	} {
		if (what != "as it was told") == (c.reply == told) {
			t.Fatal(what)
		}
		forged, exit := p.file("reply", []byte(c.reply)), 0
		if c.member != "" {
			exit = 1
		}
		for _, args := range [][]string{{"--export", dir}, {"--proof", proof, "--event", event}} {
			args = append(args, "--receipt", forged, "--vkey", l.VKey)
			got, r := verifyJSON(t, args...)
			if got != exit || exit == 1 && (len(r.Faults) != 1 || r.Faults[0].Where != c.member) {
				t.Errorf("%s: exit %d: %+v", what, got, r.Faults)
			}
			if args[0] == "--export" {
				args = args[1:]
			}
			if other, said := python(t, args...); other != exit || !strings.Contains(said, c.member) {
				t.Errorf("%s: exit %d in Python: %s", what, other, said)
			}
		}
		args := []string{"--proof", proof, "--receipt", forged, "--vkey", l.VKey}
		if got, r := verifyJSON(t, args...); got != 0 || !strings.Contains(open(r), "not covered by the hash") {
			t.Errorf("%s, a proof alone: exit %d: %+v", what, got, r)
		}
		if got, said := python(t, args...); got != 0 || !strings.Contains(said, "the hash does not cover it") {
			t.Errorf("%s, a proof alone: exit %d in Python: %s", what, got, said)
		}
	}
	written := of
	written.Seq, written.Hash = 6, events.LeafHash(l.Entries[5])
	w, _ := events.Parse(l.Entries[5])
	written.EventID = w.ID
	if got, r := verifyJSON(t, "--export", dir, "--receipt", p.file("reply", written.Encode()), "--vkey", l.VKey); got != 1 || !failed(r, "receipt") {
		t.Errorf("a reply of what is no decision: exit %d: %+v", got, r)
	}
	if got, r := verifyJSON(t, "--proof", proof, "--receipt", p.receipt(seq), "--vkey", l.VKey); got != 0 || strings.Contains(open(r), "not covered") {
		t.Errorf("a receipt has nothing beside it: exit %d: %+v", got, r)
	}
	if got, r := verifyJSON(t, "--proof", proof, "--event", p.file("other", l.Entries[0]), "--receipt", p.receipt(seq), "--vkey", l.VKey); got != 1 || !failed(r, "event") {
		t.Errorf("another event: exit %d: %+v", got, r)
	}
	if got, _ := verifyJSON(t, "--proof", proof, "--receipt", p.receipt(seq), "--event", event); got != audit.ExitImpossible {
		t.Errorf("without a key: exit %d", got)
	}
}
