package replay_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/policy"
	"github.com/ledgerd/ledgerd/internal/replay"
	"github.com/ledgerd/ledgerd/internal/replay/replaytest"
	"github.com/ledgerd/ledgerd/internal/store"
)

// A candidate flips what it would have decided otherwise and nothing else, and
// the log folds to the same state as without it.
func TestRejudge_FlipsWhatWouldGoOtherwise(t *testing.T) {
	o := ledger.Options{Dir: filepath.Join(t.TempDir(), "data")}
	if err := ledger.Init(o.Dir, ledger.InitOptions{}); err != nil {
		t.Fatal(err)
	}
	s := replaytest.Start(t, o)
	s.Family()
	for _, action := range []string{"artifact.save", "document.summarize", "no.such"} {
		s.Propose("researcher", "action.authorize", fmt.Sprintf(`{"action":%q}`, action))
	}
	s.Propose("researcher", "memory.write", `{"owner_agent_id":"researcher","namespace":"notes","key":"a","value":1}`)
	s.Stop()
	st, err := store.OpenReadOnly(o.Dir, o.Store)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	src, err := replay.Stored(o.Dir, st)
	if err != nil {
		t.Fatal(err)
	}
	stored, err := src.State()
	if err != nil {
		t.Fatal(err)
	}
	inForce := replaytest.PolicyDocument("candidate")
	candidate := func(text string, agents map[string]*policy.Agent) replay.Candidate {
		p, err := policy.Load([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return replay.Candidate{Policy: p, Agents: agents}
	}
	flips := func(c replay.Candidate, last uint64) (string, *replay.Rejudged) {
		t.Helper()
		r, err := replay.Rejudge(src, c, last)
		if err != nil {
			t.Fatal(err)
		}
		var list []string
		for _, f := range r.Flips {
			list = append(list, f.Resource+" "+f.Was+" "+f.Would)
		}
		return strings.Join(list, "; "), r
	}
	got, r := flips(candidate(inForce, nil), 100)
	if got != "" || r.Judged != 4 || len(r.Unjudged) != 0 {
		t.Errorf("the same rules: %q, %d judged, %v", got, r.Judged, r.Unjudged)
	}
	if stored != nil && stored.Seq == r.State.Seq && r.State.Digest() != stored.Digest() {
		t.Error("judging again changed what the log folds to")
	}
	got, _ = flips(candidate(inForce, map[string]*policy.Agent{"researcher": {Capabilities: policy.NewSet("memory.read", "document.summarize")}}), 100)
	if got != "artifact.save action_allowed action_not_in_effective_capabilities; researcher:notes.a owner_write capability_not_inherited" {
		t.Errorf("without two capabilities: %s", got)
	}
	if got, r = flips(candidate(inForce, map[string]*policy.Agent{"report_manager": {Capabilities: policy.Set{}}}), 1); got != "researcher:notes.a owner_write capability_not_inherited" || r.Judged != 1 {
		t.Errorf("the last one alone: %s, %d judged", got, r.Judged)
	}
	if _, r = flips(candidate(inForce, nil), 0); r.Judged != 0 {
		t.Errorf("none asked, %d judged", r.Judged)
	}
	without := src
	without.Payload = func(seq uint64) (salt [32]byte, b []byte, ok bool, err error) {
		if salt, b, ok, err = src.Payload(seq); !strings.HasPrefix(string(b), "{\"action\"") {
			return salt, b, ok, err
		}
		return salt, nil, false, nil
	}
	without.Payloads = nil
	if r, err := replay.Rejudge(without, candidate(inForce, nil), 100); err != nil || r.Unjudged["the request is missing"] != 3 || r.Judged != 1 {
		t.Errorf("without requests: %+v, %v", r, err)
	}
}
