package events

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// Public names used all over the vectors.
const (
	testOrigin  = "ledgerd.example/golden/1"
	otherOrigin = "ledgerd.example/golden/0"
	adminKey    = "UDPH6XWBZBHHNKJQWR3N6RHTCDCYKJ2KC6XUG4NCH7E46PHJWYMPPNZU"
	agentKey    = "UAG7YX2U6A2PJEELFG3SJAWNBZZZIALNV6DKFP5Q74XKW2CPMZVSTQNQ"
)

const testRun = "0193f0a0-0000-7000-8000-000000000001"

// longNames is n different names of size bytes.
func longNames(n, size int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("%0*d", size, i)
	}
	return names
}

func bodyTime(s string) Time {
	t, err := ParseTime(s)
	if err != nil {
		panic(err)
	}
	return t
}

func filledHash(b byte) (h Hash) {
	for i := range h {
		h[i] = b + byte(i)
	}
	return h
}

// bodyCase holds the vectors of one type: the fewest fields, and all of them.
type bodyCase struct{ minimal, maximal Body }

// bodyCases has one case for every event type; TestEveryTypeHasItsVectors
// fails on a new type without one.
func bodyCases() map[Type]bodyCase {
	refusals := Refusals{Code: "rate_limited", Count: 1, First: bodyTime("2026-11-29T20:31:07.114203Z"), Last: bodyTime("2026-11-29T20:31:07.114203Z")}
	allRefusals := Refusals{ID: "researcher", Code: "overloaded", Count: IntegerMax, First: bodyTime("1970-01-01T00:00:00.000000Z"), Last: bodyTime("9999-12-31T23:59:59.999999Z")}
	record := Record{Owner: "researcher", Namespace: "notes", Key: "a", Visibility: "private", Class: "preference", Revision: 1}
	fullRecord := Record{Owner: "report_manager", Namespace: "a.b.c.d.e.f.g.h-1_", Key: "0-k_", Visibility: "descendants", Class: "mandatory", Revision: IntegerMax}
	effect := Effect{RunID: testRun, StepID: "a", Action: "artifact.save", OperationID: testRun + "/a"}
	fullEffect := Effect{RunID: testRun, StepID: strings.Repeat("a", TokenBytesMax), Action: strings.Repeat("b", ActionBytesMax), OperationID: testRun + "/" + strings.Repeat("a", TokenBytesMax), Handler: strings.Repeat("h", IDBytesMax), Outcome: "output_too_large"}
	return map[Type]bodyCase{
		TypeLedgerCreated: {
			&LedgerCreated{Format: Format, Origin: testOrigin, Ledger: "main", AdminID: "admin", AdminPublicKey: adminKey, CheckpointKey: testVKey(testOrigin, 1), PermitKey: testVKey(testOrigin+"/permit", 2)},
			&LedgerCreated{Format: Format, Origin: testOrigin, Ledger: "main", AdminID: "admin", AdminPublicKey: adminKey, CheckpointKey: testVKey(testOrigin, 1), PermitKey: testVKey(testOrigin+"/permit", 2),
				PolicySigners: []string{agentKey},
				Previous:      &Previous{Origin: otherOrigin, Checkpoint: otherOrigin + "\n1\nAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n\n— " + otherOrigin + " AAAA\n", Reason: "rollback"}},
		},
		TypeLedgerOpened: {
			&LedgerOpened{},
			&LedgerOpened{Rules: 7, Build: "ledgerd \"1.0\" \\ \b\f\n\r\t\u0001\u001f\u007f é \u2028 \ufeff \U0001f701 </>&"},
		},
		TypeDecisionAllowed: {
			&Decision{Allowed: true, Subject: "admin", Lineage: []string{"admin"}, Operation: "apply", Reason: "control_done", PolicyVersion: "none"},
			fullDecision(true, "step_allowed"),
		},
		TypeDecisionDenied: {
			&Decision{Subject: "researcher", Lineage: []string{}, Operation: Unsupported, Reason: "malformed_request", PolicyVersion: "none"},
			fullDecision(false, "requirement_failed"),
		},
		TypeAgentRegistered: {
			&AgentRegistered{AgentID: "report_manager", Capabilities: []string{}, PublicKey: agentKey},
			&AgentRegistered{AgentID: "researcher", ParentID: "report_manager", Capabilities: []string{"artifact.save", "memory.read", "memory.write"}, Use: []string{"memory.read"}, Writes: []string{"notes.*"}, PublicKey: agentKey},
		},
		TypeAgentUpdated: {
			&AgentUpdated{AgentID: "researcher", Capabilities: []string{}},
			&AgentUpdated{AgentID: "researcher", Capabilities: []string{"memory.read"}, Use: []string{"memory.read"}, Writes: []string{"notes.*"}},
		},
		TypeAgentRevoked:        {&AgentRevoked{AgentID: "a"}, &AgentRevoked{AgentID: strings.Repeat("a", IDBytesMax)}},
		TypePrincipalRegistered: {&PrincipalRegistered{ID: "eye", Role: "observer", PublicKey: adminKey}, &PrincipalRegistered{ID: "tools", Role: "handler", PublicKey: adminKey, Actions: []string{"artifact.save", "document.summarize"}, Groups: []string{"security"}, Root: "report_manager"}},
		TypePrincipalRekeyed:    {&PrincipalRekeyed{ID: "tools", PublicKey: agentKey}, &PrincipalRekeyed{ID: strings.Repeat("0", IDBytesMax), PublicKey: agentKey}},
		TypePrincipalRevoked:    {&PrincipalRevoked{ID: "a"}, &PrincipalRevoked{ID: strings.Repeat("z", IDBytesMax)}},
		TypePolicyActivated: {
			&PolicyActivated{Version: "1", Digest: filledHash(0)},
			&PolicyActivated{Version: "lab-" + strings.Repeat("1", TokenBytesMax-4), Digest: filledHash(0xe0), Rules: 3},
		},
		TypeEnvironmentChanged: {&EnvironmentChanged{Capabilities: []string{}}, &EnvironmentChanged{Capabilities: []string{"memory.read", "memory.write"}}},
		TypeMemoryWritten:      {&MemoryWritten{Record: record}, &MemoryWritten{fullRecord, timeMax, testRun}},
		TypeMemoryDeleted:      {&MemoryDeleted{record}, &MemoryDeleted{fullRecord}},
		TypeMemoryExpired:      {&MemoryExpired{record}, &MemoryExpired{fullRecord}},
		TypeGrantGiven: {
			&GrantGiven{Grant{"top", "credentials", "token", "researcher"}, 1, 0},
			&GrantGiven{Grant{"top", "credentials", "token", "researcher"}, timeMax, IntegerMax},
		},
		TypeGrantRevoked:       {&GrantRevoked{Grant{"top", "credentials", "token", "researcher"}}, &GrantRevoked{Grant{"a", "b", "c", "d"}}},
		TypeEmergencyDenied:    {&EmergencyDenied{Emergency{Scope: "researcher", Epoch: 1}}, &EmergencyDenied{Emergency{Scope: ScopeAll, Capabilities: []string{"a", "b.c"}, All: true, Epoch: IntegerMax}}},
		TypeEmergencyLifted:    {&EmergencyLifted{Emergency{Scope: "researcher", Epoch: 1}}, &EmergencyLifted{Emergency{Scope: ScopeAll, Capabilities: []string{"a", "b.c"}, All: true, Epoch: IntegerMax}}},
		TypeRunAdmitted:        {&RunAdmitted{RunID: testRun, SOPID: "s", SOPVersion: 1, Steps: []string{"a"}, Actions: []string{"memory.read"}}, &RunAdmitted{RunID: testRun, SOPID: strings.Repeat("S", TokenBytesMax), SOPVersion: IntegerMax, Steps: longNames(SOPStepsMax, TokenBytesMax), Actions: longNames(SOPStepsMax, ActionBytesMax)}},
		TypeRunStarted:         {&RunStarted{testRun}, &RunStarted{testRun}},
		TypeRunFinished:        {&RunFinished{testRun}, &RunFinished{testRun}},
		TypeRunFailed:          {&RunFailed{testRun, "a", "effect_failed"}, &RunFailed{testRun, strings.Repeat("a", TokenBytesMax), "action_not_in_effective_capabilities"}},
		TypeRunCancelled:       {&RunCancelled{testRun}, &RunCancelled{testRun}},
		TypeRunDoubted:         {&RunDoubted{testRun, "a", "in_doubt"}, &RunDoubted{testRun, strings.Repeat("a", TokenBytesMax), "effect_timeout"}},
		TypeRunResolved:        {&RunResolved{testRun, "a", OutcomeDone}, &RunResolved{testRun, strings.Repeat("a", TokenBytesMax), OutcomeNotDone}},
		TypeEffectStarted:      {&EffectStarted{effect}, &EffectStarted{fullEffect}},
		TypeEffectFinished:     {&EffectFinished{effect}, &EffectFinished{fullEffect}},
		TypeEffectFailed:       {&EffectFailed{effect}, &EffectFailed{fullEffect}},
		TypeClockAccepted:      {&ClockAccepted{Wall: bodyTime("1970-01-01T00:00:00.000000Z")}, &ClockAccepted{Wall: bodyTime("9999-12-31T23:59:59.999999Z")}},
		TypeTransportDenied:    {&TransportDenied{refusals}, &TransportDenied{allRefusals}},
		TypeRequestsRefused:    {&RequestsRefused{refusals}, &RequestsRefused{allRefusals}},
		TypeRestrictionAdded:   {&RestrictionAdded{"a", "b", "c", "true"}, &RestrictionAdded{strings.Repeat("0", IDBytesMax), strings.Repeat("a", TokenBytesMax), "artifact.save", "args.path == \"a\""}},
		TypeRestrictionRemoved: {&RestrictionRemoved{"a", "b"}, &RestrictionRemoved{strings.Repeat("0", IDBytesMax), strings.Repeat("a", TokenBytesMax)}},
		TypeResourceSet:        {&ResourceSet{ID: "a", Classification: "b"}, &ResourceSet{"doc/1", "internal", "legal", []string{"a", "b"}}},
		TypeKeyRotated:         {&KeyRotated{"seal", 2, ""}, &KeyRotated{"checkpoint", 3, "example.org/log/1+1a2b3c4d+AQ=="}},
		TypeKeyRetired:         {&KeyRetired{"permit", 1, ""}, &KeyRetired{"checkpoint", 2, "example.org/log/1\n5\nroot\n\n— sig\n"}},
		TypeSignersSet:         {&SignersSet{1, []string{}}, &SignersSet{IntegerMax, []string{adminKey, agentKey}}},
		TypePayloadErased:      {&PayloadErased{Basis: "mistake"}, &PayloadErased{"subject_request", strings.Repeat("a", IDBytesMax), IntegerMax, []uint64{1, 10, IntegerMax}}},
		TypeMemoryErased:       {&MemoryErased{record}, &MemoryErased{fullRecord}},
		TypeHoldPlaced:         {&HoldPlaced{Hold{Owner: "a"}}, &HoldPlaced{Hold{strings.Repeat("a", IDBytesMax), "a.b.c.d.e.f.g.h-1_", "0-k_", IntegerMax}}},
		TypeHoldLifted:         {&HoldLifted{Hold{Owner: "a"}}, &HoldLifted{Hold{strings.Repeat("a", IDBytesMax), "a.b.c.d.e.f.g.h-1_", "0-k_", IntegerMax}}},
	}
}

