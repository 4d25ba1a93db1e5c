package ledgerdtest_test

import (
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/client"
	"github.com/ledgerd/ledgerd/ledgerdtest"
)

const policy = `apiVersion: ledgerd/v1
kind: Policy
version: lab-1
environment: [memory.read, memory.write, document.summarize, artifact.save, external.upload]
actions:
  document.summarize: {}
  artifact.save: {}
  external.upload: {}
---
kind: Agent
id: report_manager
capabilities: [memory.read, memory.write, document.summarize, artifact.save, external.upload]
---
kind: Agent
id: researcher
parent: report_manager
capabilities: [memory.read, memory.write, document.summarize, artifact.save]
---
kind: Principal
id: tools
role: handler
actions: [document.summarize, artifact.save, external.upload]
`

// A test of one's own: the procedure that uploads touches no tool, the one that
// does not upload runs, step by step.
func Test(t *testing.T) {
	l := ledgerdtest.Start(t, policy)
	tools := l.Spy("tools")
	tools.Return("document.summarize", map[string]int{"words": 120})
	researcher := l.As("researcher")

	steps := []client.Step{
		{ID: "summarize", Action: "document.summarize"},
		{ID: "save", Action: "artifact.save", Arguments: map[string]string{"path": "draft/report.md"}},
		{ID: "upload", Action: "external.upload"},
	}
	reply, err := researcher.SubmitSOP(t.Context(), client.SOPRequest{SOP: client.SOP{ID: "export", Version: 1, Steps: steps}}, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if reply.Allowed || len(tools.EffectsSeen()) != 0 {
		t.Errorf("%s, and the tools were asked for %v", reply.ReasonCode, tools.EffectsSeen())
	}

	reply, err = researcher.SubmitSOP(t.Context(), client.SOPRequest{SOP: client.SOP{ID: "report", Version: 1, Steps: steps[:2]}}, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if !reply.Allowed || reply.Run.State != client.RunFinished || tools.Calls("artifact.save") != 1 {
		t.Errorf("%s", reply.Raw)
	}
	if summary := string(reply.Run.Results[0].Result); summary != `{"words":120}` {
		t.Errorf("the summary is %s", summary)
	}
}
