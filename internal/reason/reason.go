// Package reason is the closed list of reason codes: every outcome of a
// proposal carries exactly one of them. Codes are never renamed and never
// reused; a retired one stays in the table. A code carries no ids: owner and
// rule are fields of the decision. docs/REASONS.md is generated from the table
// (go generate ./internal/reason).
package reason

// Code names one outcome. The empty code names none and allows nothing.
type Code string

// Group allowed.
const (
	VisibleFrom       Code = "visible_from"
	GrantedBy         Code = "granted_by"
	CombinedFrom      Code = "combined_from"
	OwnerWrite        Code = "owner_write"
	OwnerDelete       Code = "owner_delete"
	StepAllowed       Code = "step_allowed"
	SOPAdmitted       Code = "sop_admitted"
	ActionAllowed     Code = "action_allowed"
	Registered        Code = "registered"
	GrantGiven        Code = "grant_given"
	GrantRevoked      Code = "grant_revoked"
	RunCancelAccepted Code = "run_cancel_accepted"
	RestrictionAdded  Code = "restriction_added"
	ControlDone       Code = "control_done"
	Redeemed          Code = "redeemed"
)

// Group door.
const (
	Overloaded  Code = "overloaded"
	RateLimited Code = "rate_limited"
	StorageLow  Code = "storage_low"
)

// Group unknown outcome.
const (
	NotKnownCommitted Code = "not_known_committed"
)

// Group request.
const (
	MalformedRequest     Code = "malformed_request"
	UnsupportedOperation Code = "unsupported_operation"
	RequestTooLarge      Code = "request_too_large"
	BadReplySubject      Code = "bad_reply_subject"
)

// Group conflict.
const (
	OperationIDConflict      Code = "operation_id_conflict"
	RevisionConflict         Code = "revision_conflict"
	RecordExists             Code = "record_exists"
	ExpectedRevisionRequired Code = "expected_revision_required"
	PolicyVersionExists      Code = "policy_version_exists"
)

// Group who.
const (
	PolicyNotSigned     Code = "policy_not_signed"
	UnknownAgent        Code = "unknown_agent"
	AgentRevoked        Code = "agent_revoked"
	EmergencyDeny       Code = "emergency_deny"
	NotPermittedForRole Code = "not_permitted_for_role"
	NoPolicy            Code = "no_policy"
	QuotaExceeded       Code = "quota_exceeded"
)

// Group what.
const (
	UnknownAction                    Code = "unknown_action"
	CapabilityNotInherited           Code = "capability_not_inherited"
	ActionNotInEffectiveCapabilities Code = "action_not_in_effective_capabilities"
	ArgumentSchema                   Code = "argument_schema"
	RequirementFailed                Code = "requirement_failed"
	RequirementError                 Code = "requirement_error"
	ApprovalRequired                 Code = "approval_required"
	ApprovalRejected                 Code = "approval_rejected"
	ApprovalExpired                  Code = "approval_expired"
	ApprovalByProposer               Code = "approval_by_proposer"
)

// Group memory.
const (
	ActorIsNotOwner       Code = "actor_is_not_owner"
	NamespaceNotAllowed   Code = "namespace_not_allowed"
	ValueNotAllowed       Code = "value_not_allowed"
	MandatoryTypeMismatch Code = "mandatory_type_mismatch"
)

// Group memory, log only.
const (
	NotVisibleFrom Code = "not_visible_from"
	RecordNotFound Code = "record_not_found"
	GrantRequired  Code = "grant_required"
)

// Group memory, told.
const (
	RecordUnavailable Code = "record_unavailable"
)

// Group sop.
const (
	SOPMalformed          Code = "sop_malformed"
	SOPVersionInvalid     Code = "sop_version_invalid"
	SOPEmpty              Code = "sop_empty"
	SOPTooLarge           Code = "sop_too_large"
	EmptyStepID           Code = "empty_step_id"
	DuplicateStepID       Code = "duplicate_step_id"
	CrossOwnerMemoryWrite Code = "cross_owner_memory_write"
	ReferenceOutOfScope   Code = "reference_out_of_scope"
	ForbiddenFlow         Code = "forbidden_flow"
	LoopUnbounded         Code = "loop_unbounded"
	CostExceeded          Code = "cost_exceeded"
	MissingHandlers       Code = "missing_handlers"
)

