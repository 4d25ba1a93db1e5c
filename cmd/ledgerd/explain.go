package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/ledgerd/ledgerd/client"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// showExplanation shows every guard in the order it was tried, what brought a
// denial about, and what would be allowed.
func (a *app) showExplanation(e *client.Explanation) error {
	return a.showStruct(e, func() {
		w := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
		defer w.Flush()
		fmt.Fprintf(w, "%s\t%s %s %s\n", verdict(e.Allowed), clean(e.Subject), clean(e.Operation), clean(e.Resource))
		fmt.Fprintf(w, "reason\t%s: %s\n", clean(string(e.ReasonCode)), clean(e.Message))
		row(w, "owner", e.Owner)
		whyRows(w, &e.Why)
		if len(e.Faults) == 0 { // which say it better
			for _, note := range e.Notes {
				row(w, "note", note)
			}
		}
		row(w, "lineage", strings.Join(e.Lineage, " < "))
		row(w, "policy", e.PolicyVersion)
		guardRows(w, "guard", e.Guards)
		for i := range e.Decisions {
			d := &e.Decisions[i]
			fmt.Fprintf(w, "step\t%s  %s  %s\n", clean(d.StepID), clean(d.Action), clean(string(d.ReasonCode)))
			whyRows(w, &d.Why)
			if !d.Allowed {
				guardRows(w, "  guard", d.Guards)
			}
		}
		fmt.Fprintf(w, "seq\t%d\n", e.Seq)
		if e.Erased > 0 {
			fmt.Fprintf(w, "request\terased under #%d\n", e.Erased)
		}
	})
}

func guardRows(w io.Writer, name string, list []wire.Guard) {
	for _, g := range list {
		fmt.Fprintf(w, "%s\t%s: %s %s\n", name, clean(g.Guard), clean(g.Result), clean(string(g.ReasonCode)))
	}
}

// lackWords say why a level lacks a capability.
var lackWords = map[string]string{
	projection.LackDenied:      "an emergency deny takes it",
	projection.LackEnvironment: "not in it",
	projection.LackRevoked:     "revoked",
	projection.LackDeclared:    "does not declare it",
	projection.LackUse:         "passes it on and does not use it",
}

func whyRows(w *tabwriter.Writer, y *wire.Why) {
	for _, r := range y.Rules {
		text := clean(r.ID)
		if r.Owner != "" {
			text = clean(r.Owner) + ":" + text
		}
		if r.Require != "" {
			text += "  " + clean(r.Require)
		}
		if r.Error != "" {
			text += "  (" + clean(r.Error) + ")"
		}
		fmt.Fprintf(w, "failed\t%s\n", text)
	}
	for _, f := range y.Faults {
		text := clean(f.At) + ": " + clean(f.Fault)
		if f.Rule != "" {
			text = "value rule of " + clean(f.Rule) + ": " + text
		}
		fmt.Fprintf(w, "fault\t%s\n", text)
		if f.Place != "" {
			fmt.Fprintf(w, "schema\t%s says %s\n", clean(f.Place), clean(f.Says))
		}
		row(w, "allowed values", f.Schema)
	}
	for _, r := range y.Removed {
		fmt.Fprintf(w, "removed\t%s, by %s", clean(r.Capability), clean(r.By))
		if r.Why != "" {
			fmt.Fprintf(w, ": %s", lackWords[r.Why])
		}
		fmt.Fprintln(w)
	}
	for _, l := range y.Writes {
		fmt.Fprintf(w, "writes\t%s only %s\n", clean(l.AgentID), clean(strings.Join(l.Writes, " ")))
	}
	if y.LeftOut > 0 {
		fmt.Fprintf(w, "more\t%d entries are left out\n", y.LeftOut)
	}
	if i := y.Instead; i != nil {
		row(w, "did you mean", i.Action)
		row(w, "nearest that may", i.AgentID)
		row(w, "what it may do", strings.Join(i.Capabilities, " "))
		row(w, "where it may write", strings.Join(i.Writes, " "))
		if i.Revision > 0 {
			fmt.Fprintf(w, "revision\t%d is the one to expect\n", i.Revision)
		}
	}
}
