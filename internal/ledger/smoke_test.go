package ledger

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/nats-io/nkeys"

	"github.com/ledgerd/ledgerd/internal/wire"
)

func TestSmoke(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	if err := Init(dir, InitOptions{}); err != nil {
		t.Fatal(err)
	}
	l, err := Open(Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- l.Run(ctx) }()
	ask := func(lane wire.Lane, who, op, body string) string {
		req, code := wire.Decode(lane, op, []byte(body))
		ch := make(chan Answer, 1)
		if c := l.Submit(&Proposal{Lane: lane, Subject: who, Operation: wire.Known(lane, op), Refused: code, Request: req}, func(a Answer) { ch <- a }); c != "" {
			t.Fatal(c)
		}
		a := <-ch
		t.Log(string(a.Reply))
		return string(a.Reply)
	}
	key := func() string { k, _ := nkeys.CreateUser(); p, _ := k.PublicKey(); return p }
	doc := "apiVersion: ledgerd/v1\\nkind: Policy\\nversion: lab-1\\nenvironment: [memory.read, memory.write]\\n"
	ask(wire.Control, "admin", "apply", fmt.Sprintf(`{"documents":["%s","kind: Agent\nid: boss\ncapabilities: [memory.read, memory.write]\npublic_key: %s\n","kind: Memory\nowner: boss\nnamespace: project\nkey: region\nvalue: EU\nvisibility: descendants\n"]}`, doc, key()))
	ask(wire.Propose, "boss", "memory.write", `{"owner_agent_id":"boss","namespace":"notes","key":"a","value":{"x":1},"operation_id":"1"}`)
	ask(wire.Propose, "boss", "memory.write", `{"owner_agent_id":"boss","namespace":"notes","key":"a","value":{"x":1},"operation_id":"1"}`)
	ask(wire.Propose, "boss", "memory.read", `{"namespace":"notes","key":"a"}`)
	ask(wire.Propose, "boss", "memory.read", `{"namespace":"project","key":"region"}`)
	ask(wire.Propose, "boss", "memory.read", `{"namespace":"project","key":"regio"}`)
	ask(wire.Propose, "boss", "memory.read", `{"namespace":"project","key":"regio","actor_id":"x"}`)
	ask(wire.Propose, "boss", "sop.validate", `{"sop":{"sop_id":"s","version":1,"steps":[{"step_id":"a","action":"memory.read","arguments":{"namespace":"project","key":"region"}},{"step_id":"b","action":"external.upload"}]}}`)
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	l2, err := Open(Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	ctx2, cancel2 := context.WithCancel(context.Background())
	cancel2()
	if err := l2.Run(ctx2); err != nil {
		t.Fatal(err)
	}
}