// Group run, permit.
const (
	PermitExpired  Code = "permit_expired"
	PermitReused   Code = "permit_reused"
	PermitMismatch Code = "permit_mismatch"
	PermitRevoked  Code = "permit_revoked"
	EffectTimeout  Code = "effect_timeout"
	EffectFailed   Code = "effect_failed"
	OutputTooLarge Code = "output_too_large"
	RunCancelled   Code = "run_cancelled"
	InDoubt        Code = "in_doubt"
)

// Group erasure.
const (
	NotErasable    Code = "not_erasable"
	PayloadHeld    Code = "payload_held"
	PayloadInUse   Code = "payload_in_use"
	RetentionFloor Code = "retention_floor"
)

// Group registration.
const (
	DuplicateAgent   Code = "duplicate_agent"
	UnknownParent    Code = "unknown_parent"
	HierarchyCycle   Code = "hierarchy_cycle"
	HierarchyTooDeep Code = "hierarchy_too_deep"
	TooManyChildren  Code = "too_many_children"
	NameNotAllowed   Code = "name_not_allowed"
	KeyInUse         Code = "key_in_use"
	UnknownOwner     Code = "unknown_owner"
	PolicyInvalid    Code = "policy_invalid"
)

// Group registration, missing.
const (
	NotFound Code = "not_found"
)

// Info says what a code means to a machine and to a person.
type Info struct {
	Code      Code
	Group     string
	Allowed   bool   // the proposal was allowed
	Number    int    // Nats-Service-Error-Code, after HTTP
	Exit      int    // exit code of the command line
	Retryable bool   // the same request may succeed later, unchanged
	Text      string // one sentence without ids or values, for people
}

// Of returns what is known of c; ok is false for a code that is not in the
// table, which callers treat as a denial.
func Of(c Code) (Info, bool) {
	i, ok := index[c]
	if !ok {
		return Info{Code: c, Group: "unknown", Number: 500, Exit: 1, Text: "unknown reason"}, false
	}
	return table[i], true
}

// Allowed reports whether c allows. An unknown code does not.
func (c Code) Allowed() bool {
	i, ok := index[c]
	return ok && table[i].Allowed
}

// Text is the sentence shown to people.
func (c Code) Text() string {
	info, _ := Of(c)
	return info.Text
}

// All returns the table in its fixed order. The caller must not change it.
func All() []Info { return table }

// Told is the code that the asker is told in place of c: whether a record is
// hidden, absent or a secret is for the log alone.
func Told(c Code) Code {
	switch c {
	case NotVisibleFrom, RecordNotFound, GrantRequired:
		return RecordUnavailable
	}
	return c
}

var index = func() map[Code]int {
	m := make(map[Code]int, len(table))
	for i, info := range table {
		m[info.Code] = i
	}
	return m
}()