func fullDecision(allowed bool, code string) *Decision {
	return &Decision{
		Subject: "formatter", Lineage: []string{"formatter", "researcher", "report_manager"},
		Operation: "sop.validate", Resource: "publish:save", Action: "artifact.save", Allowed: allowed, Reason: code,
		PolicyVersion: "lab-1", PolicyDigest: filledHash(1), Owner: "report_manager", Rule: "artifacts-inside-workspace",
		Failed: []string{"artifacts-inside-workspace", "small-files"}, TraceID: "trace \"1\"", OperationID: "op-~!\\1",
		ArgumentsDigest: filledHash(0x40), PreviousRevision: 6, SOPID: "publish", SOPVersion: 2, StepID: "save",
		RunID: testRun, Observed: []string{"artifact.save", "document.summarize"},
		Blind: "000102030405060708090a0b0c0d0e0f",
	}
}

func TestEveryTypeHasItsVectors(t *testing.T) {
	cases := bodyCases()
	if len(cases) != len(Types()) {
		t.Errorf("%d cases for %d types", len(cases), len(Types()))
	}
	for _, typ := range Types() {
		c, ok := cases[typ]
		if !ok {
			t.Errorf("%s has no vectors", typ)
			continue
		}
		for _, b := range []Body{c.minimal, c.maximal} {
			if b.Type() != typ {
				t.Errorf("%s: vector of type %s", typ, b.Type())
			}
		}
		unset := zeroFields(reflect.ValueOf(c.maximal).Elem())
		if typ == TypeDecisionDenied {
			unset = strings.Replace(unset, "Allowed ", "", 1)
		}
		if typ == TypeClockAccepted || unset == "" {
			continue
		}
		t.Errorf("%s: maximal vector leaves out %s", typ, unset)
	}
}

