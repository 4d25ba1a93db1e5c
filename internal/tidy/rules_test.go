package tidy

import (
	"flag"
	"fmt"
	"go/ast"
	"os"
	"regexp"
	"sort"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite docs/RULES.md")

// rules are what ledgerd keeps, a line each; docs/RULES.md adds the tests.
var rules = []struct{ id, text string }{
	{"R1", "A descendant reads a record shown to it, and learns its owner and revision."},
	{"R2", "`descendants` reaches any depth; who lacks memory.write writes nothing."},
	{"R3", "A secret reaches no descendant, in no reply, event, stream message, log line, error or export."},
	{"R4", "`children` shows a record to the direct child."},
	{"R5", "A write to another's record is denied and changes nothing."},
	{"R6", "A procedure with one forbidden step calls no handler, and denies that step and the whole."},
	{"R7", "An unknown action is denied, with another code than a denied one."},
	{"R8", "Every decision names subject, operation, resource, reason code and policy version."},
	{"R10", "The acting agent is whoever the connection authenticated; a field that names an actor is refused and logged."},
	{"R11", "An agent's child has that agent as parent; only a registrar or admin names one."},
	{"R12", "Every fault of a registration has its own code; ids and keys are used once, for ever."},
	{"R13", "A revoked agent's connections are cut, its subtree loses every capability, its id is never given again."},
	{"R14", "Effective = environment ∩ declared(root) ∩ … ∩ declared(agent), computed at the moment of decision."},
	{"R15", "effective(child) ⊆ effective(parent), for every history."},
	{"R16", "No proposal widens anyone's rights; a child is given only what its parent effectively holds."},
	{"R17", "Use limits an agent's own acts, and nothing that it passes on."},
	{"R20", "A record has namespace, key, value, owner, visibility, class and revision, and is stored under its owner."},
	{"R21", "A read returns the nearest visible record; hidden and missing are answered alike, and told apart in the log."},
	{"R22", "The owner sees its own; children, descendants mean what they say; nobody sees down or across."},
	{"R23", "A read needs memory.read even for one's own record; a write needs memory.write."},
	{"R24", "Only the owner writes or deletes."},
	{"R25", "Revisions count from 1, deletions included, and go on after a deletion."},
	{"R26", "An update names the revision it expects; of two on one revision exactly one wins."},
	{"R27", "An update that does not mention visibility leaves it."},
	{"R28", "Guards are tried in a fixed, documented order."},
	{"R29", "Mandatory records combine over the lineage; a descendant only tightens; a wrong type denies."},
	{"R30", "Secrets are never read through the hierarchy; a grant lends one record to one agent, ends, and is revoked."},
	{"R31", "Task state belongs to a run or has a time to live, is gone from that moment on, and an event says so once."},
	{"R32", "Writes and value rules say where an agent may write, and what."},
	{"R33", "Loading refuses an unknown owner and an existing record, and is itself an authorised, logged event."},
	{"R40", "A procedure is judged whole; one bad step refuses all; every step has its logged decision."},
	{"R41", "Step checks have a fixed order."},
	{"R42", "A procedure has exactly the documented fields and types."},
	{"R43", "Handlers are looked for after authorisation and before the first effect; one missing, and nothing happens."},
	{"R44", "Judging touches no tool."},
	{"R45", "Results come in step order; every effect leaves started and finished."},
	{"R46", "Each step is judged again before its effect; what has become forbidden ends the run."},
	{"R51", "A retried operation id returns the recorded outcome, never a value; other content is a conflict."},
	{"R52", "A crash between an effect and its record leaves the run in doubt, never repeated or forgotten; a person decides."},
	{"R53", "Timeouts, cancellation and output limits are enforced, and each ends in an event."},
	{"R60", "No policy, an unreadable policy, an unknown field or event: deny."},
	{"R61", "Rules on arguments cover path, host, MIME type, size, record id, classification of the object, namespace and addressee; numbers are compared exactly."},
	{"R62", "Restrictions are only ever added up over the lineage; adding one never turns a denial into an allowance."},
	{"R63", "A policy change is an event with version and digest; two documents never share a version."},
	{"R64", "An emergency deny takes capabilities from a subtree or all, reaches runs, lists what is in flight, and is lifted only explicitly."},
	{"R66", "What a request can cause, and what it weighs, is taken from its sender's rate and its tree's; what is over is refused with its own code. Trees, and agents within a tree, take turns; what waits is bounded and leaves room for whoever sends little; open runs are limited."},
	{"R67", "Where the ledger has signers, an unsigned or wrongly signed policy is refused; signers change each other."},
	{"R70", "Every change and decision is an event; an answer leaves only after its events are on disk."},
	{"R71", "The bytes hashed are the bytes stored, published and exported."},
	{"R72", "Nobody but the single writer appends; a second is refused."},
	{"R73", "Values are never in an event; equal values have different commitments."},
	{"R74", "Each event stands in the stream once, in order; a lost stream is refilled, a disagreeing one stops the feed."},
	{"R75", "A kill at any moment loses no answered event and leaves a log that verifies."},
	{"R76", "Refusals at the connection are recorded, rate-limited."},
	{"R77", "Persuasive text changes no decision."},
	{"R78", "Golden logs open; an unknown type or version stops replay."},
	{"R80", "verify finds every changed byte and names the event."},
	{"R81", "With a remembered checkpoint verify finds truncation and rewriting; without one it says it did not look."},
	{"R82", "Every decision is judged again; a forged one is found though it was signed with the log's own key."},
	{"R83", "An erasure takes the bytes off the disk and leaves a log that verifies and says under which event; a payload missing without one is a failure."},
	{"R84", "A second implementation, written from the format alone, agrees."},
	{"R90", "The rules hold through every front door: NATS, Go client, command line."},
	{"R91", "Agents hold propose, query, their inbox and announcements, and nothing of the stream or the server."},
	{"R92", "Everything an agent can reach is listed and documented; nothing else answers."},
}

func TestRulesHaveTestsAndTheDocumentSaysWhich(t *testing.T) {
	prefix := regexp.MustCompile(`^(?:Test|Fuzz)((?:R\d+_)+)`)
	tests := map[string][]string{}
	for _, s := range sources(t) {
		if !s.test() {
			continue
		}
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			m := prefix.FindStringSubmatch(f.Name.Name)
			if m == nil {
				continue
			}
			for _, id := range strings.Split(strings.TrimSuffix(m[1], "_"), "_") {
				tests[id] = append(tests[id], s.pkg+" "+f.Name.Name)
			}
		}
	}
	var b strings.Builder
	b.WriteString("# Rules and the tests that show them\n\nGenerated from the tests' names: `go test ./internal/tidy -run Rules -update`.\n\n| rule | ledgerd keeps | tests |\n|---|---|---|\n")
	known := map[string]bool{}
	for _, r := range rules {
		known[r.id] = true
		list := tests[r.id]
		sort.Strings(list)
		if len(list) == 0 {
			t.Errorf("%s has no test named Test%s_…", r.id, r.id)
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", r.id, r.text, "`"+strings.Join(list, "`<br>`")+"`")
	}
	for id, list := range tests {
		if !known[id] {
			t.Errorf("%v carries %s, which is not in the list", list, id)
		}
	}
	const document = "../../docs/RULES.md"
	if *update {
		if err := os.WriteFile(document, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(document); err != nil {
		t.Error(err)
	} else if string(got) != b.String() {
		t.Errorf("docs/RULES.md is stale: go test ./internal/tidy -run Rules -update")
	}
}