//go:generate go run ./gen ../../docs/REASONS.md
var table = []Info{
	{VisibleFrom, "allowed", true, 200, 0, false, "the nearest record visible to the reader is returned"},
	{GrantedBy, "allowed", true, 200, 0, false, "the record is read under a grant of its owner"},
	{CombinedFrom, "allowed", true, 200, 0, false, "the mandatory records of the whole lineage are combined"},
	{OwnerWrite, "allowed", true, 200, 0, false, "the owner wrote its own record"},
	{OwnerDelete, "allowed", true, 200, 0, false, "the owner deleted its own record"},
	{StepAllowed, "allowed", true, 200, 0, false, "the step may run"},
	{SOPAdmitted, "allowed", true, 200, 0, false, "every step of the procedure is known and allowed"},
	{ActionAllowed, "allowed", true, 200, 0, false, "the action is in the effective capabilities"},
	{Registered, "allowed", true, 200, 0, false, "the agent is registered"},
	{GrantGiven, "allowed", true, 200, 0, false, "the grant is given"},
	{GrantRevoked, "allowed", true, 200, 0, false, "the grant is revoked"},
	{RunCancelAccepted, "allowed", true, 200, 0, false, "the run will be cancelled"},
	{RestrictionAdded, "allowed", true, 200, 0, false, "the restriction holds for the agent and all below it"},
	{ControlDone, "allowed", true, 200, 0, false, "the control operation is done"},
	{Redeemed, "allowed", true, 200, 0, false, "the permit is redeemed"},
	{Overloaded, "door", false, 503, 7, true, "too much is waiting; try again later with the same operation id"},
	{RateLimited, "door", false, 429, 7, true, "the sender is over its rate; try again later with the same operation id"},
	{StorageLow, "door", false, 503, 7, true, "too little disk is left to record a decision"},
	{NotKnownCommitted, "unknown outcome", false, 503, 7, true, "the store failed before the outcome was known; ask again with the same operation id"},
	{MalformedRequest, "request", false, 400, 2, false, "the request is not the JSON object its operation asks for"},
	{UnsupportedOperation, "request", false, 400, 2, false, "this release does not know the operation, or a field asks for one"},
	{RequestTooLarge, "request", false, 400, 2, false, "the request, a value or the arguments are over their limit"},
	{BadReplySubject, "request", false, 400, 2, false, "the reply subject is not under the sender's own inbox"},
	{OperationIDConflict, "conflict", false, 409, 5, false, "the operation id was used before with other content"},
	{RevisionConflict, "conflict", false, 409, 5, false, "expected_revision is not the record's revision"},
	{RecordExists, "conflict", false, 409, 5, false, "the record exists; loading never overwrites"},
	{ExpectedRevisionRequired, "conflict", false, 409, 5, false, "the record exists; an update gives expected_revision"},
	{PolicyVersionExists, "conflict", false, 409, 5, false, "another document has this policy version"},
	{PolicyNotSigned, "who", false, 403, 3, false, "none of the ledger's signers has signed it"},
	{UnknownAgent, "who", false, 403, 3, false, "the sender is not registered"},
	{AgentRevoked, "who", false, 403, 3, false, "the agent is revoked"},
	{EmergencyDeny, "who", false, 403, 3, false, "an emergency deny is in force"},
	{NotPermittedForRole, "who", false, 403, 3, false, "the sender's role may not do this"},
	{NoPolicy, "who", false, 403, 3, false, "no policy is in force"},
	{QuotaExceeded, "who", false, 403, 3, false, "a quota is used up"},
	{UnknownAction, "what", false, 403, 3, false, "no policy declares the action"},
	{CapabilityNotInherited, "what", false, 403, 3, false, "the capability is missing somewhere between the environment, the root and the agent"},
	{ActionNotInEffectiveCapabilities, "what", false, 403, 3, false, "the action is not among the agent's effective capabilities"},
	{ArgumentSchema, "what", false, 403, 3, false, "the arguments have not the declared shape"},
	{RequirementFailed, "what", false, 403, 3, false, "a requirement on the arguments does not hold"},
	{RequirementError, "what", false, 403, 3, false, "a requirement could not be evaluated"},
	{ApprovalRequired, "what", false, 403, 3, false, "a person must approve this first"},
	{ApprovalRejected, "what", false, 403, 3, false, "a person rejected this"},
	{ApprovalExpired, "what", false, 403, 3, false, "nobody approved this in time"},
	{ApprovalByProposer, "what", false, 403, 3, false, "no one approves what it proposed"},
	{ActorIsNotOwner, "memory", false, 403, 3, false, "only the owner writes or deletes a record"},
	{NamespaceNotAllowed, "memory", false, 403, 3, false, "the agent may not write in this namespace"},
	{ValueNotAllowed, "memory", false, 403, 3, false, "the value has not the declared type or range"},
	{MandatoryTypeMismatch, "memory", false, 403, 3, false, "a mandatory record has a value its combination cannot take"},
	{NotVisibleFrom, "memory, log only", false, 403, 3, false, "the nearest record is hidden from the reader"},
	{RecordNotFound, "memory, log only", false, 403, 3, false, "there is no such record in the lineage"},
	{GrantRequired, "memory, log only", false, 403, 3, false, "the record is a secret and the reader holds no grant"},
	{RecordUnavailable, "memory, told", false, 404, 4, false, "no record by this name is available to the reader"},
	{SOPMalformed, "sop", false, 403, 3, false, "the procedure has not the documented shape"},
	{SOPVersionInvalid, "sop", false, 403, 3, false, "the version is not a positive integer"},
	{SOPEmpty, "sop", false, 403, 3, false, "the procedure has no steps"},
	{SOPTooLarge, "sop", false, 403, 3, false, "the procedure has too many steps"},
	{EmptyStepID, "sop", false, 403, 3, false, "the step has no id"},
	{DuplicateStepID, "sop", false, 403, 3, false, "another step has this id"},
	{CrossOwnerMemoryWrite, "sop", false, 403, 3, false, "a step writes only its own agent's memory, and names it"},
	{ReferenceOutOfScope, "sop", false, 403, 3, false, "the step names an agent or record outside the lineage"},
	{ForbiddenFlow, "sop", false, 403, 3, false, "data would flow where its label does not allow"},
	{LoopUnbounded, "sop", false, 403, 3, false, "a loop has no bound"},
	{CostExceeded, "sop", false, 403, 3, false, "the worst case costs more than allowed"},
	{MissingHandlers, "sop", false, 403, 3, false, "no handler is present for an action"},
	{PermitExpired, "run, permit", false, 403, 3, false, "the permit is past its time"},
	{PermitReused, "run, permit", false, 403, 3, false, "the permit was redeemed before"},
	{PermitMismatch, "run, permit", false, 403, 3, false, "the permit was issued for something else"},
	{PermitRevoked, "run, permit", false, 403, 3, false, "the permit is revoked"},
	{EffectTimeout, "run, permit", false, 403, 3, false, "the effect was not reported in time"},
	{EffectFailed, "run, permit", false, 403, 3, false, "the effect failed"},
	{OutputTooLarge, "run, permit", false, 403, 3, false, "the effect's result is over its limit"},
	{RunCancelled, "run, permit", false, 403, 3, false, "the run was cancelled"},
	{InDoubt, "run, permit", false, 403, 3, false, "an effect started and nobody knows whether it happened"},
	{NotErasable, "erasure", false, 403, 3, false, "policies, mandatory records, keys and registrations are never erased"},
	{PayloadHeld, "erasure", false, 403, 3, false, "a hold keeps it from being erased"},
	{PayloadInUse, "erasure", false, 403, 3, false, "a run that is still open needs it"},
	{RetentionFloor, "erasure", false, 403, 3, false, "it is not yet as old as the policy has it kept"},
	{DuplicateAgent, "registration", false, 403, 3, false, "the id is taken, now or before"},
	{UnknownParent, "registration", false, 403, 3, false, "the parent is not a registered agent"},
	{HierarchyCycle, "registration", false, 403, 3, false, "an agent cannot be its own ancestor"},
	{HierarchyTooDeep, "registration", false, 403, 3, false, "the tree would be deeper than allowed"},
	{TooManyChildren, "registration", false, 403, 3, false, "the parent has as many children as allowed"},
	{NameNotAllowed, "registration", false, 403, 3, false, "the id is outside the grammar or reserved"},
	{KeyInUse, "registration", false, 403, 3, false, "the public key belongs to another id, now or before"},
	{UnknownOwner, "registration", false, 403, 3, false, "the owner is not a registered agent"},
	{PolicyInvalid, "registration", false, 403, 3, false, "a document is refused; the faults are listed"},
	{NotFound, "registration, missing", false, 404, 4, false, "there is nothing by this name"},
}
