package events

// The limits of DESIGN in one place, each with its reason. Sizes are bytes.
const (
	EventBytesMax = 65_535 // a C2SP entry bundle gives each entry a 16-bit length

	RequestBytesMax   = 256 << 10 // an apply of a whole policy fits; a flood of them stays affordable
	ReplyBytesMax     = 768 << 10 // leaves head room under MaxPayload for headers
	PayloadBytesMax   = 1 << 20   // nats-server's default, kept so that any client works
	ValueBytesMax     = 64 << 10  // a note, not a file; files belong behind a handler
	ArgumentsBytesMax = 64 << 10  // the same, for one action

	JSONDepthMax = 32 // deeper is no business document, and a parser's stack is finite

	CapabilitiesMax = 256 // with 64-byte names a registration still fits an event
	WritesMax       = 64  // patterns of namespaces; with 130 bytes each, beside capabilities and use, they fit an event
	SOPStepsMax     = 50  // every step is judged and logged before the first runs
	TreeDepthMax    = 16  // a lineage is written into every decision
	ChildrenMax     = 256 // bounds the fan-out of one agent's registrations

	GrantsOfOneMax  = 64             // of one owner: each is looked through with every grant
	GrantsOfTreeMax = 512            // of the owners of one tree, so that it leaves room for others
	GrantsMax       = 4096           // of a ledger, for the same reason
	GrantSecondsMax = 30 * 24 * 3600 // longer is no lending

	TTLSecondsMax = 30 * 24 * 3600 // of a record: what is to last longer is no task state

	OpenRunsMax    = 64        // of one agent: each holds a place until it ends or a person resolves it
	RunDurationMax = 24 * 3600 // seconds; fifty steps of half an hour each do not outlive a working day
	OutputBytesMax = 192 << 10 // of one effect; with its frame it fits a report

	IDBytesMax          = 63
	NamespaceBytesMax   = 128
	NamespaceSegments   = 8
	KeyBytesMax         = 128
	TokenBytesMax       = 64 // sop_id, step_id, policy version, rule id, group
	ActionBytesMax      = 64
	ActionSegments      = 6
	OperationIDBytesMax = 128
	TraceIDBytesMax     = 64
	OriginBytesMax      = 255 // a C2SP origin is one line of a checkpoint, and a key name

	IntegerMax = 1<<53 - 1 // what every JSON reader, doubles included, holds exactly
)
