package client

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"
)

func openStore(t testing.TB, dir string, keep Retention) *EffectStore {
	t.Helper()
	s, err := OpenEffects(dir, keep)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func effectOf(id string) *Effect {
	return &Effect{OperationID: id, RunID: "run", StepID: "step", SOPID: "sop", Agent: "alice", Action: "artifact.save", Arguments: json.RawMessage(`{"path":"x"}`)}
}

func mustBegin(t testing.TB, s *EffectStore, id string) {
	t.Helper()
	if fresh, report, err := s.begin(effectOf(id)); !fresh || report != nil || err != nil {
		t.Fatalf("begin %s: %t, %s, %v", id, fresh, report, err)
	}
}

func reportFor(id string) []byte {
	return []byte(`{"operation_id":"` + id + `","ok":true,"result":"<&>"}`)
}

func mustFinish(t testing.TB, s *EffectStore, id string) {
	t.Helper()
	if err := s.finish(id, reportFor(id)); err != nil {
		t.Fatal(err)
	}
}

// picture is everything a store remembers.
func picture(t testing.TB, s *EffectStore) map[string]string {
	t.Helper()
	p := map[string]string{}
	for id, e := range s.effects {
		report, err := s.reported(id)
		if err != nil {
			t.Fatal(err)
		}
		state := e.state
		if state == effectRunning {
			state = effectDoubtful // as after an opening
		}
		p[id] = fmt.Sprint(state, string(report), e.last.Note, e.order.Action, e.digest)
	}
	return p
}

// history makes a store in which every state occurs.
func history(t testing.TB, dir string) *EffectStore {
	t.Helper()
	s := openStore(t, dir, Retention{})
	for _, id := range []string{"running", "done", "acknowledged", "refused", "resolved"} {
		mustBegin(t, s, id)
		if id != "running" {
			mustFinish(t, s, id)
		}
	}
	s.acknowledged("acknowledged")
	for _, id := range []string{"refused", "resolved"} {
		if err := s.refused(id, "not_found"); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Resolve("resolved", false); err != nil {
		t.Fatal(err)
	}
	if fresh, _, err := s.decline(effectOf("declined"), reportFor("declined")); !fresh || err != nil {
		t.Fatal(fresh, err)
	}
	return s
}

// What a store remembers, it remembers after a restart; an effect that was
// begun and has no result is in doubt then, and stays known.
func TestStoreRemembers(t *testing.T) {
	dir := t.TempDir()
	s := history(t, dir)
	if d := s.Doubts(); len(d) != 1 || d[0].OperationID != "refused" || d[0].Refused != "not_found" {
		t.Errorf("doubts while running: %+v", d)
	}
	before := picture(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, dir, Retention{})
	if after := picture(t, s); !reflect.DeepEqual(before, after) {
		t.Errorf("before %v\nafter %v", before, after)
	}
	if d := s.Doubts(); len(d) != 2 || d[0].OperationID != "running" || d[0].Refused != "" || d[0].RunID != "run" || d[0].Action != "artifact.save" {
		t.Errorf("doubts: %+v", d)
	}
	if got := strings.Join(s.unreported(), " "); got != "declined done" {
		t.Errorf("unreported: %s", got)
	}
	for id, want := range map[string]string{"running": "", "done": string(reportFor("done")), "acknowledged": string(reportFor("acknowledged")), "declined": string(reportFor("declined"))} {
		if fresh, report, err := s.begin(effectOf(id)); fresh || err != nil || string(report) != want {
			t.Errorf("%s again: %t %q %v", id, fresh, report, err)
		}
	}
	other := effectOf("done")
	other.Arguments = json.RawMessage(`{"path":"y"}`)
	if fresh, report, err := s.begin(other); fresh || report != nil || !errors.Is(err, ErrOtherOrder) {
		t.Errorf("another order under its id: %t %s %v", fresh, report, err)
	}
	if err := s.Resolve("done", true); err == nil {
		t.Error("resolved what is not in doubt")
	}
	if err := s.Resolve("running", true); err != nil || len(s.Doubts()) != 1 {
		t.Errorf("resolve: %v, %+v", err, s.Doubts())
	}
}

// What it says is noted is on disk: a copy of the file taken at that moment
// knows it.
func TestStoreIsDurableWhenItSaysSo(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, Retention{})
	crashed := func() *EffectStore {
		b, err := os.ReadFile(filepath.Join(dir, "effects.log"))
		if err != nil {
			t.Fatal(err)
		}
		other := t.TempDir()
		if err := os.WriteFile(filepath.Join(other, "effects.log"), b, 0o600); err != nil {
			t.Fatal(err)
		}
		return openStore(t, other, Retention{})
	}
	mustBegin(t, s, "a")
	if d := crashed().Doubts(); len(d) != 1 {
		t.Errorf("begun: %+v", d)
	}
	mustFinish(t, s, "a")
	if u := crashed().unreported(); len(u) != 1 {
		t.Errorf("finished: %v", u)
	}
	if err := s.refused("a", "not_found"); err != nil || len(crashed().Doubts()) != 1 {
		t.Errorf("refused: %v", err)
	}
	if err := s.Resolve("a", true); err != nil || len(crashed().Doubts()) != 0 {
		t.Errorf("resolved: %v", err)
	}
	if _, _, err := s.decline(effectOf("b"), reportFor("b")); err != nil || len(crashed().unreported()) != 1 {
		t.Errorf("declined: %v", err)
	}
}

// A write that was cut short anywhere is cut off, and everything before it
// stands; the file goes on from there.
func TestStoreCutsATornEnd(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, Retention{})
	path := filepath.Join(dir, "effects.log")
	mustBegin(t, s, "a")
	mustFinish(t, s, "a")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	mustBegin(t, s, "b")
	torn, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for cut := len(whole); cut < len(torn); cut++ {
		for _, end := range [][]byte{nil, make([]byte, len(torn)-cut), bytes.Repeat([]byte{0xff}, 100)} {
			if err := os.WriteFile(path, append(bytes.Clone(torn[:cut]), end...), 0o600); err != nil {
				t.Fatal(err)
			}
			s := openStore(t, dir, Retention{})
			if got := s.unreported(); len(s.effects) != 1 || len(got) != 1 || got[0] != "a" {
				t.Fatalf("cut at %d: %v", cut, picture(t, s))
			}
			mustBegin(t, s, "c")
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			again := openStore(t, dir, Retention{})
			if len(again.effects) != 2 {
				t.Fatalf("cut at %d, and written on: %v", cut, picture(t, again))
			}
			again.Close()
		}
	}
}

