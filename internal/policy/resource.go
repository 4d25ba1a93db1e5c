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

// resource reads a Resource document.
func (d *decoder) resource(n node) *Resource {
	f := d.fields(n, "Resource", "apiVersion", "kind", "id", "classification", "owner", "tags")
	d.require(n, "Resource", f, "id", "classification")
	r := &Resource{
		ID:             d.name(f["id"], "resource id", events.ValidResourceID, resourceGrammar),
		Classification: d.name(f["classification"], "classification", events.ValidToken, tokenGrammar),
	}
	if owner, ok := f["owner"]; ok {
		r.Owner = d.name(owner, "owner", events.ValidToken, tokenGrammar)
	}
	if tags, ok := f["tags"]; ok {
		set := d.set(tags, "tags", events.ValidToken, tokenGrammar, nil)
		if r.Tags = set; len(set) > ResourceTagsMax {
			d.faultf(tags, "tags has %d entries; at most %d are allowed", len(set), ResourceTagsMax)
		}
	}
	return r
}

const resourceGrammar = "at most 128 of A-Z a-z 0-9 _ . : / -"

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
