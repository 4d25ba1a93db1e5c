package sop

import (
	"testing"

	"github.com/ledgerd/ledgerd/internal/policy"
	"github.com/ledgerd/ledgerd/internal/reason"
)

// A step that writes a mandatory name is refused what the direct write would
// be: a value that its combination cannot take.
func TestR29_AStepWritesOnlyBooleansUnderAMandatoryName(t *testing.T) {
	scope := Scope{Agent: "a", Lineage: []string{"a"}, World: &world{
		known: func(string) bool { return true }, holds: func(string) bool { return true },
		write: func(namespace string, value []byte) reason.Code {
			if namespace == "policy" && !policy.Typed(policy.AllTrue, value) {
				return reason.MandatoryTypeMismatch
			}
			return ""
		},
	}}
	for _, c := range []struct {
		namespace, value string
		want             reason.Code
	}{
		{"policy", `true`, reason.StepAllowed}, {"policy", `"true"`, reason.MandatoryTypeMismatch},
		{"policy", `1`, reason.MandatoryTypeMismatch}, {"notes", `1`, reason.StepAllowed},
	} {
		procedure, code := Parse(value(t, `{"sop_id":"s","version":1,"steps":[{"step_id":"w","action":"memory.write","arguments":{"owner_agent_id":"a","namespace":"`+c.namespace+`","key":"k","value":`+c.value+`}}]}`))
		if code != "" {
			t.Fatal(code)
		}
		results, whole := Validate(procedure, scope)
		if results[0].Reason != c.want || (whole == reason.SOPAdmitted) != (c.want == reason.StepAllowed) {
			t.Errorf("%s in %s: %s, whole %s", c.value, c.namespace, results[0].Reason, whole)
		}
	}
}
