package wire

import "github.com/ledgerd/ledgerd/internal/events"

// resource is what a decision names as its resource: of names within their
// grammar only.
func resource(body any) string {
	switch r := body.(type) {
	case *MemoryRead:
		if r.Owner == "" {
			return r.Namespace + "." + r.Key
		}
		return r.Owner + ":" + r.Namespace + "." + r.Key
	case *MemoryWrite:
		return r.Owner + ":" + r.Namespace + "." + r.Key
	case *GrantGive: // the owner is who sends it
		return r.Namespace + "." + r.Key
	case *GrantRevoke:
		return r.Namespace + "." + r.Key
	case *MemoryDelete:
		return r.Owner + ":" + r.Namespace + "." + r.Key
	case *MemoryLoad:
		return r.Owner + ":" + r.Namespace + "." + r.Key
	case *ActionAuthorize:
		return named(r.Action, events.ValidAction)
	case *SOPValidate:
		return r.resource
	case *SOPSubmit:
		return r.resource
	case *RunCancel:
		return r.RunID
	case *RunResolve:
		return r.RunID
	case *EmergencyDeny:
		return r.AgentID
	case *AgentRegister:
		return named(r.AgentID, events.ValidID)
	case *AgentRevoke:
		return r.AgentID
	case *PrincipalRegister:
		return named(r.ID, events.ValidID)
	case *RestrictionAdd:
		return r.ID
	case *RestrictionRemove:
		return r.AgentID + ":" + r.ID
	case *ResourceSet:
		return r.ID
	case *KeyRotate:
		return r.Key
	case *KeyRetire:
		return r.Key
	case *PrincipalRekey:
		return r.ID
	case *PrincipalRevoke:
		return r.ID
	case *PayloadErase:
		return eraseResource(r)
	case *HoldPlace:
		return holdResource(r.Hold)
	case *HoldLift:
		return holdResource(r.Hold)
	}
	return ""
}

func named(s string, valid func(string) bool) string {
	if valid(s) {
		return s
	}
	return ""
}
