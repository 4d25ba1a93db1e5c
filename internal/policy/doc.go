// Package policy holds the rules a ledger judges by: capability sets, the
// active policy, and the documents (Policy, Agent, Memory, Principal) that an
// operator applies. First call: ParseDocument, or ParseFile for a whole file.
//
// It is pure: the same text always gives the same document or the same faults,
// so that anyone can judge a log again. It fails closed: a document with any
// fault yields nothing, what this release does not support is refused and
// never half-obeyed, and a nil *Policy allows nothing.
package policy