// A changed bit in any byte before the last write is damage, which changes nothing on
// disk; none makes another picture.
func TestStoreNoticesDamage(t *testing.T) {
	dir := t.TempDir()
	s := history(t, dir)
	last := s.journal.size
	mustBegin(t, s, "last")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "effects.log")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := range int(last) {
		damaged := bytes.Clone(b)
		damaged[i] ^= 1 << (i % 8)
		if err := os.WriteFile(path, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenEffects(dir, Retention{}); !errors.Is(err, ErrStoreDamaged) {
			t.Fatalf("byte %d: %v", i, err)
		}
		if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, damaged) {
			t.Fatalf("byte %d: the file was changed (%v)", i, err)
		}
	}
	for name, content := range map[string]string{"no store": "something else entirely\n", "half a head": journalHead[:5]} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenEffects(dir, Retention{}); !errors.Is(err, ErrStoreDamaged) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestStoreHasOneProcess(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, Retention{})
	if _, err := OpenEffects(dir, Retention{}); !errors.Is(err, ErrStoreInUse) {
		t.Errorf("a second opening: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	openStore(t, dir, Retention{})
}

// The retention forgets what is settled and nothing else, the file stays
// within bounds, and every opening has the same picture.
func TestStoreForgetsAndShrinks(t *testing.T) {
	dir := t.TempDir()
	keep := Retention{Count: 40}
	s := openStore(t, dir, keep)
	big := strings.Repeat("x", 10_000)
	largest := int64(0)
	const rounds = 1000
	for i := range rounds {
		id := fmt.Sprint("e", i)
		mustBegin(t, s, id)
		if i%100 == 0 {
			continue // in doubt for ever
		}
		if err := s.finish(id, []byte(`{"operation_id":"`+id+`","ok":true,"result":"`+big+`"}`)); err != nil {
			t.Fatal(err)
		}
		if i%100 != 1 { // never acknowledged
			s.acknowledged(id)
		}
		largest = max(largest, s.journal.size)
	}
	if want := 40 + 2*rounds/100; len(s.effects) != want {
		t.Errorf("%d effects are remembered, want %d", len(s.effects), want)
	}
	if bound := int64(3 * (40 + rounds/100) * 11_000); largest > bound {
		t.Errorf("the file grew to %d bytes, more than %d", largest, bound)
	}
	if fresh, report, err := s.begin(effectOf("e999")); fresh || err != nil || len(report) < 10_000 {
		t.Errorf("the newest: %t, %d bytes, %v", fresh, len(report), err)
	}
	before := picture(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, dir, keep)
	if after := picture(t, s); !reflect.DeepEqual(before, after) {
		t.Errorf("%d remembered before, %d after", len(before), len(after))
	}
	s.mu.Lock()
	s.forget(time.Now().Add(8 * 24 * time.Hour))
	s.mu.Unlock()
	if want := 2 * rounds / 100; len(s.effects) != want {
		t.Errorf("a week later %d are remembered, want %d", len(s.effects), want)
	}
}

// Many at once share their writes; each is durable when it is told so.
func TestStoreSharesItsWrites(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, Retention{})
	const workers, each = 16, 40
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range each {
				id := fmt.Sprintf("w%d-%d", w, i)
				mustBegin(t, s, id)
				mustFinish(t, s, id)
				s.acknowledged(id)
			}
		})
	}
	wg.Wait()
	b, err := os.ReadFile(filepath.Join(dir, "effects.log"))
	if err != nil {
		t.Fatal(err)
	}
	frames := bytes.Count(b, []byte(frameMark))
	t.Logf("%d records in %d writes", bytes.Count(b, []byte("\n"))-1, frames)
	if frames > 2*workers*each {
		t.Errorf("%d writes for %d records to be waited for", frames, 2*workers*each)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, dir, Retention{})
	if len(s.effects) != workers*each || len(s.unreported()) != 0 || len(s.Doubts()) != 0 {
		t.Errorf("%d effects, unreported %v, doubts %v", len(s.effects), s.unreported(), s.Doubts())
	}
}

