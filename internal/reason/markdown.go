package reason

import (
	"fmt"
	"strings"
)

// Markdown renders the table as docs/REASONS.md.
func Markdown() string {
	var b strings.Builder
	b.WriteString("# Reason codes\n\n")
	b.WriteString("Generated from the table in `internal/reason`; do not edit. Run `go generate ./internal/reason` after a change there.\n\n")
	b.WriteString("Every outcome carries exactly one code. Codes are never renamed or reused. *Number* is the `Nats-Service-Error-Code`\n")
	b.WriteString("(allowed outcomes carry none), *exit* the exit code of the command line, *retry* says that the same request with the\n")
	b.WriteString("same operation id may succeed later unchanged.\n")
	group := ""
	for _, info := range table {
		if info.Group != group {
			group = info.Group
			fmt.Fprintf(&b, "\n## %s\n\n| code | number | exit | retry | meaning |\n|---|---|---|---|---|\n", group)
		}
		retry := "no"
		if info.Retryable {
			retry = "yes"
		}
		fmt.Fprintf(&b, "| `%s` | %d | %d | %s | %s |\n", info.Code, info.Number, info.Exit, retry, info.Text)
	}
	return b.String()
}
