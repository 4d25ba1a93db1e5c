package wire

// Restriction is a requirement that an agent and all beneath it are held to.
type Restriction struct {
	AgentID string `json:"agent_id"`
	ID      string `json:"id"`
	Action  string `json:"action"`
	Require string `json:"require,omitempty"` // left out where the answer would be too large
}

// Resources answers the query of that name, sorted by id. Next, if any, is the
// id to continue after.
type Resources struct {
	Resources []Resource `json:"resources"`
	Next      string     `json:"next,omitempty"`
	Seq       uint64     `json:"seq"`
}

// Resource is what the registry says of an object that arguments name.
type Resource struct {
	ID             string   `json:"id"`
	Classification string   `json:"classification"`
	Owner          string   `json:"owner,omitempty"`
	Tags           []string `json:"tags,omitempty"`
}

// Grants answers the query of that name, sorted by Name. Next, if any, is the
// name to continue after.
type Grants struct {
	Grants []Grant `json:"grants"`
	Next   string  `json:"next,omitempty"`
	Seq    uint64  `json:"seq"`
}

// Grant is what lets one agent read one secret of another.
type Grant struct {
	Owner     string `json:"owner_agent_id"`
	Namespace string `json:"namespace"`
	Key       string `json:"key"`
	To        string `json:"to"`
	Expires   string `json:"expires"`
	Uses      uint64 `json:"uses,omitempty"` // left; 0 where they are not counted
}

// Name tells a grant from all others, OWNER:NAMESPACE.KEY:TO.
func (g Grant) Name() string { return g.Owner + ":" + g.Namespace + "." + g.Key + ":" + g.To }

// Runs answers the query of that name: the runs that have not come to their end,
// in the order in which they were admitted. Next, if any, is the seq to continue
// from.
type Runs struct {
	Runs []OpenRun `json:"runs"`
	Next uint64    `json:"next,omitempty"`
	Seq  uint64    `json:"seq"`
}

// OpenRun is a run on its way, or in doubt.
type OpenRun struct {
	RunID      string `json:"run_id"`
	Agent      string `json:"agent"`
	SOPID      string `json:"sop_id"`
	SOPVersion uint64 `json:"sop_version"`
	State      string `json:"state"`
	Reason     string `json:"reason_code,omitempty"` // why it is in doubt
	Admitted   string `json:"admitted"`              // when
	Decision   uint64 `json:"decision"`              // seq of the decision that admitted it
	Steps      int    `json:"steps"`
	Done       int    `json:"done"`              // of them
	StepID     string `json:"step_id,omitempty"` // the step that is under way, in doubt, or next
}

// Denies answers the query of that name: the emergency denies in force, by
// epoch, and the epoch of the last one, in force or not.
type Denies struct {
	Denies []Deny `json:"denies"`
	Epoch  uint64 `json:"epoch"`
	Seq    uint64 `json:"seq"`
}
