package policy

import (
	"slices"

	"github.com/ledgerd/ledgerd/internal/events"
)

// Bounds of the registry of resources.
const (
	ResourcesMax    = 100_000
	ResourceTagsMax = 16
)

// Valid reports whether r may stand in the registry.
func (r Resource) Valid() bool {
	if !events.ValidResourceID(r.ID) || !events.ValidToken(r.Classification) || r.Owner != "" && !events.ValidToken(r.Owner) || len(r.Tags) > ResourceTagsMax {
		return false
	}
	for i, tag := range r.Tags {
		if !events.ValidToken(tag) || i > 0 && r.Tags[i-1] >= tag {
			return false
		}
	}
	return true
}

// Equal reports whether r and other say the same.
func (r Resource) Equal(other Resource) bool {
	return r.ID == other.ID && r.Classification == other.Classification && r.Owner == other.Owner && slices.Equal(r.Tags, other.Tags)
}
