package replaytest

import (
	"crypto/sha256"
	"fmt"
	"strings"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/policy"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// SOP is the request to validate a procedure of one step per action, the
// arguments of each an object.
func SOP(id string, steps ...string) string {
	return fmt.Sprintf(`{"sop":{"sop_id":%q,"version":1,"steps":[%s]},"operation_id":"op-%s"}`, id, strings.Join(steps, ","), id)
}

// Scenario has the family do everything that this release can decide, allowed
// and denied, so that the log holds every type of event and most reasons.
func (s *Session) Scenario() {
	s.T.Helper()
	s.Propose("nobody", "memory.read", `{"namespace":"project","key":"client_region"}`)
	s.Control(ledger.AdminID, "memory.load", `{"owner_agent_id":"report_manager","namespace":"a","key":"b","value":1,"visibility":"private"}`)
	s.Control(ledger.AdminID, "apply", ApplyRequest("kind: Agent\nid: x\ncapabilities: [nothing]\n"))
	s.Family()
	s.memory()
	s.actions()
	s.registrations()
	s.doors()
	s.runs()
	s.emergencies()
	s.revocations()
}

// runs has procedures run to each of their ends. There is a handler, tools, that
// saves artifacts; what is dispatched goes nowhere, and the scenario reports.
func (s *Session) runs() {
	s.Hello("tools", []string{"artifact.save"})
	submit := func(id string, steps ...string) Reply {
		return s.Propose("researcher", "sop.submit", strings.Replace(SOP(id, steps...), "op-", "run-", 1))
	}
	save, note := `{"step_id":"save","action":"artifact.save","arguments":{"path":"a"}}`, `{"step_id":"note","action":"memory.write","arguments":{"owner_agent_id":"researcher","namespace":"notes","key":"run","value":[1]}}`
	report := func(r Reply, rest string) {
		operation := r.Run.RunID + "/save"
		request, _ := wire.DecodeReport([]byte(fmt.Sprintf(`{"operation_id":%q,%s}`, operation, rest)))
		answered := make(chan struct{})
		s.Report("tools", request, func(ledger.Answer) { close(answered) })
		<-answered
	}
	task := `{"step_id":"task","action":"memory.write","arguments":{"owner_agent_id":"researcher","namespace":"tasks","key":"at","value":1}}`
	submit("task", task, `{"step_id":"task2","action":"memory.read","arguments":{"namespace":"tasks","key":"at"}}`)
	submit("task-again", task)
	const done = `"ok":true,"result":{"bytes":5}`
	report(submit("whole", note, save, `{"step_id":"look","action":"memory.read","arguments":{"namespace":"notes","key":"run"}}`), done)
	submit("whole", note, save, `{"step_id":"look","action":"memory.read","arguments":{"namespace":"notes","key":"run"}}`)
	report(submit("stale", save, note), done) // the note is there by then
	report(submit("broken", save), `"ok":false,"error":"no space"`)
	report(submit("large", save), `"ok":true,"result":"`+strings.Repeat("x", events.ValueBytesMax)+`"`)
	submit("forbidden", `{"step_id":"a","action":"external.upload"}`)
	cancelled := submit("unwanted", save, `{"step_id":"more","action":"artifact.save"}`)
	s.Propose("researcher", "run.cancel", fmt.Sprintf(`{"run_id":%q,"operation_id":"cancel"}`, cancelled.Run.RunID))
	s.Propose("formatter", "run.cancel", fmt.Sprintf(`{"run_id":%q}`, cancelled.Run.RunID))
	report(cancelled, done)
	s.Propose("researcher", "run.cancel", fmt.Sprintf(`{"run_id":%q}`, cancelled.Run.RunID))
	s.doubts(submit, report)
	submit("open", save)
	s.Hello("tools", nil)
	submit("nobody", save)
}

// doubts has effects that are not reported in time, under a policy that gives
// them little.
func (s *Session) doubts(submit func(string, ...string) Reply, report func(Reply, string)) {
	save, more := `{"step_id":"save","action":"artifact.save"}`, `{"step_id":"more","action":"memory.read","arguments":{"namespace":"no","key":"such"}}`
	s.Apply(strings.Replace(PolicyDocument("quick"), "artifact.save: {}", "artifact.save: {timeout: 100ms}", 1))
	for _, outcome := range []string{"done", "not_done"} {
		for _, late := range []string{"", `"ok":true`, `"ok":false`} {
			r := submit("late-"+outcome+"-"+strings.Trim(strings.ReplaceAll(late, `"`, ""), "ok:"), save, more)
			s.AwaitRun(r.Run.RunID, projection.InDoubt)
			s.Propose("researcher", "run.cancel", fmt.Sprintf(`{"run_id":%q}`, r.Run.RunID))
			if late != "" {
				report(r, late)
			}
			s.Control(ledger.AdminID, "run.resolve", fmt.Sprintf(`{"run_id":%q,"step_id":"more","outcome":%q}`, r.Run.RunID, outcome))
			s.Control(ledger.AdminID, "run.resolve", fmt.Sprintf(`{"run_id":%q,"step_id":"save","outcome":%q}`, r.Run.RunID, outcome))
		}
	}
	s.Apply(PolicyDocument("lab-3"))
}

func (s *Session) emergencies() {
	s.Control(ledger.AdminID, "emergency.deny", `{"agent_id":"researcher","all":true,"reason":"a drill","dry_run":true}`)
	s.Control(ledger.AdminID, "emergency.deny", `{"agent_id":"researcher","all":true,"reason":"a drill","operation_id":"deny"}`)
	s.Control(ledger.AdminID, "emergency.deny", `{"ledger":true,"capabilities":["memory.write","artifact.save"],"reason":"another"}`)
	s.Control(ledger.AdminID, "emergency.deny", `{"ledger":true,"capabilities":["no.such"],"reason":"r"}`)
	s.Control(ledger.AdminID, "emergency.deny", `{"agent_id":"nobody","all":true,"reason":"r"}`)
	s.Propose("formatter", "memory.read", `{"namespace":"project","key":"client_region"}`)
	s.Propose("report_manager", "memory.read", `{"namespace":"project","key":"client_region"}`)
	s.Propose("report_manager", "memory.write", `{"owner_agent_id":"report_manager","namespace":"notes","key":"a","value":1}`)
	s.Propose("report_manager", "sop.validate", SOP("denied", `{"step_id":"a","action":"artifact.save"}`))
	s.Control(ledger.AdminID, "emergency.lift", `{"epoch":9}`)
	for epoch := 1; epoch <= 2; epoch++ {
		s.Control(ledger.AdminID, "emergency.lift", fmt.Sprintf(`{"epoch":%d}`, epoch))
	}
}

func (s *Session) memory() {
	read := func(who, name string) {
		namespace, key, _ := strings.Cut(name, ".")
		s.Propose(who, "memory.read", fmt.Sprintf(`{"namespace":%q,"key":%q,"trace_id":"trace %s"}`, namespace, key, who))
	}
	for _, who := range []string{"report_manager", "researcher", "formatter"} {
		for _, name := range []string{"project.client_region", "policy.external_upload", "report.retention_days", "credentials.storage_token", "no.such"} {
			read(who, name)
		}
	}
	s.Propose("researcher", "memory.read", `{"owner_agent_id":"report_manager","namespace":"credentials","key":"storage_token"}`)
	s.grants()
	s.Propose("researcher", "memory.read", `{"owner_agent_id":"report_manager","namespace":"project","key":"client_region"}`)
	write := func(who, body string) { s.Propose(who, "memory.write", body) }
	write("researcher", `{"owner_agent_id":"researcher","namespace":"notes","key":"a","value":{"text":"first"},"visibility":"children","operation_id":"w1"}`)
	write("researcher", `{"owner_agent_id":"researcher","namespace":"notes","key":"a","value":{"text":"first"},"visibility":"children","operation_id":"w1"}`)
	write("researcher", `{"owner_agent_id":"researcher","namespace":"notes","key":"a","value":{"text":"other"},"visibility":"children","operation_id":"w1"}`)
	write("researcher", `{"owner_agent_id":"researcher","namespace":"notes","key":"a","value":2}`)
	write("researcher", `{"owner_agent_id":"researcher","namespace":"notes","key":"a","value":2,"expected_revision":7}`)
	write("researcher", `{"owner_agent_id":"researcher","namespace":"notes","key":"a","value":2,"expected_revision":1,"operation_id":"w2"}`)
	write("researcher", `{"owner_agent_id":"researcher","namespace":"notes","key":"a","value":3,"expected_revision":3,"ttl_seconds":5}`)
	write("researcher", `{"owner_agent_id":"researcher","namespace":"notes","key":"soon","value":3,"ttl_seconds":3600}`)
	write("researcher", `{"owner_agent_id":"researcher","namespace":"tasks","key":"a","value":1}`)
	write("researcher", `{"owner_agent_id":"researcher","namespace":"policy","key":"soon","value":true,"ttl_seconds":5}`)
	write("researcher", `{"owner_agent_id":"researcher","namespace":"policy","key":"external_upload","value":true,"visibility":"descendants"}`)
	write("researcher", `{"owner_agent_id":"researcher","namespace":"policy","key":"other","value":"true"}`)
	write("researcher", `{"owner_agent_id":"researcher","namespace":"big","key":"a","value":"`+strings.Repeat("x", events.ValueBytesMax)+`"}`)
	write("researcher", `{"owner_agent_id":"report_manager","namespace":"report","key":"retention_days","value":365,"expected_revision":1}`)
	write("formatter", `{"owner_agent_id":"formatter","namespace":"notes","key":"a","value":1}`)
	read("formatter", "notes.a")
	read("formatter", "policy.external_upload")
	remove := func(revision int, id string) {
		s.Propose("researcher", "memory.delete", fmt.Sprintf(`{"owner_agent_id":"researcher","namespace":"notes","key":"a","expected_revision":%d,"operation_id":%q}`, revision, id))
	}
	remove(1, "d1")
	remove(2, "d2")
	remove(2, "d2")
	remove(3, "d3")
	write("researcher", `{"owner_agent_id":"researcher","namespace":"notes","key":"a","value":"again"}`)
	s.Control(ledger.AdminID, "memory.load", `{"owner_agent_id":"formatter","namespace":"notes","key":"loaded","value":[1,2],"visibility":"private","operation_id":"load"}`)
	s.Control(ledger.AdminID, "memory.load", `{"owner_agent_id":"formatter","namespace":"notes","key":"loaded","value":[1,2],"visibility":"private"}`)
	s.Control(ledger.AdminID, "memory.load", `{"owner_agent_id":"formatter","namespace":"policy","key":"loaded","value":true,"visibility":"private"}`)
	read("formatter", "notes.loaded")
}

func (s *Session) actions() {
	authorize := func(who, body string) { s.Propose(who, "action.authorize", body) }
	authorize("researcher", `{"action":"document.summarize","arguments":{"path":"draft/a.md"},"operation_id":"a1"}`)
	authorize("researcher", `{"action":"external.upload","arguments":{"to":"there"}}`)
	authorize("researcher", `{"action":"shell.run","arguments":{}}`)
	authorize("researcher", `{"action":"Not A Name"}`)
	authorize("researcher", `{"action":"document.summarize","arguments":{"a":"`+strings.Repeat("y", events.ArgumentsBytesMax)+`"}}`)
	step := func(id, action, arguments string) string {
		return fmt.Sprintf(`{"step_id":%q,"action":%q,"arguments":%s}`, id, action, arguments)
	}
	validate := func(who, body string) { s.Propose(who, "sop.validate", body) }
	good := SOP("good", step("one", "document.summarize", `{"path":"a"}`), step("two", "artifact.save", `{"path":"b"}`))
	validate("researcher", good)
	validate("researcher", good) // a retry, while the same sop id stands right before it
	validate("researcher", strings.Replace(good, "op-good", "op-good-2", 1))
	validate("researcher", SOP("mixed",
		step("one", "document.summarize", `{}`), step("one", "document.summarize", `{}`), step("", "artifact.save", `{}`),
		step("three", "external.upload", `{}`), step("four", "no.such", `{}`), step("five", "memory.write", `{"namespace":"a","key":"b","value":1}`),
		step("six", "artifact.save", `{"owner_agent_id":"stranger"}`), step("seven", "memory.read", `{"namespace":"a"}`)))
	validate("researcher", `{"sop":{"sop_id":"empty","version":1,"steps":[]}}`)
	validate("researcher", `{"sop":{"sop_id":"v0","version":0,"steps":[{"step_id":"a","action":"artifact.save"}]}}`)
	validate("researcher", `{"sop":7}`)
}

func (s *Session) registrations() {
	child := func(who, id, capabilities string) {
		s.Propose(who, "agent.register", fmt.Sprintf(`{"agent_id":%q,"capabilities":%s,"public_key":%q,"operation_id":"child-%s"}`, id, capabilities, Key(id), strings.ToLower(id)))
	}
	child("researcher", "helper", `["memory.read","memory.write"]`)
	child("researcher", "helper", `["memory.read","memory.write"]`)
	child("researcher", "wider", `["external.upload"]`)
	child("researcher", "Bad", `["memory.read"]`)
	child("formatter", "orphan", `["memory.read"]`)
	s.Propose("researcher", "agent.register", fmt.Sprintf(`{"agent_id":"another","capabilities":[],"public_key":%q}`, Key("helper")))
	s.Propose("researcher", "agent.register", `{"agent_id":"keyless","capabilities":[],"public_key":"UNKNOWN"}`)
	s.Control(ledger.AdminID, "principal.register", fmt.Sprintf(`{"id":"clerk","role":"registrar","public_key":%q,"operation_id":"p1"}`, Key("clerk")))
	s.Control(ledger.AdminID, "principal.register", fmt.Sprintf(`{"id":"clerk","role":"registrar","public_key":%q}`, Key("clerk 2")))
	s.Control(ledger.AdminID, "principal.register", fmt.Sprintf(`{"id":"tools","role":"handler","actions":["artifact.save"],"public_key":%q}`, Key("tools")))
	s.Control("clerk", "agent.register", fmt.Sprintf(`{"agent_id":"clerks_own","parent_id":"report_manager","capabilities":["memory.read"],"public_key":%q}`, Key("clerks_own")))
	s.Control("clerk", "agent.register", fmt.Sprintf(`{"agent_id":"lost","parent_id":"nobody","capabilities":[],"public_key":%q}`, Key("lost")))
	s.Control("clerk", "apply", ApplyRequest(PolicyDocument("stolen")))
	s.Control(ledger.AdminID, "environment.set", `{"capabilities":["memory.read","memory.write","artifact.save","agent.register"]}`)
	s.Propose("researcher", "action.authorize", `{"action":"document.summarize"}`)
	s.Propose("researcher", "restriction.add", `{"id":"few","action":"artifact.save","require":"!has(args.size) || args.size < 10"}`)
	s.Propose("researcher", "action.authorize", `{"action":"artifact.save","arguments":{"size":11}}`)
	s.Control(ledger.AdminID, "restriction.remove", `{"agent_id":"researcher","id":"few"}`)
	s.Control(ledger.AdminID, "resource.set", `{"id":"doc/1","classification":"public"}`)
	s.signers()
	s.Control(ledger.AdminID, "clock.accept", `{"operation_id":"clock"}`)
	s.erasures()
	s.Control(ledger.AdminID, "apply", ApplyRequest(PolicyDocument("lab-2"), "kind: Agent\nid: formatter\nparent: researcher\ncapabilities: [memory.read]\n"))
	s.Control(ledger.AdminID, "apply", ApplyRequest(PolicyDocument("lab-2")))
	s.Control(ledger.AdminID, "apply", ApplyRequest(strings.Replace(PolicyDocument("lab-2"), "children: 20", "children: 21", 1)))
}

// signers has policies signed for a while.
func (s *Session) signers() {
	for _, operation := range []string{"key.retire", "key.rotate", "key.rotate", "key.retire"} { // two of them are refused
		s.Control(ledger.AdminID, operation, `{"key":"permit"}`)
	}
	s.Control(ledger.AdminID, "signers.set", fmt.Sprintf(`{"keys":[%q]}`, Key("signer")))
	s.Control(ledger.AdminID, "apply", ApplyRequest(PolicyDocument("lab-1b")))
	signed := func(statement []byte) string {
		signature, err := policy.Sign(Seed("signer"), statement)
		if err != nil {
			s.T.Fatal(err)
		}
		return signature
	}
	origin, _, _ := strings.Cut(string(s.Checkpoint()), "\n")
	document := PolicyDocument("lab-1c")
	with := signed(policy.Statement(origin, "lab-1c", sha256.Sum256([]byte(document))))
	s.Control(ledger.AdminID, "apply", strings.TrimSuffix(ApplyRequest(document), "}")+fmt.Sprintf(`,"signatures":[%q]}`, with))
	s.Control(ledger.AdminID, "signers.set", `{"keys":[]}`)
	s.Control(ledger.AdminID, "signers.set", fmt.Sprintf(`{"keys":[],"signatures":[%q]}`, signed(policy.SignersStatement(origin, 2, nil))))
}

// erasures holds a payload and lets it go, and erases a read, of which all is
// known without it.
func (s *Session) erasures() {
	read := s.Propose("researcher", "memory.read", `{"namespace":"project","key":"client_region"}`)
	one := func(verb, more string) { s.Control(ledger.AdminID, verb, fmt.Sprintf(`{"seq%s}`, more)) }
	one("hold.place", fmt.Sprintf(`":%d`, read.Seq))
	one("payload.erase", fmt.Sprintf(`s":[%d],"basis":"mistake"`, read.Seq))
	one("hold.lift", fmt.Sprintf(`":%d`, read.Seq))
	one("payload.erase", fmt.Sprintf(`s":[%d],"basis":"mistake","dry_run":true`, read.Seq))
	one("payload.erase", fmt.Sprintf(`s":[%d],"basis":"mistake"`, read.Seq))
	one("payload.erase", fmt.Sprintf(`s":[%d],"basis":"mistake"`, read.Seq))
	one("payload.erase", `s":[1],"basis":"retention_end"`)
	s.Control(ledger.AdminID, "apply", ApplyRequest(PolicyDocument("lab-1"), MemoryDocument("researcher", "notes", "gone", "soon", "private")))
	one("payload.erase", fmt.Sprintf(`s":[%d],"basis":"subject_request"`, s.Durable())) // beside memory.written
}

func (s *Session) doors() {
	s.Propose("researcher", "memory.read", `{"namespace":"project","key":"client_region","actor_id":"report_manager"}`)
	s.Propose("researcher", "memory.read", `not json`)
	s.Propose("researcher", "memory.write", `{"value":"`+strings.Repeat("z", events.RequestBytesMax)+`"}`)
	s.Propose("researcher", "grant.give", `{}`)
	s.Propose("researcher", "no.such.operation", `{}`)
	s.Propose("researcher", "agent.register", `{}`)
	s.Control(ledger.AdminID, "agent.register", `{}`)
	s.Control(ledger.AdminID, "emergency.deny", `{}`)
	for _, operation := range []string{"memory.read", events.Unsupported} {
		<-s.Send(&ledger.Proposal{Lane: wire.Propose, Subject: "researcher", Operation: operation, Refused: reason.BadReplySubject})
	}
	s.Propose("watcher", "memory.read", `{"namespace":"project","key":"client_region"}`)
	s.Propose("watcher", "memory.read", `no`)
	now := s.Time()
	s.Note(&events.TransportDenied{Refusals: events.Refusals{Code: "auth_failed", Count: 2, First: now - 1, Last: now}})
	s.Note(&events.RequestsRefused{Refusals: events.Refusals{ID: "researcher", Code: string(reason.RateLimited), Count: 9, First: now - 1, Last: now}})
}

func (s *Session) revocations() {
	s.Control(ledger.AdminID, "principal.rekey", fmt.Sprintf(`{"id":"tools","public_key":%q}`, Key("tools again")))
	s.Control(ledger.AdminID, "principal.rekey", fmt.Sprintf(`{"id":"tools","public_key":%q}`, Key("tools")))
	s.Control(ledger.AdminID, "principal.revoke", `{"id":"tools","operation_id":"rv"}`)
	s.Control(ledger.AdminID, "principal.revoke", `{"id":"admin"}`)
	s.Control(ledger.AdminID, "principal.revoke", `{"id":"nobody"}`)
	s.Control("clerk", "agent.revoke", `{"agent_id":"researcher"}`)
	s.Control("clerk", "agent.revoke", `{"agent_id":"researcher"}`)
	s.Propose("researcher", "memory.read", `{"namespace":"project","key":"client_region"}`)
	s.Propose("researcher", "memory.read", `x`)
	s.Propose("formatter", "memory.read", `{"namespace":"project","key":"client_region"}`)
	s.Propose("report_manager", "memory.read", `{"namespace":"project","key":"client_region"}`)
}

// grants lends a secret, once counted and once until it is revoked.
func (s *Session) grants() {
	read := func() {
		s.Propose("researcher", "memory.read", `{"owner_agent_id":"report_manager","namespace":"credentials","key":"storage_token"}`)
	}
	s.Propose("report_manager", "grant.give", `{"namespace":"credentials","key":"storage_token","to":"researcher","expires_seconds":3600,"uses":2}`)
	read()
	read()
	read()
	s.Propose("report_manager", "grant.give", `{"namespace":"credentials","key":"storage_token","to":"researcher","expires_seconds":3600}`)
	read()
	s.Propose("report_manager", "grant.revoke", `{"namespace":"credentials","key":"storage_token","to":"researcher"}`)
	read()
}
