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
