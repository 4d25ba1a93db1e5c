package ledgerdtest_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/client"
	"github.com/ledgerd/ledgerd/ledgerdtest"
)

const ruled = `apiVersion: ledgerd/v1
kind: Policy
version: ruled-1
environment: [memory.read, memory.write, document.summarize, external.upload, file.read]
actions:
  document.summarize: {}
  external.upload:
    require: [{id: open, that: 'mandatory("policy.external_upload") == true'}]
  file.read:
    arguments: {type: object, required: [path], additionalProperties: false, properties: {path: {type: string, maxLength: 200}}}
    require: [{id: inside, that: 'args.path.within("workspace")'}]
namespaces:
  policy: {class: mandatory, combine: all_true}
---
kind: Agent
id: manager
capabilities: [memory.read, memory.write, document.summarize, external.upload, file.read]
---
kind: Agent
id: worker
parent: manager
capabilities: [memory.read, document.summarize, external.upload, file.read]
---
kind: Memory
owner: manager
namespace: policy
key: external_upload
value: true
---
kind: Principal
id: tools
role: handler
actions: [document.summarize, external.upload, file.read]
`

// R46: a rule is judged on the records of its moment, so that what the manager
// withdraws while the first step runs stops the second.
func TestR46_ARuleOfTheMomentCounts(t *testing.T) {
	l := ledgerdtest.Start(t, ruled)
	tools := l.Spy("tools")
	manager := l.As("manager")
	tools.Do("document.summarize", func(ctx context.Context, _ client.Effect) (any, error) {
		r, err := manager.Write(ctx, client.WriteRequest{Owner: "manager", Namespace: "policy", Key: "external_upload", Value: false, ExpectedRevision: 1})
		if err != nil || !r.Allowed {
			t.Errorf("%+v, %v", r, err)
		}
		return "done", nil
	})
	reply := submit(t, l.As("worker"), time.Minute, step("document.summarize", nil), step("external.upload", nil))
	if !reply.Allowed || reply.Run == nil || reply.Run.State != client.RunFailed || reply.Run.Reason != "requirement_failed" {
		t.Errorf("%s", reply.Raw)
	}
	if tools.Calls("document.summarize") != 1 || tools.Calls("external.upload") != 0 {
		t.Errorf("the tools were asked for %+v", tools.EffectsSeen())
	}
	last := story(l, 0)
	if got := strings.Join(last[len(last)-2:], ", "); got != "decision.denied sop.step s1 requirement_failed, run.failed s1 requirement_failed" {
		t.Errorf("the log ends with %s", got)
	}
}

// R61: a handler gets the bytes that were judged, in their one form, whatever
// the spelling that was sent.
func TestR61_HandlersGetTheJudgedForm(t *testing.T) {
	l := ledgerdtest.Start(t, ruled)
	tools := l.Spy("tools")
	worker := l.As("worker")
	for sent, judged := range map[string]string{
		`{ "b" : 1.50 , "a":"\u00e9\/" }`:        `{"a":"é/","b":1.50}`,
		`{"z":[ 1, {"y":2,"x":"\t"} ],"a":true}`: `{"a":true,"z":[1,{"x":"\t","y":2}]}`,
		`{}`:                                     `{}`,
	} {
		before := len(tools.EffectsSeen())
		// As JSON to be sent as it is: the SDK would write the arguments its own way.
		sop := json.RawMessage(`{"sop_id":"p","version":1,"steps":[{"step_id":"a","action":"document.summarize","arguments":` + sent + `}]}`)
		reply, err := worker.SubmitSOP(t.Context(), client.SOPRequest{SOP: sop}, time.Minute)
		if err != nil || !reply.Allowed || reply.Run.State != client.RunFinished {
			t.Fatalf("%v %s", err, reply.Raw)
		}
		seen := tools.EffectsSeen()
		if len(seen) != before+1 || string(seen[before].Arguments) != judged {
			t.Errorf("%s reached the handler as %s, want %s", sent, seen[before].Arguments, judged)
		}
	}
}

// ARG-06: where a path leads is not known to a rule, which sees its text alone:
// it refuses what reads two ways, and a handler that opens under a root refuses
// links out of it. Nothing outside is opened.
func TestARG06_LinksAreTheHandlersToRefuse(t *testing.T) {
	base := t.TempDir()
	outside := filepath.Join(base, "outside")
	work := filepath.Join(base, "root", "workspace")
	for _, dir := range []string{outside, work} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{filepath.Join(outside, "key"): "hidden-key", filepath.Join(work, "plain"): "plain text"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(outside, filepath.Join(work, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(outside, "key"), filepath.Join(work, "key")); err != nil {
		t.Fatal(err)
	}

	l := ledgerdtest.Start(t, ruled)
	tools := l.Spy("tools")
	root, err := os.OpenRoot(filepath.Join(base, "root"))
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	var opened atomic.Int64
	tools.Do("file.read", func(_ context.Context, e client.Effect) (any, error) {
		var arguments struct{ Path string }
		if err := e.Bind(&arguments); err != nil {
			return nil, err
		}
		b, err := root.ReadFile(arguments.Path)
		if err != nil {
			return nil, err
		}
		opened.Add(1)
		return string(b), nil
	})
	worker := l.As("worker")
	read := func(path string) *client.Reply {
		return submit(t, worker, time.Minute, step("file.read", map[string]string{"path": path}))
	}
	if r := read("workspace/plain"); !r.Allowed || r.Run.State != client.RunFinished || string(r.Run.Results[0].Result) != `"plain text"` {
		t.Errorf("%s", r.Raw)
	}
	for _, path := range []string{"workspace/link/", "workspace/link/../key", "/etc/passwd", "workspace/../workspace/plain", "elsewhere/x"} {
		if r := read(path); r.Allowed || !slices.Contains([]client.Reason{"requirement_error", "requirement_failed"}, r.ReasonCode) {
			t.Errorf("%s: %s", path, r.Raw)
		}
	}
	if n := tools.Calls("file.read"); n != 1 {
		t.Errorf("%d calls, want 1", n)
	}
	for _, path := range []string{"workspace/link/key", "workspace/key", "workspace/link"} {
		r := read(path)
		if !r.Allowed || r.Run.State != client.RunFailed || strings.Contains(string(r.Raw), "hidden-key") {
			t.Errorf("%s: %s", path, r.Raw)
		}
	}
	if opened.Load() != 1 {
		t.Errorf("%d files were opened, want the plain one", opened.Load())
	}
}
