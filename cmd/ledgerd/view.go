package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/ledgerd/ledgerd/client"
	"github.com/ledgerd/ledgerd/internal/reason"
)

// clean makes text that came from outside harmless on a terminal and in a line
// of a log: whatever does not print (control characters, escape sequences,
// marks that reorder text, invisible characters, bad UTF-8) is shown as a Go
// escape, and a backslash is doubled so that no one can imitate one.
func clean(s string) string {
	q := strconv.Quote(s)
	return strings.ReplaceAll(q[1:len(q)-1], `\"`, `"`)
}

// cleanLines is clean for our own text of several lines.
func cleanLines(s string) string {
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		lines[i] = strings.ReplaceAll(clean(line), `\\`, `\`)
	}
	return strings.Join(lines, "\n")
}

// showReply prints a decision in the format asked for; the error carries the
// exit code of a denial.
func (a *app) showReply(r *client.Reply) error {
	if err := a.show(r.Raw, func() { a.replyTable(r) }); err != nil {
		return err
	}
	if !r.Allowed {
		return denial(r.ReasonCode)
	}
	return nil
}

// denial ends the command with the exit code of a reason, everything being said.
func denial(code client.Reason) error {
	info, _ := client.ReasonOf(code)
	return &exitError{code: max(info.Exit, exitInternal)}
}

// show prints JSON from the ledger: as it came, as YAML, or by table.
func (a *app) show(raw []byte, table func()) error {
	switch a.output {
	case "json", "jsonl":
		_, err := fmt.Fprintf(a.stdout, "%s\n", safeJSON(raw))
		return err
	case "yaml":
		b, err := yamlOf(raw)
		if err != nil {
			return err
		}
		_, err = a.stdout.Write(b)
		return err
	}
	table()
	return nil
}

func (a *app) replyTable(r *client.Reply) {
	w := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
	defer w.Flush()
	fmt.Fprintf(w, "%s\t%s %s\n", verdict(r.Allowed), clean(r.Operation), clean(r.Resource))
	fmt.Fprintf(w, "reason\t%s: %s\n", clean(string(r.ReasonCode)), r.ReasonCode.Text())
	row(w, "owner", r.Owner)
	row(w, "rule", r.Rule)
	for _, f := range r.Failed {
		row(w, "failed", f)
	}
	if r.Operation == "apply" {
		row(w, "judged under", r.PolicyVersion)
	} else {
		row(w, "policy", r.PolicyVersion)
	}
	if rec := r.Record; rec != nil {
		fmt.Fprintf(w, "record\t%s:%s.%s  revision %d  %s  %s\n",
			clean(rec.Owner), clean(rec.Namespace), clean(rec.Key), rec.Revision, clean(rec.Visibility), clean(rec.Class))
		row(w, "expires", rec.Expires)
		row(w, "with run", rec.RunID)
		row(w, "combined", strings.Join(rec.Contributors, ", "))
		if rec.Value != nil {
			fmt.Fprintf(w, "value\t%s\n", safeJSON(rec.Value))
		} else if r.Allowed && a.operationID != "" && strings.HasSuffix(r.Operation, "memory.write") {
			row(w, "note", "recorded before: this is the outcome of the first time; the value is not repeated")
		}
	}
	for _, d := range r.Decisions {
		fmt.Fprintf(w, "step\t%s  %s  %s\n", clean(d.StepID), clean(d.Action), clean(string(d.ReasonCode)))
	}
	runRows(w, r.Run)
	if r.Epoch > 0 {
		fmt.Fprintf(w, "epoch\t%d\n", r.Epoch)
	}
	erasedRows(w, r.Erased)
	for _, e := range r.InFlight {
		fmt.Fprintf(w, "in flight\t%s  %s  %s of %s\n", clean(e.OperationID), clean(e.Action), clean(e.StepID), clean(e.Agent))
	}
	for _, d := range r.Documents {
		fmt.Fprintf(w, "%s\t%s %s%s\n", clean(d.Result), clean(d.Kind), clean(d.ID), clean(keptNote(d)))
	}
	if r.Seq > 0 {
		fmt.Fprintf(w, "receipt\tseq %d  hash %s\n", r.Seq, clean(r.Hash))
	}
	if r.Allowed {
		return
	}
	if r.ReasonCode == reason.ExpectedRevisionRequired {
		namespace, key, owner := recordNames(r.Resource)
		row(w, "hint", fmt.Sprintf("it exists: repeat with --revision N; \"ledgerd memory get %s %s --owner %s\" shows N", namespace, key, cmp.Or(owner, a.as)))
	}
	if r.Seq > 0 && r.ReasonCode != reason.NotPermittedForRole {
		row(w, "next", fmt.Sprintf("ledgerd explain --seq %d", r.Seq))
	}
}

// recordNames takes "owner:namespace.key" apart; the owner may be absent.
func recordNames(resource string) (namespace, key, owner string) {
	if before, after, ok := strings.Cut(resource, ":"); ok {
		owner, resource = before, after
	}
	dot := max(strings.LastIndexByte(resource, '.'), 0)
	return resource[:dot], strings.TrimPrefix(resource[dot:], "."), owner
}

// keptNote says what an apply left as it was.
func keptNote(d client.Document) string {
	if d.Result != "kept" || d.Kind != "Memory" {
		return ""
	}
	namespace, key, owner := recordNames(d.ID)
	return fmt.Sprintf(": the record exists; its value may differ from the file's, see \"ledgerd memory get %s %s\" as %s", namespace, key, owner)
}

func row(w *tabwriter.Writer, name, value string) {
	if value != "" {
		fmt.Fprintf(w, "%s\t%s\n", name, clean(value))
	}
}

// showList prints items that are JSON each: one a line for jsonl, in one array
// for json and yaml, by table otherwise.
func (a *app) showList(items [][]byte, table func()) error {
	if a.output == "jsonl" {
		for _, item := range items {
			fmt.Fprintf(a.stdout, "%s\n", item)
		}
		return nil
	}
	array := append(append([]byte("["), bytes.Join(items, []byte(","))...), ']')
	return a.show(array, table)
}

// showLines prints each item as JSON on a line of its own.
func showLines[Item any](a *app, items []Item) error {
	for _, item := range items {
		b, err := json.Marshal(item)
		if err != nil {
			return fmt.Errorf("encode: %w", err)
		}
		fmt.Fprintf(a.stdout, "%s\n", safeJSON(b))
	}
	return nil
}

// showStruct prints a value of our own making, one JSON object.
func (a *app) showStruct(v any, table func()) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	return a.show(b, table)
}