// After a failed write nothing more is promised.
func TestStoreFailsForGood(t *testing.T) {
	s := openStore(t, t.TempDir(), Retention{})
	mustBegin(t, s, "a")
	s.journal.file.Close()
	if err := s.finish("a", reportFor("a")); !errors.Is(err, ErrStoreFailed) {
		t.Errorf("finish: %v", err)
	}
	if _, _, err := s.begin(effectOf("b")); !errors.Is(err, ErrStoreFailed) {
		t.Errorf("begin: %v", err)
	}
}

func FuzzJournal(f *testing.F) {
	dir := f.TempDir()
	history(f, dir).Close()
	b, err := os.ReadFile(filepath.Join(dir, "effects.log"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(b[:len(b)-7])
	frame, _, err := encodeFrame([]record{{Op: "a", Is: isAcknowledged}, {Op: "b", Is: isDone, Report: reportFor("b")}, {Op: "a", Is: isStarted, Digest: []byte("short")}}, 0)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(append([]byte(journalHead), frame...))
	f.Fuzz(func(t *testing.T, b []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "effects.log"), b, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := OpenEffects(dir, Retention{})
		if err != nil {
			return
		}
		before := picture(t, s)
		s.mu.Lock()
		if err := s.compact(); err != nil {
			t.Fatal(err)
		}
		s.mu.Unlock()
		if now := picture(t, s); !reflect.DeepEqual(before, now) {
			t.Fatalf("rewritten: before %v\nafter %v", before, now)
		}
		s.Close()
		s = openStore(t, dir, Retention{})
		if after := picture(t, s); !reflect.DeepEqual(before, after) {
			t.Fatalf("before %v\nafter %v", before, after)
		}
	})
}
