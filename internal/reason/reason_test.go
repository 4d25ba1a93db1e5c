package reason

import (
	"os"
	"regexp"
	"testing"
)

func TestTableIsClosedAndUnambiguous(t *testing.T) {
	form := regexp.MustCompile(`^[a-z]+(_[a-z]+)*$`)
	seen := map[Code]bool{}
	for _, info := range All() {
		if !form.MatchString(string(info.Code)) || info.Text == "" || info.Group == "" {
			t.Errorf("row %+v is incomplete", info)
		}
		if seen[info.Code] {
			t.Errorf("%s stands twice", info.Code)
		}
		seen[info.Code] = true
		if info.Allowed != (info.Number == 200) || info.Allowed != (info.Exit == 0) {
			t.Errorf("%s: allowed %v, number %d, exit %d disagree", info.Code, info.Allowed, info.Number, info.Exit)
		}
		if info.Allowed && info.Retryable {
			t.Errorf("%s is allowed and retryable", info.Code)
		}
	}
}

func TestUnknownCodeAllowsNothing(t *testing.T) {
	for _, c := range []Code{"", "allowed", "ok", "STEP_ALLOWED"} {
		if c.Allowed() {
			t.Errorf("%q allows", c)
		}
		if info, ok := Of(c); ok || info.Exit == 0 {
			t.Errorf("%q is known: %+v", c, info)
		}
	}
}

func TestToldHidesWhyARecordIsUnavailable(t *testing.T) {
	for _, info := range All() {
		hidden := info.Group == "memory, log only"
		if told := Told(info.Code); hidden != (told == RecordUnavailable && info.Code != RecordUnavailable) {
			t.Errorf("%s is told as %s", info.Code, told)
		}
	}
}

func TestReasonsDocumentIsCurrent(t *testing.T) {
	b, err := os.ReadFile("../../docs/REASONS.md")
	if err != nil {
		t.Fatal(err)
	}
	if string(b) != Markdown() {
		t.Error("docs/REASONS.md is stale: run go generate ./internal/reason")
	}
}
