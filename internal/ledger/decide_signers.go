package ledger

import (
	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/policy"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// signed checks a policy that is to be put in force where the ledger has
// signers: one of them has signed it for this ledger, and it was not in force
// before, or whoever may apply could bring back what the signers replaced.
func (j *judge) signed(p *policy.Policy, used bool) reason.Code {
	if len(j.s.Signers) == 0 {
		return ""
	}
	ok, faults := policy.Signed(j.s.Signers, policy.Statement(j.s.Origin, p.Version, p.Digest), j.p.Request.Body.(*wire.Apply).Signatures)
	if !ok {
		j.note("policy %s has to be signed by one of the ledger's signers: \"ledgerd policy sign\" for origin %s", p.Version, j.s.Origin)
		j.out.Faults = append(j.out.Faults, faults...)
		return reason.PolicyNotSigned
	}
	if used {
		j.note("policy %s was replaced; to have it again, sign it under a new version", p.Version)
		return reason.PolicyVersionExists
	}
	return ""
}

// setSigners puts the signers of policies in the place of those so far, one of
// whom has to sign that; an admin alone says who the first are.
func (j *judge) setSigners(r *wire.SignersSet) reason.Code {
	keys := policy.NewSet(r.Keys...)
	if !policy.ValidSigners(keys) || len(keys) != len(r.Keys) {
		j.note("keys are public keys of NATS users, U…, none twice")
		return reason.MalformedRequest
	}
	if j.s.Signers.Equal(keys) {
		return reason.ControlDone
	}
	number := j.s.SignersNo + 1
	ok, faults := policy.Signed(j.s.Signers, policy.SignersStatement(j.s.Origin, number, keys), r.Signatures)
	if len(j.s.Signers) > 0 && !ok {
		j.note("change %d of the signers has to be signed by one of those so far", number)
		j.out.Faults = append(j.out.Faults, faults...)
		return reason.PolicyNotSigned
	}
	j.emit(&events.SignersSet{Number: number, Keys: keys})
	return reason.ControlDone
}
