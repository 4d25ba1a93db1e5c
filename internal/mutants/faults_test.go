package mutants

// faults, from the bytes outwards. Each names the test that is there to find it.
var faults = []fault{
	// Requests and their bytes.
	{
		name: "last-wins JSON: a name may stand twice", pkg: "internal/events", test: "TestParseJSON", short: true,
		patches: []patch{{"internal/events/json.go", `if m[i-1].Name == m[i].Name {`, `if false {`}},
	},
	{
		name: "case-folded keys", pkg: "internal/events", test: "TestJSONNamesAreExact",
		patches: []patch{{"internal/events/json.go", `if v.Members[i].Name == name {`, `if strings.EqualFold(v.Members[i].Name, name) {`}},
	},
	{
		name: "integers beyond 2^53 taken", pkg: "internal/events", test: "TestParseJSON",
		patches: []patch{{"internal/events/json.go", `err != nil || n > IntegerMax || n < -IntegerMax {`, `err != nil || n == 0 && text != "0" {`}},
	},
	{
		name: "digest over raw bytes", pkg: "internal/wire", test: "TestDecode",
		patches: []patch{{"internal/wire/request.go", `r.Canonical = canonicalWithout(v, "operation_id", "trace_id", "wait_ms")`, `r.Canonical = b`}},
	},
	{
		name: "unknown fields taken", pkg: "internal/wire", test: "TestDecodeRefusesAnyOtherShape", short: true,
		patches: []patch{{"internal/wire/fields.go", `case f.used != len(f.value.Members):`, `case f.used > len(f.value.Members):`}},
	},
	{
		name: "a policy key may stand twice", pkg: "internal/policy", test: "TestR60_RefusedFilesNameEveryFault", short: true,
		patches: []patch{{"internal/policy/document.go", `if at, twice := first[f.key.text]; twice {`, `if at, twice := first[f.key.text]; twice && at.line < 0 {`}},
	},
	{
		name: "an event of an unknown type is passed over", pkg: "internal/projection", test: "TestR78_UnknownTypeStopsTheFold",
		patches: []patch{{"internal/projection/runs.go", `	return fmt.Errorf("%w: unknown type", ErrInconsistent)
}`, `	return nil
}`}},
	},

	// Runs and the emergency deny.
	{
		name: "a step is not judged again", pkg: "internal/ledger", test: "TestR46_EachStepIsJudgedAgain", short: true,
		patches: []patch{{"internal/ledger/decide_run.go", `if code := sop.Judge(*step, j.scope()); code != reason.StepAllowed {`, `if code := sop.Judge(*step, j.scope()); code == reason.MalformedRequest {`}},
	},
	{
		name: "an emergency deny does not reach a run", pkg: "internal/ledger", test: "TestR46_EachStepIsJudgedAgain",
		patches: []patch{
			{"internal/ledger/decide_run.go", `case j.s.Denied(j.agent, step.Capability()):`, `case j.s.Policy != nil && j.s.Policy.TreeDepth < 0:`},
			{"internal/ledger/decide.go", `return j.s.Denied(j.agent, capability) }`, `return j.s.Denied(j.agent, capability) && capability == "" }`},
		},
	},
	{
		name: "a memory step skips the guards of the direct operation", pkg: "internal/ledger", test: "TestR46_RecordsOfTheMomentCount",
		patches: []patch{{"internal/ledger/decide_run.go", `if code := j.proposal(); !code.Allowed() {`, `if code := j.proposal(); code == reason.RevisionConflict {
		return reason.StepAllowed
	} else if !code.Allowed() {`}},
	},
	{
		name: "a missing handler is not looked for", pkg: "internal/ledger", test: "TestR43_OneMissingHandlerStopsAll", short: true,
		patches: []patch{{"internal/ledger/decide_run.go", `if j.fails("handlers", len(j.d.Observed) > 0) {`, `if j.fails("handlers", len(j.d.Observed) > len(admitted.Actions)) {`}},
	},
	{
		name: "a run goes on though its effect failed", pkg: "internal/ledger", test: "TestR53_AFailedEffectFailsTheRun",
		patches: []patch{{"internal/ledger/decide_run.go", `case !r.OK:`, `case !r.OK && r.OperationID == "":`}},
	},
	{
		name: "a result of any size", pkg: "internal/ledger", test: "TestR53_OutputOverTheLimit",
		patches: []patch{{"internal/ledger/decide_run.go", `case len(r.Result) > s.Policy.MaxOutput(step.Action):`, `case len(r.Result) > events.OutputBytesMax:`}},
	},
	{
		name: "any handler reports any effect", pkg: "internal/ledger", test: "TestReportsAreTheirHandlersOwn",
		patches: []patch{{"internal/ledger/decide_run.go", `case !slices.Contains(who.Actions, step.Action):`, `case len(who.Actions) == 0:`}},
	},
	{
		name: "an effect is reported twice", pkg: "internal/ledger", test: "TestR53_ATimeoutEndsInDoubt",
		patches: []patch{{"internal/ledger/decide_run.go", `case step.Ended != 0:
		return nil, ""
	}`, `case step.Ended == 1:
		return nil, ""
	}`}},
	},
	{
		name: "no doubt after a stop", pkg: "internal/ledger", test: "TestR52_AStopLeavesDoubt", short: true,
		patches: []patch{{"internal/ledger/open.go", `return w, l.doubtAll(w)`, `return w, nil`}},
	},
	{
		name: "expiry by the wall clock", pkg: "internal/sim", test: "TestFixedSeeds",
		patches: []patch{{"internal/ledger/run.go", `	now := l.now()
	for _, run := range l.state.OpenRuns() {
		if body := Doubted(run, now, false); body != nil {`, `	now := l.clock.wall()
	for _, run := range l.state.OpenRuns() {
		if body := Doubted(run, now, false); body != nil {`}},
	},
	{
		name: "an effect is waited for for ever", pkg: "internal/ledger", test: "TestR53_ATimeoutEndsInDoubt",
		patches: []patch{{"internal/ledger/decide_run.go", `case now >= step.Deadline:`, `case now >= step.Deadline && now < 0:`}},
	},
	{
		name: "anyone cancels a run", pkg: "internal/ledger", test: "TestR53_CancelEndsTheRun",
		patches: []patch{{"internal/ledger/decide_run.go", `run == nil || run.Agent != j.p.Subject):`, `run == nil):`}},
	},
	{
		name: "cancelling changes nothing", pkg: "internal/ledger", test: "TestR53_CancelEndsTheRun",
		patches: []patch{{"internal/projection/operations.go", `d.Operation == "run.cancel" && d.Allowed && r != nil`, `d.Operation == "run.cancel" && !d.Allowed && r != nil`}},
	},
	{
		name: "runs without number", pkg: "internal/ledger", test: "TestR66_OpenRunsAreLimited",
		patches: []patch{{"internal/ledger/decide_run.go", `j.agent.Runs >= events.OpenRunsMax) {`, `j.agent.Runs > 2*events.OpenRunsMax) {`}},
	},
	{
		name: "an emergency deny of everything is not asked for", pkg: "internal/ledger", test: "TestR64_EmergencyDeny",
		patches: []patch{{"internal/ledger/decide.go", `case j.s.Denied(j.agent, ""):`, `case j.agent.Depth < 0:`}},
	},
	{
		name: "an emergency deny ends with its agent, not its subtree", pkg: "internal/ledger", test: "TestR64_EmergencyDeny",
		patches: []patch{{"internal/projection/runs.go", `return d.Scope == events.ScopeAll || a.Within(d.Scope)`, `return d.Scope == events.ScopeAll || a.ID == d.Scope`}},
	},
	{
		name: "an effect starts before its start is durable", pkg: "internal/ledger", test: "TestNothingStartsBeforeItIsDurable",
		patches: []patch{{"internal/ledger/answer.go", `	durable := l.settle(b)`, `	l.dispatch(b)
	b.execs = nil
	durable := l.settle(b)`}},
	},
	{
		name: "a run's event is not compared with the rules", pkg: "internal/replay", test: "TestR82_EveryFieldOfEveryEventIsJudged",
		patches: []patch{{"internal/replay/runs.go", `		r.compare(&found, want)
	}
	return r.apply(&found, nil)`, `	}
	return r.apply(&found, nil)`}},
	},

	{
		name: "an event id may come twice", pkg: "tools/verify", test: "TestR82_ForgedHistories",
		patches: []patch{{"internal/replay/unasked.go", `	case twice:`, `	case twice && e.Seq == 0:`}},
	},
	{
		name: "what is overdue is not missed", pkg: "tools/verify", test: "TestR82_ForgedHistories",
		patches: []patch{{"internal/replay/late.go", `late.seconds == lateSeconds {`, `late.seconds < 0 {`}},
	},
	{
		name: "documents are applied in any order", pkg: "internal/replay", test: "TestR82_TheEffectsOfAnApplyWithoutItsDocuments",
		patches: []patch{{"internal/replay/asked.go", `if phase < a.phase || !a.inForce(phase)`, `if phase < 0`}},
	},
	{
		name: "a line may say of its event what is not so", pkg: "internal/audit", test: "TestR80_AChangedFileOfLinesIsFound",
		patches: []patch{{"internal/audit/rowfile.go", `event); !bytes.Equal(want, line) {`, `event); want == nil {`}},
	},

	// Rights.
	{
		name: "union instead of intersection", pkg: "internal/policy", test: "TestSetAlgebra", short: true,
		patches: []patch{{"internal/policy/set.go", `{ return s.filter(t.Has) }`, `{ return NewSet(append(slices.Clone(s), t...)...) }`}},
	},
	{
		name: "a capability need not be held above", pkg: "internal/projection", test: "TestR14_HoldsNamesTheLevel",
		patches: []patch{{"internal/projection/rights.go", `s.Effective(a.Parent).Intersect(a.Declared)`, `s.Environment().Intersect(a.Declared)`}},
	},
	{
		name: "environment ignored", pkg: "internal/projection", test: "TestR14_HoldsNamesTheLevel",
		patches: []patch{{"internal/projection/rights.go", `set = s.Environment().Intersect(a.Declared)`, `set = a.Declared`}},
	},
	{
		name: "a narrowed environment ignored", pkg: "internal/projection", test: "TestR14_HoldsNamesTheLevel",
		patches: []patch{{"internal/projection/rights.go", `	if s.IsNarrowed {
`, `	if s.IsNarrowed && s.Narrowed == nil {
`}},
	},
	{
		name: "a revoked ancestor's capabilities stay", pkg: "internal/projection", test: "TestR14_HoldsNamesTheLevel",
		patches: []patch{{"internal/projection/rights.go", `	if a.Revoked {
`, `	if a.Revoked && a.Depth == 0 {
`}},
	},
	{
		name: "effective sets outlive what they follow from", pkg: "internal/projection", test: "TestR15_EffectiveFollowsEveryChange",
		patches: []patch{{"internal/projection/rights.go", `	case *events.Decision, `, `	case *events.AgentUpdated, *events.Decision, `}},
	},
	{
		name: "policy error allowed: no policy is no restriction", pkg: "internal/ledger", test: "TestR60_AgentWithoutPolicy",
		patches: []patch{
			{"internal/ledger/decide.go", `	if j.fails("policy", j.s.Policy == nil) {
		return reason.NoPolicy
	}
	return j.proposal()`, `	if j.fails("policy", j.s.Policy == nil) {
		return reason.ActionAllowed
	}
	return j.proposal()`},
		},
	},
	{
		name: "unknown action allowed", pkg: "internal/ledger", test: "TestR7_UnknownIsNotDenied",
		patches: []patch{
			{"internal/ledger/decide.go", `!j.s.Policy.KnownAction(r.Action)):`, `!j.s.Policy.KnownAction(r.Action) && j.agent == nil):`},
			{"internal/ledger/decide.go", `!j.may(r.Action)):`, `j.s.Policy.KnownAction(r.Action) && !j.may(r.Action)):`},
		},
	},
	{
		name: "every action known", pkg: "internal/policy", test: "TestR7_KnownActionsAreDeclaredOrMemory",
		patches: []patch{{"internal/policy/policy.go", `return declared || action`, `return len(p.Actions) > 0 || declared || action`}},
	},
	{
		name: "revoked agent served", pkg: "internal/ledger", test: "TestR13_RevokedIsNobodyForEver",
		patches: []patch{{"internal/ledger/decide.go", `		case j.agent.Revoked:
			return reason.AgentRevoked
`, ``}},
	},
	{
		name: "an agent uses the control lane", pkg: "internal/ledger", test: "TestR13_RevokedIsNobodyForEver",
		patches: []patch{{"internal/ledger/decide.go", `		case j.p.Lane != wire.Propose:
			return reason.NotPermittedForRole
`, ``}},
	},
	{
		name: "a parent passes on more than it holds", pkg: "internal/ledger", test: "TestR16_NobodyPassesOnMore",
		patches: []patch{{"internal/ledger/decide_control.go", `func(c string) bool { return !j.holds(c) })`, `func(c string) bool { return c == "" })`}},
	},

	// Memory.
	{
		name: "hidden record stops the walk", pkg: "internal/ledger", test: "TestR21_NearestVisibleRecord",
		patches: []patch{{"internal/ledger/decide.go", `			if hidden == "" {
				hidden = a.ID
			}
`, `			hidden = a.ID
			break
`}},
	},
	{
		name: "walk shows a secret", pkg: "internal/projection", test: "TestR22_Visible",
		patches: []patch{{"internal/projection/query.go", `	case s.ClassOf(r) == policy.Secret:
		return false
`, ``}},
	},
	{
		name: "a record shown to children reaches further down", pkg: "internal/projection", test: "TestR22_Visible",
		patches: []patch{{"internal/projection/query.go", `return levels == 1`, `return levels >= 1`}},
	},
	{
		name: "child shadows mandatory", pkg: "internal/ledger", test: "TestR29_MandatoryRecordsCombine",
		patches: []patch{{"internal/ledger/decide_memory.go", `policy.Combine(how, values)`, `policy.Combine(how, values[:1])`}},
	},
	{
		name: "a hidden mandatory record does not count", pkg: "internal/ledger", test: "TestR29_MandatoryRecordsCombine",
		patches: []patch{{"internal/ledger/decide_memory.go", `record := named.Of(a.ID); j.s.Stands(record, now) {
			values`, `record := named.Of(a.ID); j.s.Stands(record, now) && (a == j.agent || record.Visibility == "descendants") {
			values`}},
	},
	{
		name: "mandatory of a wrong type drops out", pkg: "internal/policy", test: "TestR29_AllTrueTakesBooleansAndNothingElse",
		patches: []patch{{"internal/policy/combine.go", `		if v.Kind != events.True && v.Kind != events.False {
			return v, false`, `		if v.Kind != events.True && v.Kind != events.False {
			continue`}},
	},
	{
		name: "anyone writes", pkg: "internal/ledger", test: "TestR24_OnlyTheOwnerChanges",
		patches: []patch{{"internal/ledger/decide.go", `w.Owner != j.p.Subject):`, `w.Owner == ""):`}},
	},
	{
		name: "expected_revision ignored", pkg: "internal/ledger", test: "TestR26_ExpectedRevision",
		patches: []patch{{"internal/ledger/decide.go", `live && w.Revision != record.Revision):`, `live && w.Revision > record.Revision):`}},
	},
	{
		name: "revision reset on re-creation", pkg: "internal/ledger", test: "TestR25_RevisionsCountOn",
		patches: []patch{{"internal/ledger/decide.go", `	if record != nil {
		j.d.PreviousRevision = record.Revision`, `	if live {
		j.d.PreviousRevision = record.Revision`}},
	},

	// Procedures.
	{
		name: "SOP judged step by step", pkg: "internal/sop", test: "TestR40_TheRefusalListsEveryReason", short: true,
		patches: []patch{{"internal/sop/validate.go", `			whole = code
		}
`, `			whole = code
			return r.results, whole
		}
`}},
	},
	{
		name: "one bad step does not refuse the whole", pkg: "internal/sop", test: "TestR40_OneForbiddenStepRefusesTheWhole",
		patches: []patch{{"internal/sop/validate.go", `whole = code`, `whole = reason.SOPAdmitted`}},
	},
	{
		name: "step decisions not sealed", pkg: "internal/ledger", test: "TestR51_ARetryGetsTheRecordedOutcomeAndWritesNothing",
		patches: []patch{{"internal/ledger/sealing.go", `for _, step := range o.Steps {
		if err := w.add`, `for _, step := range o.Steps[:0] {
		if err := w.add`}},
	},

	// What is explained, and to whom.
	{
		name: "an explanation tells of a mandatory record below", pkg: "internal/natsapi", test: "TestR22_ExplainTellsNothingOfRecordsBelow",
		patches: []patch{{"internal/natsapi/explain.go", `if e.Asks && id != w.id && !w.full() {`, `if e.Asks && id == w.id && w.full() {`}},
	},
	{
		name: "an explanation tells of a secret below", pkg: "internal/natsapi", test: "TestR22_ExplainTellsNothingOfRecordsBelow",
		patches: []patch{{"internal/natsapi/explain.go", ` && !strings.HasPrefix(operation, "grant.")`, ``}},
	},
	{
		name: "an observer reads rules from outside of its subtree", pkg: "internal/natsapi", test: "TestExplain_WhoReadsWhichRule",
		patches: []patch{{"internal/natsapi/explain.go", `owner != "" && w.sees(s, owner)`, `owner != "" || w.sees(s, owner)`}},
	},
	{
		name: "of the levels that lack a capability one is told", pkg: "internal/ledger", test: "TestTrace_AgreesWithTheDecision",
		patches: []patch{{"internal/projection/rights.go", `		case !level.Declared.Has(capability):`, `		case len(list) == 0 && !level.Declared.Has(capability):`}},
	},
	{
		name: "where one level may write is told to be where all may", pkg: "internal/policy", test: "TestCommonWrites",
		patches: []patch{{"internal/policy/instead.go", `return len(level) > 0 && !Includes(level, pattern)`, `return len(level) > 99 && !Includes(level, pattern)`}},
	},

	// What is told, and to whom.
	{
		name: "hidden reason told", pkg: "internal/reason", test: "TestToldHidesWhyARecordIsUnavailable", short: true,
		patches: []patch{{"internal/reason/reason.go", `return RecordUnavailable
	}`, `return c
	}`}},
	},
	{
		name: "the owner of a hidden record told", pkg: "internal/wire", test: "TestR21_HiddenReasonsReadAlike",
		patches: []patch{{"internal/wire/reply.go", `if told == reason.Code(d.Reason) {
		w.optStr("owner"`, `if d.Owner != "" {
		w.optStr("owner"`}},
	},
	{
		name: "denial under the identity that a field names", pkg: "internal/natsapi", test: "TestR5_R8_AForeignWriteChangesNothing",
		patches: []patch{{"internal/ledger/decide.go", `j.d.Owner = w.Owner`, `j.d.Owner, j.d.Subject = w.Owner, w.Owner`}},
	},
	{
		name: "missing denial event", pkg: "internal/natsapi", test: "TestR5_R8_AForeignWriteChangesNothing",
		patches: []patch{{"internal/ledger/ledger.go", `	if err := w.outcome(p, j.outcome, now); err != nil {`, `	if !j.outcome.Decision.Allowed {
		j.sealed = &sealedEvent{event: events.Event{Seq: l.state.Seq, Body: j.outcome.Decision}}
		return nil
	}
	if err := w.outcome(p, j.outcome, now); err != nil {`}},
	},
	{
		name: "an allow that is only counted", pkg: "internal/sim", test: "TestFixedSeeds",
		patches: []patch{{"internal/ledger/ledger.go", `	if err := w.outcome(p, j.outcome, now); err != nil {`, `	if j.outcome.Decision.Allowed && p.Operation == "memory.read" {
		j.sealed = &sealedEvent{event: events.Event{Seq: l.state.Seq, Body: j.outcome.Decision}}
		return nil
	}
	if err := w.outcome(p, j.outcome, now); err != nil {`}},
	},
	{
		name: "value in an event", pkg: "internal/ledger", test: "TestR3_ASealedValueIsNowhereInPlain",
		patches: []patch{{"internal/ledger/decide.go", `		j.d.Resource = p.Request.Resource
`, `		j.d.Resource = p.Request.Resource
		if w, ok := p.Request.Body.(*wire.MemoryWrite); ok {
			j.d.TraceID = string(w.Value)
		}
`}},
	},
	{
		name: "sealed payload stored in plain", pkg: "internal/ledger", test: "TestR3_ASealedValueIsNowhereInPlain",
		patches: []patch{{"internal/ledger/sealing.go", `	if p.open {
		w.room.records`, `	if p.bytes != nil {
		w.room.records`}},
	},
	{
		name: "same salt for every payload", pkg: "internal/ledger", test: "TestR73_EqualValuesHaveDifferentCommitments",
		patches: []patch{{"internal/ledger/seal.go", `err = s.fill(salt[:])`, `err = s.fill(salt[:0])`}},
	},

	// Erasure.
	{
		name: "old write-ahead logs are written over", pkg: "internal/ledger", test: "TestR83_ErasedBytesAreNowhereOnDisk",
		patches: []patch{{"internal/store/erase.go", `	if err := s.freshLogs(); err != nil {`, `	if err := s.db.Flush(); err != nil {`}},
	},
	{
		name: "what is never erased is", pkg: "internal/ledger", test: "TestR83_WhatIsErasedAndWhatNever",
		patches: []patch{{"internal/ledger/decide_erasure.go", `		case !mayErase:
			code = reason.NotErasable`, `		case owner == "" && mayErase:
			code = reason.NotErasable`}},
	},
	{
		name: "an erasure is not finished at the next opening", pkg: "internal/ledger", test: "TestR83_ACrashBeforeTheDeletion",
		patches: []patch{{"internal/ledger/erase.go", `		if all[i].Seq <= purged {`, `		if all[i].Seq > purged {`}},
	},
	{
		name: "what is to be purged is not noted with its deletion", pkg: "internal/ledger", test: "TestR83_CrashAtEveryOperationOfAnErasure",
		patches: []patch{{"internal/store/erase.go", `	if err == nil && !b.Empty() {`, `	if err == nil && b.Empty() {`}},
	},
	{
		name: "a removed file is back when power fails", pkg: "internal/ledger", test: "TestR83_CrashAtEveryOperationOfAnErasure",
		patches: []patch{{"internal/store/erase.go", `errors.Join(syncDir(s.fs, dbDir(s.fs, s.dir)), s.Err())`, `s.Err()`}},
	},
	{
		name: "a hold is placed on a stranger's request", pkg: "internal/ledger", test: "TestR83_AHoldOnAStrangersRequest",
		patches: []patch{{"internal/ledger/decide_erasure.go", `	case !j.s.IDTaken(owner):`, `	case owner == "nobody" && !j.s.IDTaken(owner):`}},
	},
	{
		name: "an erased agent's next payloads are under the old key", pkg: "internal/ledger", test: "TestR83_AWholeAgent",
		patches: []patch{{"internal/ledger/erase.go", `	s.current[owner] = dataKeyName(owner, since)`, `	s.current[owner] = owner`}},
	},

	// Operation ids.
	{
		name: "op id not remembered", pkg: "internal/projection", test: "TestApplyFolds",
		patches: []patch{{"internal/projection/operations.go", `	if !o.insert(e) {`, `	if o.insert(e) {`}},
	},
	{
		name: "op id of a resolution not remembered", pkg: "internal/projection", test: "TestR51_AResolutionIsRemembered",
		patches: []patch{{"internal/projection/operations.go", `step := d.StepID != "" && d.Operation == "sop.validate"`, `step := d.StepID != ""`}},
	},
	{
		name: "op id used again with other content", pkg: "internal/ledger", test: "TestR51_OperationIDs",
		patches: []patch{{"internal/ledger/decide.go", `op.Name != req.Operation || !same) {`, `op.Name == "" && !same) {`}},
	},
	{
		name: "op ids shared between agents", pkg: "internal/projection", test: "TestApplyFolds",
		patches: []patch{
			{"internal/projection/operations.go", `	b = append(binary.BigEndian.AppendUint16(b, uint16(len(agent))), agent...)
`, ""},
		},
	},
	{
		name: "a planted state is believed", pkg: "internal/ledger", test: "TestAStateFromASnapshotIsTheStateOfTheLog",
		patches: []patch{{"internal/projection/part.go", `r.err == nil && !hmac.Equal(got, want)`, `r.err == nil && len(got) != len(want)`}},
	},
	{
		name: "a state of another moment is believed", pkg: "internal/ledger", test: "TestAStateFromASnapshotIsTheStateOfTheLog",
		patches: []patch{{"internal/ledger/behind.go", `state.Seq != seq || state.Leaf != leaf || state.Origin != st.Origin()`, `state.Seq == 0 || leaf == leaf && false`}},
	},
	{
		name: "value returned on retry", pkg: "internal/ledger", test: "TestR51_ARetryGetsTheRecordedOutcomeAndWritesNothing",
		patches: []patch{{"internal/ledger/answer.go", `		r.Record = changedRecord(next.Body)
	}
	return r, nil`, `		r.Record = changedRecord(next.Body)
		if b, ok, err := l.payload(seq); r.Record != nil && ok && err == nil {
			r.Record.Value, _ = requestValue(b)
		}
	}
	return r, nil`}},
	},

	// The order of things on disk.
	{
		name: "answered before sync", pkg: "internal/ledger", test: "TestR70_NothingLeavesBeforeTheSync",
		patches: []patch{{"internal/ledger/answer.go", `if err := b.commit.Wait(); err != nil {`, `go b.commit.Wait()
	if err := l.Err(); err != nil {`}},
	},
	{
		name: "published before sync: followers told", pkg: "internal/ledger", test: "TestR70_NothingLeavesBeforeTheSync",
		patches: []patch{{"internal/ledger/answer.go", `	if err := b.commit.Wait(); err != nil {`, `	if l.Hooks.Durable != nil && len(b.sealed) > 0 {
		l.Hooks.Durable(b.sealed[len(b.sealed)-1].event.Seq)
	}
	if err := b.commit.Wait(); err != nil {`}},
	},
	{
		name: "readable before sync", pkg: "internal/store", test: "TestNothingIsReadableBeforeItIsDurable",
		patches: []patch{{"internal/store/read.go", `return s.scan(from, min(to, s.Durable()), fn)`, `return s.scan(from, min(to, s.edge.size), fn)`}},
	},
	{
		name: "published before sync: durable at append", pkg: "internal/store", test: "TestNothingIsReadableBeforeItIsDurable",
		patches: []patch{{"internal/store/append.go", `	s.last = c
`, `	s.last = c
	s.head.Store(&c.end)
`}},
	},
	{
		name: "ignored sync error", pkg: "internal/store", test: "TestFailedSyncStopsTheStore",
		patches: []patch{{"internal/store/append.go", `if err := c.batch.SyncWait(); err != nil {`, `if err := c.batch.SyncWait(); err != nil && c.end.size == 0 {`}},
	},
	{
		name: "checkpoint signed without reading back", pkg: "internal/ledger", test: "TestNothingIsSignedThatDoesNotReadBack",
		patches: []patch{{"internal/ledger/answer.go", `err := l.store.ReadBack(signed+1, size); err != nil {`, `err := l.Err(); err != nil {`}},
	},
	{
		name: "checkpoint before the batch's sync", pkg: "internal/ledger", test: "TestTheAnchorIsAheadOfEveryAnswerWhereAsked",
		patches: []patch{
			{"internal/ledger/answer.go", `	if err := b.commit.Wait(); err != nil {`, `	if l.options.AnchorSync {
		if err := l.checkpoint(); err != nil {
			return false
		}
	}
	if err := b.commit.Wait(); err != nil {`},
			{"internal/ledger/answer.go", `	if l.options.AnchorSync {
		if err := l.checkpoint(); err != nil {
			l.fail(err)`, `	if l.options.AnchorSync && l.signed.Load() == 0 {
		if err := l.checkpoint(); err != nil {
			l.fail(err)`},
		},
	},
	{
		name: "the ledger goes on after a failed sync", pkg: "internal/ledger", test: "TestAFailedSyncStopsTheLedger",
		patches: []patch{{"internal/ledger/answer.go", `		l.fail(fmt.Errorf("sync: %w", err))
		return false
`, `		return true
`}},
	},

	// Opening.
	{
		name: "skipped anchor compare", pkg: "internal/store", test: "TestR81_OpenComparesTheAnchor",
		patches: []patch{{"internal/store/open.go", `if root != cp.Root {`, `if root.IsZero() {`}},
	},
	{
		name: "a log shorter than its anchor opens", pkg: "internal/store", test: "TestR81_OpenComparesTheAnchor",
		patches: []patch{{"internal/store/open.go", `	_, root, err := s.rehash(from+1, size, cp.Size)`, `	cp.Size = min(cp.Size, size)
	_, root, err := s.rehash(from+1, size, cp.Size)`}, {"internal/store/open.go", `case size < cp.Size:`, `case size == 0:`}},
	},
	{
		name: "opened for writing before it is looked at", pkg: "internal/store", test: "TestR81_OpenComparesTheAnchor",
		patches: []patch{{"internal/store/open.go", `	seen, err := look(dir, opts, anchor)
`, `	early, err := openWriter(dir, opts, lock)
	if err == nil {
		err = early.Close()
	}
	if err != nil {
		return nil, err
	}
	if lock, err = lockDir(sys, dbDir(sys, dir)); err != nil {
		return nil, err
	}
	seen, err := look(dir, opts, anchor)
`}},
	},
	{
		name: "a second writer let in", pkg: "internal/store", test: "TestR72_SecondWriterIsRefused",
		patches: []patch{{"internal/store/lock.go", `			return ErrLocked
`, `			return nil
`}},
	},

	{
		name: "made anew over a ledger that is there", pkg: "internal/store", test: "TestInitLeavesNothingHalfDone",
		patches: []patch{{"internal/store/open.go", `		return true, ErrNotEmpty
`, `		return true, sys.RemoveAll(dir)
`}},
	},
	{
		name: "two runs of tree hashes over one another", pkg: "internal/store", test: "TestRunsOfTreeHashes",
		patches: []patch{{"internal/store/tree.go", ` || follows && next < end {`, ` || follows && end == 0 {`}},
	},
	{
		name: "read back without comparing, so that anything is signed", pkg: "internal/store", test: "TestRewrittenEventIsRefused",
		patches: []patch{{"internal/store/read.go", `if err == nil && was != h {`, `if err == nil && was != h && false {`}},
	},

	// The front door.
	{
		name: "a revocation during the handshake missed", pkg: "internal/natsapi", test: "TestR13_RevocationDuringHandshake",
		patches: []patch{{"internal/natsapi/auth.go", `			c.stale = true
`, ``}},
	},
	{
		name: "signature of the nonce unchecked", pkg: "internal/natsapi", test: "TestR10_R76_OnlyASignedNonceOpens",
		patches: []patch{{"internal/natsapi/auth.go", `return err == nil && pub.Verify(nonce, raw) == nil`, `return err == nil && pub != nil && len(raw) > 0`}},
	},
	{
		name: "an agent publishes under any name", pkg: "internal/natsapi", test: "TestR91_PermissionsTable",
		patches: []patch{{"internal/natsapi/permissions.go", `publish(gov("propose", id, ">"))`, `publish(gov("propose", ">"))`}},
	},
	{
		name: "unchecked reply subject", pkg: "internal/natsapi", test: "TestSUB_05_ForeignReplySubjects",
		patches: []patch{{"internal/natsapi/api.go", `case id != "" && wire.OwnInbox(id, reply):`, `case id != "" && len(reply) > 0:`}},
	},
	{
		name: "connection not cut at revocation", pkg: "internal/ledger", test: "TestR13_RevocationAndRekeyingCutBeforeTheAnswer",
		patches: []patch{{"internal/ledger/answer.go", `id != "" && l.Hooks.Cut != nil {`, `id == "" && l.Hooks.Cut != nil {`}},
	},
	{
		name: "rate limit off", pkg: "internal/natsapi", test: "TestR70_RefusedAtTheDoor",
		patches: []patch{{"internal/natsapi/rates.go", `	return b.own.AllowN(now, n) && `, `	return b.own.AllowN(now, 0) && `}},
	},
	{
		name: "children multiply their parent's rate", pkg: "internal/natsapi", test: "TestR66_ChildrenShareTheRateOfTheirTree",
		patches: []patch{{"internal/natsapi/rates.go", `root := r.rootOf(id)`, `root := id`}},
	},
	{
		name: "no connections kept for admins", pkg: "internal/natsapi", test: "TestR66_AnAdminGetsInWhereNobodyElseDoes",
		patches: []patch{{"internal/natsapi/auth.go", `who.Role != RoleAdmin && d.server`, `who.Role == "" && d.server`}},
	},
	{
		name: "subscriptions without bound", pkg: "internal/natsapi", test: "TestR66_OneInboxIsNotDeliveredWithoutBound",
		patches: []patch{{"internal/natsapi/guard.go", `n > maxSubscriptions {`, `n > 100*maxSubscriptions {`}},
	},
	{
		name: "an arrival that is being read becomes another's", pkg: "internal/ledger", test: "TestAnArrivalIsGivenBackOnce",
		patches: []patch{{"internal/ledger/spare.go", `j.caller != nil && !j.reading.Load() {`, `j.caller != nil {`}},
	},
	{
		name: "refusals after queueing are not counted", pkg: "internal/natsapi", test: "TestR66_WhatWaitedTooLongIsOverloaded",
		patches: []patch{{"internal/natsapi/api.go", `	case out.Refused:
		r.api.refuse(r.m, r.Subject, r.reply, out.Reason)`, `	case out.Refused:
		respond(r.m, out.Reply, out.Reason)`}},
	},
	{
		name: "a tree fills the handlers", pkg: "internal/ledger", test: "TestR66_ATreesEffectsDoNotFillTheHandlers",
		patches: []patch{{"internal/ledger/flights.go", `f.count[next] < flightsMax {`, `f.count[next] < 100*flightsMax {`}},
	},
	{
		name: "a doubt keeps its place", pkg: "internal/ledger", test: "TestR66_ADoubtedEffectMakesRoom",
		patches: []patch{{"internal/ledger/flights.go", `	case *events.RunDoubted:
		id = b.RunID
`, ``}},
	},
	{
		name: "trees do not take turns", pkg: "internal/ledger", test: "TestR66_NobodyWaitsForMoreThanARound",
		patches: []patch{{"internal/ledger/fair.go", `		root := rootOf(id)`, `		root := "all"`}},
	},
	{
		name: "one sender fills the queue", pkg: "internal/ledger", test: "TestR66_AFloodLeavesRoomForOthers",
		patches: []patch{{"internal/ledger/fair.go", `limits.jobs-q.jobs-s.tree.jobs)`, `limits.jobs)`}},
	},
	{
		name: "judged however late", pkg: "internal/ledger", test: "TestR66_WhatWaitedTooLongIsNotJudged",
		patches: []patch{{"internal/ledger/intake.go", `now-j.at > int64(in.wait)`, `now-j.at > int64(in.wait)+1<<40`}},
	},
	{
		name: "stream tail not compared", pkg: "internal/natsapi", test: "TestR74_CheckStreamBeforeServing",
		patches: []patch{{"internal/natsapi/feed.go", `	if !same {
`, `	if !same && len(msg.Data) == 0 {
`}},
	},
	{
		name: "stream ahead of the log taken", pkg: "internal/natsapi", test: "TestR74_CheckStreamBeforeServing",
		patches: []patch{{"internal/natsapi/feed.go", `state.LastSeq > durable {`, `state.LastSeq > 2*durable+1000 {`}},
	},
	{
		name: "the watcher takes a gap", pkg: "client", test: "TestR74_WatchFindsATamperedStream",
		patches: []patch{{"client/watch.go", `	case e.Seq > f.next:
		return fmt.Errorf("%w: expected event %d, found %d", ErrGap, f.next, e.Seq)
`, `	case e.Seq > f.next:
		f.next, f.prev = e.Seq, events.Hash{}
`}},
	},
	{
		name: "the watcher takes any predecessor", pkg: "client", test: "TestR74_WatchFindsATamperedStream",
		patches: []patch{{"client/watch.go", `if !expected.IsZero() && e.Prev != expected {`, `if !expected.IsZero() && e.Prev.IsZero() {`}},
	},

	// The auditor.
	{
		name: "prev not checked by audit", pkg: "internal/audit", test: "TestSourceDamage",
		patches: []patch{{"internal/audit/audit.go", `if e.prev != before {`, `if e.prev.IsZero() {`}},
	},
	{
		name: "tree root not checked by audit", pkg: "internal/audit", test: "TestSourceDamage",
		patches: []patch{{"internal/audit/report.go", `if got != c.Root {`, `if got.IsZero() {`}},
	},
	{
		name: "commitments not recomputed by audit", pkg: "tools/verify", test: "TestAttacks",
		patches: []patch{{"internal/audit/examine.go", `got := events.PayloadCommitment(p.Salt, p.Bytes); got != e.Payload {`, `got := events.PayloadCommitment(p.Salt, p.Bytes); got.IsZero() {`}},
	},
	{
		name: "remembered checkpoint not compared", pkg: "tools/verify", test: "TestR81_RememberedCheckpoint",
		patches: []patch{{"internal/audit/report.go", `	err = v.holds(name, c)
	out := undone(v.check(name, fmt.Sprintf("holds every`, `	out := undone(v.check(name, fmt.Sprintf("holds every`}},
	},
	{
		name: "verify exits 0 on failure", pkg: "tools/verify", test: "TestExitCodes",
		patches: []patch{{"tools/verify/main.go", `return report.Exit`, `return audit.ExitPass`}},
	},
	{
		name: "replay takes any effect", pkg: "internal/replay", test: "TestR82_AForgeryWithTheLogsOwnKeysIsFound",
		patches: []patch{{"internal/replay/judge.go", `	if !r.compare(&found, want) {
		r.explainEffect(&found, effect.Body)
	}
	open, err := r.openPayload(&found.Event, effect.Open)`, `	open, err := r.openPayload(&found.Event, effect.Open)`}},
	},
	{
		name: "replay misses no missing effect", pkg: "internal/replay", test: "TestR82_AForgeryWithTheLogsOwnKeysIsFound",
		patches: []patch{{"internal/replay/replay.go", `for _, effect := range r.due {`, `for _, effect := range r.due[:0] {`}},
	},
	{
		name: "an operation id used twice passes", pkg: "tools/verify", test: "TestAttacks",
		patches: []patch{{"internal/audit/operations.go", `} else if o.uses[i].seq&1 == 0 {`, `} else if o.uses[i].seq == 0 {`}},
	},
	{
		name: "a log is taken up that is another", pkg: "tools/verify", test: "TestResume",
		patches: []patch{{"internal/audit/resume.go", `if err != nil || leaf != was {`, `if err != nil {`}},
	},
	{
		name: "two views of one size pass", pkg: "tools/verify", test: "TestAttacks",
		patches: []patch{{"internal/audit/compare.go", `case a.Root != b.Root:`, `case a.Root.IsZero():`}},
	},
	{
		name: "a stream of other bytes passes", pkg: "tools/verify", test: "TestAttacks",
		patches: []patch{{"tools/verify/mirror.go", `case bytes.Equal(m.Event, b):`, `case m.Seq == seq:`}},
	},

	// What operators see.
	{
		name: "what a client sent is logged", pkg: "cmd/ledgerd", test: "TestR3_NoCanaryInLogsMetricsHealthAndAnswers",
		patches: []patch{{"internal/natsapi/denials.go", `if cid, what, ok := clientLine(format, v); ok {`, `if cid, what, ok := clientLine(format, v); ok && cid == 0 {`}},
	},
	{
		name: "log text is not escaped", pkg: "cmd/ledgerd", test: "TestLogLinesAreWholeAndHarmless",
		patches: []patch{{"cmd/ledgerd/side.go", `a.Value = slog.StringValue(logText(v))`, `a.Value = slog.StringValue(v)`}},
	},
	{
		name: "ready without a policy", pkg: "internal/web", test: "TestProbes",
		patches: []patch{{"internal/ledger/stats.go", `if !l.counters.policy.Load() {`, `if false {`}},
	},
	{
		name: "ready while a sync hangs", pkg: "internal/ledger", test: "TestAStuckSyncIsNotReady",
		patches: []patch{{"internal/ledger/stats.go", `since != 0 && time.Duration(now-since) > stuckAfter`, `since < 0 && time.Duration(now-since) > stuckAfter`}},
	},
	{
		name: "ready while the anchor stands still", pkg: "internal/ledger", test: "TestAStuckAnchorIsNotReady",
		patches: []patch{{"internal/ledger/stats.go", `if behind > anchorAfter &&`, `if behind < 0 &&`}},
	},
	{
		name: "one damaged payload ends the ledger", pkg: "internal/ledger", test: "TestAnExchangedPayloadIsNotServed",
		patches: []patch{{"internal/ledger/answer.go", `		if errors.Is(err, ErrPayload) {
			l.spoiled(err)`, `		if errors.Is(err, nil) {
			l.spoiled(err)`}},
	},
	{
		name: "an exchanged payload is taken for the record", pkg: "internal/ledger", test: "TestAnExchangedPayloadIsNotServed",
		patches: []patch{{"internal/ledger/ledger.go", `if events.PayloadCommitment(salt, b) != e.Payload {`, `if events.PayloadCommitment(salt, b) == e.Payload && seq == 0 {`}},
	},
	{
		name: "a data key that does not open ends the ledger", pkg: "internal/ledger", test: "TestADataKeyThatDoesNotOpenFailsItsOwnerAlone",
		patches: []patch{{"internal/ledger/ledger.go", `if err := w.canSeal(p, j.outcome); err != nil {`, `if err := w.canSeal(p, j.outcome); err != nil && p == nil {`}},
	},
	{
		name: "probes in the clear for everybody", pkg: "internal/web", test: "TestListenRefusesWhatOthersCouldRead",
		patches: []patch{{"internal/web/web.go", `!secure && !plain && host`, `!secure && plain && host`}},
	},

	// Effects: the handler's store and the lane its reports come in by.
	{
		name: "an effect is begun before that is noted", pkg: "client", test: "TestStoreIsDurableWhenItSaysSo",
		patches: []patch{{"client/effects.go", `	return true, nil, s.commit(f)`, `	_ = f
	return true, nil, nil`}},
	},
	{
		name: "a result is reported before it is noted", pkg: "client", test: "TestStoreIsDurableWhenItSaysSo",
		patches: []patch{{"client/effects.go", `Is: isDone, At: time.Now().UnixMilli(), Report: report})
	s.mu.Unlock()
	return s.commit(f)`, `Is: isDone, At: time.Now().UnixMilli(), Report: report})
	s.mu.Unlock()
	_ = f
	return nil`}},
	},
	{
		name: "an order seen twice is done twice", pkg: "client", test: "TestR52_AnOrderSeenTwiceIsDoneOnce",
		patches: []patch{{"client/effects.go", `if known := s.effects[e.OperationID]; known != nil {`, `if known := s.effects[e.OperationID]; known != nil && known.state == effectRunning {`}},
	},
	{
		name: "an operation id stands for any order", pkg: "client", test: "TestStoreRemembers",
		patches: []patch{{"client/effects.go", `if known.digest != digest {`, `if len(known.digest) == 0 {`}},
	},
	{
		name: "an effect without a result is no doubt", pkg: "client", test: "TestStoreRemembers",
		patches: []patch{{"client/effects.go", `		if e.state == effectRunning {
			e.state = effectDoubtful`, `		if e.state == effectRunning {
			e.state = effectRunning`}},
	},
	{
		name: "damage in the effect store cut off", pkg: "client", test: "TestStoreNoticesDamage",
		patches: []patch{{"client/journal.go", `if i += next; whole(b, i) {`, `if i += next; whole(b, i) && i < 0 {`}},
	},
	{
		name: "two processes with one effect store", pkg: "client", test: "TestStoreHasOneProcess",
		patches: []patch{{"client/lock_unix.go", `syscall.LOCK_EX|syscall.LOCK_NB`, `syscall.LOCK_SH|syscall.LOCK_NB`}},
	},
	{
		name: "a refused report taken for acknowledged", pkg: "client", test: "TestReportsUntilAcknowledged",
		patches: []patch{{"client/handle.go", `	case "":
		stopPoint(`, `	case "", reason.NotFound:
		stopPoint(`}, {"client/handle.go", `	case reason.NotFound, reason.NotPermittedForRole,`, `	case reason.NotPermittedForRole,`}},
	},
	{
		name: "a stopping handler begins what waits", pkg: "client", test: "TestHandlerStopsInOrder",
		patches: []patch{{"client/handle.go", `	close(h.stopping)
`, ``}},
	},
	{
		name: "a report with a foreign reply subject taken", pkg: "internal/natsapi", test: "TestReportsWithForeignReplySubjects",
		patches: []patch{{"internal/natsapi/effect.go", `	if reply == foreignReply {`, `	if reply == foreignReply && len(m.data) == 0 {`}},
	},
	{
		name: "reports without a rate", pkg: "internal/natsapi", test: "TestReportsHaveTheirOwnRate",
		patches: []patch{{"internal/natsapi/effect.go", `if !a.reports.take(s.ID, 1) {`, `if !a.reports.take(s.ID, 0) {`}},
	},
	{
		name: "a grant without end", pkg: "internal/ledger", test: "TestR30_NoYesOutlivesTheExpiry",
		patches: []patch{{"internal/projection/grants.go", `return now < g.Expires && s.Live(`, `return s.Live(`}},
	},
	{
		name: "a grant to one read by another", pkg: "internal/ledger", test: "TestR30_AGrantIsOneAgentsForOneRecord",
		patches: []patch{{"internal/ledger/decide_grants.go", `To: j.p.Subject}, j.now()) != nil`, `To: "other"}, j.now()) != nil`}},
	},
	{
		name: "uses of a grant not counted", pkg: "internal/ledger", test: "TestR30_AGrantEnds",
		patches: []patch{{"internal/projection/grants.go", `case !g.Counted:`, `case !g.Counted, g.Uses > 0:`}},
	},

	// Rules on arguments, what agents may use and write, and signatures.
	{
		name: "arguments of any shape", pkg: "internal/ledger", test: "TestR61_RulesOnArguments", short: true,
		patches: []patch{{"internal/ledger/decide_rules.go", `if err == nil && declared.Arguments != nil {`, `if err == nil && declared.Arguments != nil && action == "" {`}},
	},
	{
		name: "a requirement that is false lets through", pkg: "internal/ledger", test: "TestR61_RulesOnArguments", short: true,
		patches: []patch{{"internal/ledger/decide_rules.go", `if ok && err == nil {`, `if ok || err == nil {`}},
	},
	{
		name: "a requirement that fails lets through", pkg: "internal/ledger", test: "TestR61_RulesOnArguments",
		patches: []patch{{"internal/ledger/decide_rules.go", `if ok && err == nil {`, `if ok || err != nil {`}},
	},
	{
		name: "a restriction binds its agent alone", pkg: "internal/ledger", test: "TestR62_RestrictionsAreInherited",
		patches: []patch{{"internal/ledger/decide_rules.go", `		lineage := j.agent.Lineage()
		for i`, `		lineage := j.agent.Lineage()[:1]
		for i`}},
	},
	{
		name: "a restriction overwritten", pkg: "internal/ledger", test: "TestR62_RestrictionsAreInherited",
		patches: []patch{{"internal/ledger/decide_rules.go", `case exists && existing == r:`, `case exists && (existing == r || exists):`}},
	},
	{
		name: "a denial names the first rule alone", pkg: "internal/ledger", test: "TestR62_RestrictionsAreInherited",
		patches: []patch{{"internal/ledger/decide_rules.go", `	b.failed = append(b.failed, id)`, `	b.failed = append(b.failed[:0], id)`}},
	},
	{
		name: "a missing mandatory record is no error", pkg: "internal/ledger", test: "TestR61_RulesOnArguments",
		patches: []patch{{"internal/ledger/decide_rules.go", `key, j.now()) == nil {`, `key, j.now()) == nil && len(lineage) == 0 {`}, {"internal/ledger/decide_memory.go", `	value, ok = policy.Combine(how, values)
`, `	value, ok = policy.Combine(how, values)
	if len(values) == 0 {
		return []byte("true"), 0, true
	}
`}},
	},
	{
		name: "steps without rules", pkg: "internal/ledger", test: "TestR41_ArgumentRulesOfSteps",
		patches: []patch{{"internal/ledger/decide_rules.go", `code, b := j.rules(step.Action, step.Arguments)`, `code, b := j.rules(step.Action, []byte("{\"path\":\"draft/a\"}"))`}},
	},
	{
		name: "within by text instead of segments", pkg: "internal/policy", test: "TestR61_ClausesJudgeArguments",
		patches: []patch{{"internal/policy/functions.go", `strings.HasPrefix(path, dir+"/") {`, `strings.HasPrefix(path, dir) {`}},
	},
	{
		name: "a path that climbs", pkg: "internal/policy", test: "TestARG01_NoPathClimbsOut",
		patches: []patch{{"internal/policy/functions.go", `strings.ContainsRune(". ", rune(segment[len(segment)-1]))`, `segment[len(segment)-1] == ' '`}},
	},
	{
		name: "an encoded path", pkg: "internal/policy", test: "TestARG04_NoPathReadsTwoWays",
		patches: []patch{{"internal/policy/functions.go", `path[i] < ' ' || path[i] > '~'`, `path[i] < ' '`}},
	},
	{
		name: "a namespace by text instead of segments", pkg: "internal/policy", test: "TestR61_NamespacesBySegment",
		patches: []patch{{"internal/policy/functions.go", `strings.HasPrefix(namespace, base+".")`, `strings.HasPrefix(namespace, base)`}},
	},
	{
		name: "a mapped address is public", pkg: "internal/policy", test: "TestARG10_AddressesInOtherForms",
		patches: []patch{{"internal/policy/functions.go", `		addr = addr.Unmap()
`, ``}},
	},
	{
		name: "a comprehension over a map", pkg: "internal/policy", test: "TestR60_ClausesThatCannotMeanIt",
		patches: []patch{{"internal/policy/rule.go", `t.Kind() != types.ListKind`, `t.Kind() == types.IntKind`}},
	},
	{
		name: "a clause at any cost", pkg: "internal/policy", test: "TestR60_ClausesThatCannotMeanIt",
		patches: []patch{{"internal/policy/rule.go", `bound.Max > clauseCostBound`, `bound.Max == 0`}},
	},
	{
		name: "use limits nothing", pkg: "internal/ledger", test: "TestR17_UseLimitsOnlyOnesOwnActs",
		patches: []patch{{"internal/projection/rights.go", `len(a.Use) > 0 && !a.Use.Has(capability)`, `len(a.Use) > 300 && !a.Use.Has(capability)`}},
	},
	{
		name: "use limits the children", pkg: "internal/ledger", test: "TestR17_ACoordinatorPassesOn",
		patches: []patch{{"internal/ledger/decide_control.go", `	ok, _ := j.s.Holds(j.agent, capability)`, `	ok, _ := j.s.May(j.agent, capability)`}},
	},
	{
		name: "writes of ancestors do not count", pkg: "internal/ledger", test: "TestR32_WritesIntersect",
		patches: []patch{{"internal/projection/rights.go", `	for ; a != nil; a = a.Parent {
		if len(a.Writes) > 0 &&`, `	for ; a != nil; a = nil {
		if len(a.Writes) > 0 &&`}},
	},
	{
		name: "any value under a value rule", pkg: "internal/policy", test: "TestR32_ValueRules",
		patches: []patch{{"internal/policy/combine.go", `rule.Value.ValidateJSON(value) != nil`, `rule.Value.ValidateJSON(value) == nil && len(value) == 0`}},
	},
	{
		name: "the deepest value rule alone", pkg: "internal/policy", test: "TestR32_ValueRules",
		patches: []patch{{"internal/policy/combine.go", `			return false
		}
	}
	return true
}

// covers`, `			return false
		} else if covers(rule.Name, namespace+"."+key) {
			return true
		}
	}
	return true
}

// covers`}},
	},
	{
		name: "a policy without a signature", pkg: "internal/ledger", test: "TestR67_PoliciesAreSigned", short: true,
		patches: []patch{{"internal/ledger/decide_signers.go", `if len(j.s.Signers) == 0 {`, `if len(j.s.Signers) <= policy.SignersMax {`}},
	},
	{
		name: "anybody's signature", pkg: "internal/ledger", test: "TestR67_PoliciesAreSigned",
		patches: []patch{{"internal/policy/signature.go", `case fits && signers.Has(public):`, `case fits:`}, {"internal/policy/signature.go", `		case fits:
			faults = append(faults, public+" is no signer of this ledger")
`, ``}},
	},
	{
		name: "a signature for another ledger", pkg: "internal/ledger", test: "TestR67_PoliciesAreSigned",
		patches: []patch{{"internal/policy/signature.go", `\n%s\n%s\n%x\n", origin, version, digest)`, `\n%s\n%x\n", version, digest)`}},
	},
	{
		name: "a signed policy brought back", pkg: "internal/ledger", test: "TestR67_PoliciesAreSigned",
		patches: []patch{{"internal/ledger/decide_signers.go", `	if used {`, `	if used && p == nil {`}},
	},
	{
		name: "an admin replaces the signers", pkg: "internal/ledger", test: "TestR67_SignersChangeEachOther",
		patches: []patch{{"internal/ledger/decide_signers.go", `if len(j.s.Signers) > 0 && !ok {`, `if len(j.s.Signers) > policy.SignersMax && !ok {`}},
	},
	{
		name: "a signature of signers serves twice", pkg: "internal/ledger", test: "TestR67_SignersChangeEachOther",
		patches: []patch{{"internal/policy/signature.go", `\n%s\n%d\n%s\n", origin, number, strings`, `\n%s\n%s\n", origin, strings`}},
	},
	{
		name: "a record there at the moment of its end", pkg: "internal/ledger", test: "TestR31_GoneFromTheMomentOn",
		patches: []patch{{"internal/projection/expiry.go", `now >= r.Expires {`, `now > r.Expires {`}},
	},
	{
		name: "an end believed before its moment", pkg: "internal/projection", test: "TestR31_AnEndIsBelievedAtItsMoment",
		patches: []patch{{"internal/projection/expiry.go", `want == nil || want.Record != *b {`, `old == nil || want != nil && want.Record != *b {`}},
	},
	{
		name: "a record written over one that is gone, and that not said", pkg: "internal/projection", test: "TestR31_AnEndIsBelievedAtItsMoment",
		patches: []patch{{"internal/projection/state.go", ` || s.Expiry(old, e.Time) != nil {`, ` {`}},
	},
	{
		name: "a grant that outlives its secret", pkg: "internal/ledger", test: "TestR31_AGrantEndsWithItsSecret",
		patches: []patch{{"internal/projection/grants.go", ` && s.Live(g.Owner, g.Namespace, g.Key, now) != nil`, ``}},
	},
	{
		name: "a mandatory record that ends", pkg: "internal/ledger", test: "TestR31_TaskStateHasAnEnd",
		patches: []patch{{"internal/ledger/decide_expiry.go", `case seconds != 0 && p.Class(namespace, key) == policy.Mandatory,
		task`, `case task`}},
	},
	{
		name: "task state for ever", pkg: "internal/ledger", test: "TestR31_TaskStateHasAnEnd",
		patches: []patch{{"internal/ledger/decide_expiry.go", `task && most == 0 && seconds == 0 && !inRun:`, `task && most == 0 && seconds == 0 && !inRun && seconds != 0:`}},
	},
	{
		name: "task state that lasts longer than its rule allows", pkg: "internal/ledger", test: "TestR31_TaskStateHasAnEnd",
		patches: []patch{{"internal/ledger/decide_expiry.go", `seconds > most,`, `seconds > most && most == 0,`}},
	},
	{
		name: "a deeper rule that lengthens the life of task state", pkg: "internal/ledger", test: "TestR31_TaskStateHasAnEnd",
		patches: []patch{{"internal/policy/task.go", `covers(rule.Name, namespace+"."+key)`, `rule.Name == namespace`}},
	},
	{
		name: "a run's records outlive it unsaid", pkg: "internal/ledger", test: "TestR31_ARunsRecordsGoWithIt",
		patches: []patch{{"internal/projection/runs.go", `	s.endRun(r.ID)
`, ``}},
	},
	{
		name: "a run's task state that is not the run's", pkg: "internal/ledger", test: "TestR31_ARunsRecordsGoWithIt",
		patches: []patch{{"internal/ledger/decide_expiry.go", `			w.RunID = j.d.RunID
`, ``}},
	},
	{
		name: "nobody wakes for records that are gone", pkg: "internal/ledger", test: "TestR31_TheEndIsSaidOnceAndAtItsMoment",
		patches: []patch{{"internal/ledger/run.go", ` || l.counters.nextExpiry.Load() <= int64(l.clock.now())`, ``}},
	},
	{
		name: "a snapshot that forgets when records end", pkg: "internal/projection", test: "TestR31_WhatIsDueIsFound",
		patches: []patch{{"internal/projection/read.go", `			s.willEnd(rec)
`, `			_ = rec
`}},
	},
	{
		name: "operations and records of another moment are joined", pkg: "internal/projection", test: "TestPartsReadApartAreOfOneMoment",
		patches: []patch{{"internal/projection/read.go", `o.seq != s.Seq || r.seq != s.Seq`, `o.seq == 0 && r.seq == 0 && s.Seq > 0`}},
	},
	{
		name: "a read error of a log is called damage", pkg: "internal/store", test: "TestAnUnreadableLogIsNotDamage",
		patches: []patch{{"internal/store/frozen.go", `		f.fs.failed.Store(&err)
`, ``}},
	},
	{
		name: "the retry of a write over a gone record tells nothing", pkg: "internal/ledger", test: "TestR31_AWriteOverAGoneRecord",
		patches: []patch{{"internal/ledger/answer.go", `next, _, err = l.event(seq + 2)`, `_, _, err = l.event(seq + 2)`}},
	},
	{
		name: "a quota of records that is one too large", pkg: "internal/ledger", test: "TestR66_QuotasOfRecords",
		patches: []patch{{"internal/ledger/decide_quota.go", `q.most > 0 && q.has >= q.most`, `q.most > 0 && q.has > q.most`}},
	},
	{
		name: "a tree without quotas", pkg: "internal/ledger", test: "TestR66_QuotasOfRecords",
		patches: []patch{{"internal/ledger/decide_quota.go", `q.limit > 0 && q.all >= q.limit`, `q.limit > 0 && q.all < 0`}},
	},
	{
		name: "a quota that refuses changes of what is there", pkg: "internal/ledger", test: "TestR66_QuotasOfRecords",
		patches: []patch{{"internal/ledger/decide_quota.go", `	if record != nil && !record.Deleted {`, `	if record != nil && record.Revision == 0 {`}},
	},
	{
		name: "deleted records keep their place", pkg: "internal/ledger", test: "TestR66_CountersAreWhatIsThere",
		patches: []patch{{"internal/projection/usage.go", `		n--
`, ``}},
	},
	{
		name: "what is counted stops at the parent", pkg: "internal/ledger", test: "TestR66_CountersAreWhatIsThere",
		patches: []patch{{"internal/projection/usage.go", `	for ; a != nil; a = a.Parent {`, `	for stop := a.Parent; a != nil && a != stop; a = a.Parent {`}},
	},
	{
		name: "runs of a tree without a quota", pkg: "internal/ledger", test: "TestR66_QuotasOfRuns",
		patches: []patch{{"internal/projection/runs.go", `	a.add(Usage{Runs: 1})
`, ``}},
	},
	{
		name: "revoked agents keep their place", pkg: "internal/ledger", test: "TestR66_QuotaOfAgents",
		patches: []patch{{"internal/projection/state.go", `	a.add(Usage{Agents: -1})
`, ``}},
	},
	{
		name: "a restored directory is served", pkg: "internal/backup", test: "TestKind7_62_TheRestoredIsReadAndNotServed",
		patches: []patch{{"internal/ledger/restored.go", `err = ErrRestored`, `err = fs.ErrNotExist`}},
	},
	{
		name: "a retired key may sign", pkg: "internal/ledger", test: "TestKind7_ARetiredKeyUsedAfterItsSize",
		patches: []patch{{"internal/audit/keys.go", `range signers(signed) {`, `range signers(nil) {`}},
	},
	{
		name: "a snapshot that forgets what is counted", pkg: "internal/ledger", test: "TestR66_CountersAreWhatIsThere",
		patches: []patch{{"internal/projection/read.go", `		owner.Records += c.n
		owner.add(Usage{Records: c.n})
`, ``}},
	},
	{
		name: "an error quotes what was asked", pkg: "internal/policy", test: "TestR61_ErrorsQuoteNothing",
		patches: []patch{{"internal/policy/rule.go", `return false, plainError(err)`, `return false, err`}},
	},
	{
		name: "an agent's own rule asks of records", pkg: "internal/ledger", test: "TestR3_RulesTellNothingTheyAsked",
		patches: []patch{{"internal/ledger/decide_rules.go", `if err == nil && own && clause.Asks {`, `if err == nil && own && clause.Asks && r.ID == "" {`}},
	},
	{
		name: "whoever is denied for want of a record writes it", pkg: "internal/ledger", test: "TestR29_TheRootLaysItDown",
		patches: []patch{{"internal/ledger/decide_rules.go", `if j.s.Live(lineage[len(lineage)-1].ID, namespace, key, j.now()) == nil {`, `if len(lineage) == 0 {`}},
	},
	{
		name: "matches at any cost", pkg: "internal/policy", test: "TestR66_ClausesAreBoundBeforeTheyRun",
		patches: []patch{{"internal/policy/rule.go", `if estimator.one > clauseCost {`, `if estimator.one > 1<<40 {`}},
	},
	{
		name: "nested literals without number", pkg: "internal/policy", test: "TestR66_ClausesAreBoundBeforeTheyRun",
		patches: []patch{{"internal/policy/rule.go", `n > clauseBrackets {`, `n > ClauseBytesMax {`}},
	},
	{
		name: "mandatory records read without end", pkg: "internal/policy", test: "TestR66_ClausesAreBoundBeforeTheyRun",
		patches: []patch{{"internal/policy/calls.go", `f.spent += uint64(read) / 10;`, `f.spent += 0 * uint64(read);`}},
	},
	{
		name: "a schema held against anything", pkg: "internal/policy", test: "TestR66_ASchemaIsHeldAgainstSoMuch",
		patches: []patch{{"internal/policy/schema.go", `if s.overweight(v) {`, `if s == nil {`}},
	},
	{
		name: "another number is judged than stands there", pkg: "internal/policy", test: "TestR61_NumbersAreJudgedAsTheyStand",
		patches: []patch{{"internal/policy/number.go", `return ok && also && digits == shortest && exponent == at`, `return ok && also && (digits == shortest && exponent == at || ok)`}},
	},
	{
		name: "a restriction that does not fit is passed over", pkg: "internal/ledger", test: "TestR62_ARestrictionStopsNoPolicy",
		patches: []patch{{"internal/ledger/decide_rules.go", `					clause, err := j.s.Clause(r)
`, `					clause, err := j.s.Clause(r)
					if err != nil {
						continue
					}
`}},
	},
	{
		name: "a limit lifted by being left out", pkg: "internal/ledger", test: "TestR17_NoLimitIsLiftedByBeingForgotten",
		patches: []patch{{"internal/policy/document.go", `len(a.Use) > 0 || a.UseAll {`, `true {`}},
	},
	{
		name: "case alone leads out of a directory", pkg: "internal/policy", test: "TestARG01_NoPathClimbsOut",
		patches: []patch{{"internal/policy/functions.go", `strings.EqualFold(path[:len(dir)], dir)`, `path[:len(dir)] == dir`}},
	},
	{
		name: "what comparing goes over is not counted", pkg: "internal/policy", test: "TestR66_WhatOneCallTakes",
		patches: []patch{{"internal/policy/rule.go", `			units += weightOf(a, clauseCost)`, `			units += 0 * weightOf(a, clauseCost)`}},
	},
	{
		name: "a tree restricts without number", pkg: "internal/ledger", test: "TestR66_RestrictionsOfATree",
		patches: []patch{{"internal/ledger/decide_rules.go", `if own && j.agent.Root().Tree.Restrictions >= policy.TreeRestrictionsMax {`, `if own && j.agent.Root().Tree.Restrictions < 0 {`}},
	},
	{
		name: "one tree takes every grant", pkg: "internal/ledger", test: "TestR66_OneTreeLeavesGrantsToOthers",
		patches: []patch{{"internal/ledger/decide_grants.go", `tree >= events.GrantsOfTreeMax`, `tree >= events.GrantsMax`}},
	},
	{
		name: "a clause of another policy", pkg: "internal/ledger", test: "TestAClauseIsThatOfItsPolicy",
		patches: []patch{{"internal/projection/rules.go", `clauseKey{s.Policy, r.Action, r.Text}`, `clauseKey{nil, r.Action, r.Text}`}},
	},

	// Receipts and proofs.
	{
		name: "a proof under a root that nobody signed", pkg: "internal/audit", test: "TestR84_WhatAProofMustNotShow",
		patches: []patch{{"internal/audit/proof.go", `	c, err := keys.Open(p.Checkpoint)
	if err != nil {
		return c, keys.Unsigned(err)
	}
	if p.Index`, `	c, err := readCheckpoint(p.Checkpoint)
	if err != nil {
		return c, keys.Unsigned(err)
	}
	if p.Index`}},
	},
	{
		name: "a later erasure hides an earlier one", pkg: "internal/audit", test: "TestR83_AnErasureIsNotHiddenByALaterOne",
		patches: []patch{{"internal/audit/erasure.go", `er := v.of(l, nil, owners); er != nil {`, `er := last[l.owner]; er != nil && l.mayErase && l.seq < er.body.Before {`}},
	},
	{
		name: "a backup that no key opens", pkg: "internal/backup", test: "TestKind7_ABackupThatNoKeyOpens",
		patches: []patch{{"internal/backup/backup.go", `if _, err := verifyOpen(d, "", m); err != nil {`, `if err := error(nil); err != nil {`}},
	},
	{
		name: "a backup that does not say what it is", pkg: "internal/backup", test: "TestKind7_62_ABackupWithoutItsManifestIsNotServed",
		patches: []patch{{"internal/backup/backup.go", `if err := mark(tmp, m); err != nil {`, `if err := error(nil); err != nil {`}},
	},
	{
		name: "a seal key that is kept when nothing was wrapped anew", pkg: "internal/ledger", test: "TestR75_ARotationOfTheSealKeyIsFinished",
		patches: []patch{{"internal/ledger/sealkeys.go", `	if len(keys) == 1 {
		return nil
	}`, `	if len(keys) >= 1 {
		return nil
	}`}},
	},
	{
		name: "an epoch that goes on from another past", pkg: "tools/verify", test: "TestR81_TheEpochBeforeIsTheRememberedOne",
		patches: []patch{{"internal/audit/previous.go", `case given.Size == kept.Size && given.Root != kept.Root:`, `case given.Size == kept.Size && given.Root != given.Root:`}},
	},
	{
		name: "a key that only its own signature brings", pkg: "internal/audit", test: "TestR81_WhatHandsOverNothing",
		patches: []patch{{"internal/audit/rotation.go", `for j := max(i-1, 0); j <= i; j++ {`, `for j := i; j <= i; j++ {`}},
	},
	{
		name: "a proof of another size than its checkpoint", pkg: "client", test: "TestR81_ProofAndCheckpointAlwaysMatch",
		patches: []patch{{"internal/ledger/read.go", `path, err := tlog.ProveRecord(int64(size), int64(seq-1), l.store)`, `path, err := tlog.ProveRecord(int64(max(seq, size-1)), int64(seq-1), l.store)`}},
	},
	{
		name: "an agent is given its event", pkg: "client", test: "TestR81_AuditorThroughTheClient",
		patches: []patch{{"internal/natsapi/proof.go", `if q.Event && !w.full() {`, `if q.Event && w.id == "" {`}},
	},
	{
		name: "a checkpoint is remembered that continues nothing", pkg: "client", test: "TestR81_WhatAnAuditorRefuses",
		patches: []patch{{"client/receipt.go", `	if a.signed != nil {
		if err := a.continues(p); err != nil {`, `	if a.signed != nil && p.From == 0 {
		if err := a.continues(p); err != nil {`}},
	},
}