func zeroFields(v reflect.Value) string {
	names := ""
	for i := range v.NumField() {
		switch f := v.Field(i); {
		case f.Kind() == reflect.Struct:
			names += zeroFields(f)
		case f.IsZero() && v.Type().Field(i).Type != reflect.TypeFor[Time]():
			names += v.Type().Field(i).Name + " "
		}
	}
	return names
}

// TestNewBodyKnowsEveryType holds Types, newBody and Body.Type together.
func TestNewBodyKnowsEveryType(t *testing.T) {
	seen := map[Type]bool{}
	for _, typ := range Types() {
		if seen[typ] {
			t.Errorf("%s stands twice", typ)
		}
		seen[typ] = true
		if b := newBody(typ); b == nil || b.Type() != typ {
			t.Errorf("newBody(%s) = %v", typ, b)
		}
	}
	for _, typ := range []Type{"", "decision", "decision.pending", "Decision.allowed", "memory.gone", "ledger.created "} {
		if b := newBody(typ); b != nil {
			t.Errorf("newBody(%q) = %T", typ, b)
		}
	}
}

// largest returns the biggest body of a type that the limits allow.
func largest(t Type) Body {
	id := strings.Repeat("a", IDBytesMax)
	list := func(n, size int) []string {
		s := make([]string, n)
		for i := range s {
			s[i] = fmt.Sprintf("%0*d", size, i)
		}
		return s
	}
	capabilities := list(CapabilitiesMax, ActionBytesMax)
	patterns := list(WritesMax, NamespaceBytesMax+2)
	tokens := list(CapabilitiesMax, TokenBytesMax)
	token := tokens[0]
	origin := strings.Repeat(`"`, OriginBytesMax) // every byte of a name doubles when escaped
	vkey := origin + "+01234567+" + strings.Repeat("A", 44)
	record := Record{id, strings.Repeat("n", NamespaceBytesMax), strings.Repeat("k", KeyBytesMax), "descendants", "preference", IntegerMax}
	refusals := Refusals{id, strings.Repeat("c", 64), IntegerMax, timeMax, timeMax}
	switch t {
	case TypeLedgerCreated:
		note := origin + "\n9007199254740991\n" + strings.Repeat("A", 44) + "\n\n" + strings.Repeat("— "+origin+" "+strings.Repeat("A", 92)+"\n", 16)
		return &LedgerCreated{Format, origin, id, id, strings.Repeat("U", 56), vkey, vkey, slices.Repeat([]string{agentKey}, 8), &Previous{origin, note, "compromise"}}
	case TypeLedgerOpened:
		return &LedgerOpened{IntegerMax, strings.Repeat("\x01", 1024)}
	case TypeDecisionAllowed, TypeDecisionDenied:
		return &Decision{
			Subject: id, Lineage: list(TreeDepthMax, IDBytesMax), Operation: capabilities[0],
			Resource: id + ":" + record.Namespace + "." + record.Key, Action: capabilities[0],
			Allowed: t == TypeDecisionAllowed, Reason: strings.Repeat("r", 64), PolicyVersion: token, PolicyDigest: filledHash(1),
			Owner: id, Rule: token, Failed: tokens, TraceID: strings.Repeat(`\`, TraceIDBytesMax),
			OperationID: strings.Repeat(`"`, OperationIDBytesMax), ArgumentsDigest: filledHash(1), PreviousRevision: IntegerMax,
			SOPID: token, SOPVersion: IntegerMax, StepID: token, RunID: testRun, Observed: capabilities[:SOPStepsMax], Blind: strings.Repeat("f", 32),
		}
	case TypeAgentRegistered:
		return &AgentRegistered{id, id, capabilities, capabilities, patterns, strings.Repeat("U", 56)}
	case TypeAgentUpdated:
		return &AgentUpdated{id, capabilities, capabilities, patterns}
	case TypeAgentRevoked:
		return &AgentRevoked{id}
	case TypePrincipalRegistered:
		return &PrincipalRegistered{id, "registrar", strings.Repeat("U", 56), capabilities, tokens, id}
	case TypePrincipalRekeyed:
		return &PrincipalRekeyed{id, strings.Repeat("U", 56)}
	case TypePrincipalRevoked:
		return &PrincipalRevoked{id}
	case TypePolicyActivated:
		return &PolicyActivated{token, filledHash(1), IntegerMax}
	case TypeEnvironmentChanged:
		return &EnvironmentChanged{capabilities}
	case TypeMemoryWritten:
		return &MemoryWritten{record, timeMax, testRun}
	case TypeMemoryDeleted:
		return &MemoryDeleted{record}
	case TypeMemoryExpired:
		return &MemoryExpired{record}
	case TypeClockAccepted:
		return &ClockAccepted{timeMax}
	case TypeTransportDenied:
		return &TransportDenied{refusals}
	case TypeRequestsRefused:
		return &RequestsRefused{refusals}
	}
	return largestOfRun(t, id, token, capabilities)
}

func largestOfRun(t Type, id, token string, capabilities []string) Body {
	code := strings.Repeat("r", 64)
	effect := Effect{testRun, token, capabilities[0], testRun + "/" + token, id, code}
	switch t {
	case TypeGrantGiven:
		return &GrantGiven{Grant{id, strings.Repeat("n", NamespaceBytesMax), strings.Repeat("k", KeyBytesMax), id}, timeMax, IntegerMax}
	case TypeGrantRevoked:
		return &GrantRevoked{Grant{id, strings.Repeat("n", NamespaceBytesMax), strings.Repeat("k", KeyBytesMax), id}}
	case TypeEmergencyDenied:
		return &EmergencyDenied{Emergency{id, capabilities, true, IntegerMax}}
	case TypeEmergencyLifted:
		return &EmergencyLifted{Emergency{id, capabilities, true, IntegerMax}}
	case TypeRunAdmitted:
		return &RunAdmitted{testRun, token, IntegerMax, longNames(SOPStepsMax, TokenBytesMax), capabilities[:SOPStepsMax]}
	case TypeRunStarted:
		return &RunStarted{testRun}
	case TypeRunFinished:
		return &RunFinished{testRun}
	case TypeRunFailed:
		return &RunFailed{testRun, token, code}
	case TypeRunCancelled:
		return &RunCancelled{testRun}
	case TypeRunDoubted:
		return &RunDoubted{testRun, token, code}
	case TypeRunResolved:
		return &RunResolved{testRun, token, code}
	case TypeEffectStarted:
		return &EffectStarted{effect}
	case TypeEffectFinished:
		return &EffectFinished{effect}
	case TypeRestrictionAdded:
		return &RestrictionAdded{id, strings.Repeat("a", TokenBytesMax), strings.Repeat("a", ActionBytesMax), strings.Repeat("\x01", 2048)}
	case TypeRestrictionRemoved:
		return &RestrictionRemoved{id, strings.Repeat("a", TokenBytesMax)}
	case TypeResourceSet:
		tags := make([]string, 16)
		for i := range tags {
			tags[i] = strings.Repeat("a", TokenBytesMax)
		}
		return &ResourceSet{strings.Repeat("a", 128), strings.Repeat("a", TokenBytesMax), strings.Repeat("a", TokenBytesMax), tags}
	case TypeSignersSet:
		return &SignersSet{IntegerMax, slices.Repeat([]string{agentKey}, 8)}
	case TypeKeyRotated:
		return &KeyRotated{KeyCheckpoint, IntegerMax, strings.Repeat("o", OriginBytesMax) + "/permit+00000000+" + strings.Repeat("k", 44)}
	case TypeKeyRetired: // a note of two lines of signatures
		return &KeyRetired{KeyCheckpoint, IntegerMax, strings.Repeat("o", OriginBytesMax) + strings.Repeat("n", 800)}
	case TypeEffectFailed:
		return &EffectFailed{effect}
	}
	return largestErasure(t, id)
}

func largestErasure(t Type, id string) Body {
	namespace, key := strings.Repeat("n", NamespaceBytesMax), strings.Repeat("k", KeyBytesMax)
	switch t {
	case TypePayloadErased:
		seqs := make([]uint64, 1024) // wire.EraseSeqsMax
		for i := range seqs {
			seqs[i] = IntegerMax - 2 - uint64(len(seqs)-i)
		}
		return &PayloadErased{"subject_request", id, IntegerMax, seqs}
	case TypeMemoryErased:
		return &MemoryErased{Record{id, namespace, key, "descendants", "preference", IntegerMax}}
	case TypeHoldPlaced:
		return &HoldPlaced{Hold{id, namespace, key, IntegerMax}}
	case TypeHoldLifted:
		return &HoldLifted{Hold{id, namespace, key, IntegerMax}}
	}
	return nil
}

// TestLargestEventSeals: the limits are such that whatever was accepted can be
// recorded, and published on a subject that NATS takes.
func TestLargestEventSeals(t *testing.T) {
	for _, typ := range Types() {
		body := largest(typ)
		if body == nil {
			t.Errorf("%s has no largest case", typ)
			continue
		}
		e := Event{Seq: IntegerMax, Prev: filledHash(1), Time: timeMax, ID: testID(1), Agent: strings.Repeat("a", IDBytesMax), Cause: IntegerMax - 1, Payload: filledHash(2), Body: body}
		b, err := e.Append(nil)
		if err != nil {
			t.Errorf("%s: %v", typ, err)
			continue
		}
		t.Logf("%-22s %6d bytes", typ, len(b))
		if back, err := Parse(b); err != nil || !reflect.DeepEqual(back, e) {
			t.Errorf("%s does not read back: %v", typ, err)
		}
		checkSubject(t, e.StreamSubject(strings.Repeat("l", IDBytesMax)))
	}
}

func checkSubject(t *testing.T, subject string) {
	t.Helper()
	if len(subject) > 255 {
		t.Errorf("subject of %d bytes: %s", len(subject), subject)
	}
	for _, token := range strings.Split(subject, ".") {
		if token == "" || strings.ContainsAny(token, "*> \t\r\n") || !printable(token, 255) {
			t.Errorf("illegal token %q in subject %s", token, subject)
		}
	}
}

func TestStreamSubject(t *testing.T) {
	for _, c := range []struct {
		agent string
		body  Body
		want  string
	}{
		{"researcher", &Decision{Operation: "memory.write"}, "led.main.decision.researcher.denied.memory.write"},
		{"researcher", &Decision{Operation: "memory.write", Allowed: true}, "led.main.decision.researcher.allowed.memory.write"},
		{"researcher", &Decision{Operation: Unsupported}, "led.main.decision.researcher.denied.unsupported"},
		{"researcher", &MemoryWritten{}, "led.main.memory.researcher.written"},
		{System, &LedgerOpened{}, "led.main.ledger.sys.opened"},
	} {
		e := Event{Agent: c.agent, Body: c.body}
		if got := e.StreamSubject("main"); got != c.want {
			t.Errorf("%s, want %s", got, c.want)
		}
		checkSubject(t, e.StreamSubject("main"))
	}
}
