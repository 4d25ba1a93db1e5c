package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/ledgerd/ledgerd/client"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/natsapi"
	"github.com/ledgerd/ledgerd/internal/replay/replaytest"
)

// TestR90_EveryDoorDecidesAlike sends the same proposals over plain NATS,
// through the Go client and by the command line, and compares what was decided.
func TestR90_EveryDoorDecidesAlike(t *testing.T) {
	dir := t.TempDir()
	o := ledger.Options{Dir: filepath.Join(dir, "data")}
	if err := ledger.Init(o.Dir, ledger.InitOptions{}); err != nil {
		t.Fatal(err)
	}
	l, err := ledger.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	node, err := natsapi.Start(l, natsapi.Config{StoreDir: filepath.Join(dir, "stream"), Listen: "127.0.0.1:0", Version: "0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	creds := filepath.Join(dir, "creds")
	if code, out, errs := ledgerd(t, "apply", "-f", "demo.yaml", "--creds-dir", creds, "--server", node.URL(), "--as", "admin", "--creds", filepath.Join(o.Dir, "keys", "admin.nk")); code != 0 {
		t.Fatalf("apply: exit %d\n%s%s", code, out, errs)
	}
	for _, c := range []struct {
		as, operation, request string
		command                []string
		exit                   int
	}{
		{"researcher", "memory.read", `{"namespace":"project","key":"client_region"}`, []string{"memory", "get", "project", "client_region"}, 0},
		{"formatter", "memory.read", `{"namespace":"credentials","key":"storage_token"}`, []string{"memory", "get", "credentials", "storage_token"}, 4},
		{"researcher", "memory.write", `{"owner_agent_id":"report_manager","namespace":"report","key":"retention_days","value":1,"expected_revision":1}`,
			[]string{"memory", "put", "report", "retention_days", "1", "--owner", "report_manager", "--revision", "1"}, 3},
		{"formatter", "memory.write", `{"owner_agent_id":"formatter","namespace":"notes","key":"x","value":1}`, []string{"memory", "put", "notes", "x", "1"}, 3},
		{"researcher", "memory.delete", `{"owner_agent_id":"researcher","namespace":"notes","key":"none","expected_revision":1}`,
			[]string{"memory", "delete", "notes", "none", "--revision", "1"}, 5},
		{"researcher", "sop.validate", `{"sop":{"sop_id":"s","version":1,"steps":[{"step_id":"a","action":"artifact.save"},{"step_id":"b","action":"external.upload"}]}}`,
			[]string{"sop", "validate", "SOP"}, 3},
	} {
		seedFile := filepath.Join(creds, c.as+".nk")
		plain := overNATS(t, node.URL(), c.as, seedFile, c.operation, c.request)
		sdk := overClient(t, node.URL(), c.as, seedFile, c.operation, c.request)
		command := append([]string(nil), c.command...)
		if command[0] == "sop" {
			command[2] = filepath.Join(dir, "sop.json")
			sop := strings.TrimSuffix(strings.TrimPrefix(c.request, `{"sop":`), "}")
			if err := os.WriteFile(command[2], []byte(sop), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		code, out, errs := ledgerd(t, append(command, "--server", node.URL(), "--as", c.as, "--creds", seedFile, "-o", "json")...)
		if code != c.exit {
			t.Errorf("%v: exit %d, want %d: %s", c.command, code, c.exit, errs)
		}
		if cli := decided(t, []byte(out)); plain != sdk || plain != cli {
			t.Errorf("%s by %s:\nNATS    %s\nclient  %s\ncommand %s", c.operation, c.as, plain, sdk, cli)
		}
	}
	node.Drain()
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if err := node.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	replaytest.CheckLedger(t, o)
}

// decided is a reply without what is its own: receipt and operation id.
func decided(t *testing.T, reply []byte) string {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal(reply, &m); err != nil {
		t.Fatalf("%s: %v", reply, err)
	}
	for _, own := range []string{"seq", "event_id", "hash", "operation_id"} {
		delete(m, own)
	}
	b, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func overNATS(t *testing.T, url, id, seedFile, operation, request string) string {
	t.Helper()
	seed, err := os.ReadFile(seedFile)
	if err != nil {
		t.Fatal(err)
	}
	key, err := nkeys.FromSeed([]byte(strings.TrimSpace(string(seed))))
	if err != nil {
		t.Fatal(err)
	}
	public, err := key.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect(url, nats.Nkey(public, key.Sign), nats.CustomInboxPrefix("_INBOX."+id))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	m, err := nc.Request("gov.main.propose."+id+"."+operation, []byte(request), 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	return decided(t, m.Data)
}

func overClient(t *testing.T, url, id, seedFile, operation, request string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	c, err := client.Connect(ctx, client.Options{Server: url, ID: id, SeedFile: seedFile})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var body map[string]any
	if err := json.Unmarshal([]byte(request), &body); err != nil {
		t.Fatal(err)
	}
	r, err := c.Propose(ctx, operation, body)
	if err != nil {
		t.Fatal(err)
	}
	return decided(t, r.Raw)
}
