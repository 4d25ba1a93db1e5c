package replay_test

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/replay"
)

// follows reports the decision that event i of the log follows from, where that is
// one on a request that leaves its effects to be told apart.
func (l *log) follows(i int) *events.Decision {
	e := &l.events[i]
	if e.Cause == 0 {
		return nil
	}
	d, _ := l.events[e.Cause-1].Body.(*events.Decision)
	return d
}

// Without its request a decision of an admin, or on an agent, a grant or a
// restriction, still lets follow only what somebody could have asked for. What
// could have been asked for otherwise is what a request alone says.
func TestR82_WhatNobodyCanHaveAskedForIsFoundWithoutTheRequest(t *testing.T) {
	honest := honestLog(t).sealed()
	asked := map[string]bool{
		"apply": true, "agent.register": true, "principal.register": true, "principal.rekey": true, "restriction.add": true, "restriction.remove": true,
		"grant.give": true, "resource.set": true, "environment.set": true, "signers.set": true, "emergency.deny": true, "emergency.lift": true,
		"key.rotate": true, "key.retire": true, "payload.erase": true, "memory.load": true,
	}
	open := map[string]bool{ // another such value could have been asked for
		"ResourceSet.Classification": true, "ResourceSet.Owner": true, "ResourceSet.Tags": true, "GrantGiven.Uses": true,
		"MemoryWritten.Key": true, "MemoryWritten.Namespace": true, "AgentRegistered.AgentID": true, "PrincipalRegistered.ID": true,
		"AgentRegistered.Writes": true, "AgentUpdated.Writes": true,
	}
	changed, left := 0, map[string]int{}
	seen := map[string]bool{}
	for i := range honest.events {
		d := honest.follows(i)
		if d == nil || !asked[d.Operation] {
			continue
		}
		typ := reflect.TypeOf(honest.events[i].Body).Elem()
		if kind := d.Operation + typ.Name(); seen[kind] {
			continue
		} else {
			seen[kind] = true
		}
		for _, field := range reflect.VisibleFields(typ) {
			if field.Anonymous {
				continue
			}
			l := honest.copy()
			if !alter(reflect.ValueOf(l.events[i].Body).Elem().FieldByIndex(field.Index)) {
				t.Fatal(typ.Name(), field.Name)
			}
			if _, err := l.events[i].Append(nil); err != nil {
				continue
			}
			l.events = l.events[:i+1]
			report := replay.Run(l.rechain(t))
			changed++
			name := typ.Name() + "." + field.Name
			if found := slices.ContainsFunc(report.Findings, func(f replay.Finding) bool { return f.Seq == uint64(i)+1 }); !found && !open[name] {
				t.Errorf("event %d of a decision on %s: %s changed and not found: %v", i+1, d.Operation, name, report.Findings)
			} else if !found {
				left[name]++
			}
		}
	}
	t.Logf("%d changes; could have been asked for: %v", changed, left)
}

// What an apply puts in force is held to an order, to one document about one thing,
// and to what there was.
func TestR82_TheEffectsOfAnApplyWithoutItsDocuments(t *testing.T) {
	honest := honestLog(t).sealed()
	of := func(l *log, typ events.Type, nth int) int {
		for i := range l.events {
			if d := l.follows(i); d != nil && d.Operation == "apply" && l.events[i].Body.Type() == typ {
				if nth--; nth < 0 {
					return i
				}
			}
		}
		t.Fatalf("no apply gives %s", typ)
		return 0
	}
	swap := func(l *log, i, k int) int {
		l.events[i].Body, l.events[k].Body = l.events[k].Body, l.events[i].Body
		return i
	}
	for name, forge := range map[string]func(l *log) int{
		"an agent before its parent": func(l *log) int {
			return swap(l, of(l, events.TypeAgentRegistered, 0), of(l, events.TypeAgentRegistered, 1))
		},
		"an agent before the policy": func(l *log) int {
			i := of(l, events.TypePolicyActivated, 0)
			l.events = slices.Delete(l.events, i, i+1)
			return i
		},
		"an agent twice": func(l *log) int {
			i := of(l, events.TypeAgentRegistered, 0)
			again := *l.events[i].Body.(*events.AgentRegistered)
			l.follow(i, &again)
			l.events[i+1].Cause = l.events[i].Cause
			return i + 1
		},
		"an agent that has a principal's id": func(l *log) int {
			i := of(l, events.TypeAgentRegistered, 0)
			l.events[i].Body.(*events.AgentRegistered).AgentID = "admin"
			return i
		},
		"an agent with the admin's key": func(l *log) int {
			i := of(l, events.TypeAgentRegistered, 0)
			l.events[i].Body.(*events.AgentRegistered).PublicKey = l.events[0].Body.(*events.LedgerCreated).AdminPublicKey
			return i
		},
		"a capability that is declared nowhere": func(l *log) int {
			i := of(l, events.TypeAgentRegistered, 0)
			l.events[i].Body.(*events.AgentRegistered).Capabilities = []string{"a.b"}
			return i
		},
		"a use of what it has not": func(l *log) int {
			i := of(l, events.TypeAgentRegistered, 0)
			l.events[i].Body.(*events.AgentRegistered).Use = []string{"document.summarize.not"}
			return i
		},
		"a principal among the records": func(l *log) int {
			i := of(l, events.TypeMemoryWritten, 0)
			l.follow(i, &events.PrincipalRegistered{ID: "late", Role: "auditor", PublicKey: key(t, l)})
			l.events[i+1].Cause = l.events[i].Cause
			return i + 1
		},
		"an agent updated to what it is": func(l *log) int {
			i := of(l, events.TypeAgentRegistered, 0)
			b := l.events[i].Body.(*events.AgentRegistered)
			k := of(l, events.TypeAgentUpdated, 0)
			l.events[k].Body = &events.AgentUpdated{AgentID: b.AgentID, Capabilities: b.Capabilities, Use: b.Use, Writes: b.Writes}
			return k
		},
		"a record of nobody": func(l *log) int {
			i := of(l, events.TypeMemoryWritten, 0)
			l.events[i].Body.(*events.MemoryWritten).Owner = "nobody"
			return i
		},
		"a record that is there": func(l *log) int {
			i := of(l, events.TypeMemoryWritten, 0)
			again := *l.events[i].Body.(*events.MemoryWritten)
			again.Revision++
			l.follow(i, &again)
			l.events[i+1].Cause, l.events[i+1].Payload = l.events[i].Cause, l.events[i].Payload
			return i + 1
		},
		"a policy that the decision does not name": func(l *log) int {
			i := of(l, events.TypePolicyActivated, 0)
			l.events[l.events[i].Cause-1].Body.(*events.Decision).Resource = ""
			return i
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := honest.copy()
			i := forge(l)
			report := replay.Run(l.rechain(t))
			if len(report.Findings) == 0 || report.Findings[0].Seq != uint64(i)+1 {
				t.Errorf("event %d: found %v, %v", i+1, fmt.Sprint(report.Findings), report.Err)
			}
		})
	}
}
