package witness_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/audit/logtest"
	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/witness"
)

// other is a witness of C2SP tlog-witness, written for tests: it keeps one
// checkpoint, and cosigns what provably continues it.
type other struct {
	sync.Mutex
	name   string
	key    ed25519.PrivateKey
	size   uint64
	root   tlog.Hash
	asked  int
	status int    // answered to everything, if set
	lines  []byte // answered to everything, if set
}

func newOther(name string) *other {
	seed := sha256.Sum256([]byte(name))
	return &other{name: name, key: ed25519.NewKeyFromSeed(seed[:])}
}

func (o *other) vkey() string {
	_, vkey := audit.Cosign(o.name, o.key, time.Now(), nil)
	return vkey
}

func (o *other) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	o.Lock()
	defer o.Unlock()
	o.asked++
	if o.lines != nil {
		_, _ = w.Write(o.lines)
		return
	}
	body, err := io.ReadAll(r.Body)
	head, note, ok := strings.Cut(string(body), "\n\n")
	lines := strings.Split(head, "\n")
	var old uint64
	if n, _ := fmt.Sscanf(lines[0], "old %d", &old); err != nil || !ok || n != 1 || r.Method != "POST" || r.URL.Path != "/add-checkpoint" {
		w.WriteHeader(400)
		return
	}
	if o.status != 0 {
		w.WriteHeader(o.status)
		return
	}
	c, err := audit.ReadCheckpoint([]byte(note))
	if err != nil {
		w.WriteHeader(400)
		return
	}
	if old != o.size {
		w.WriteHeader(409)
		fmt.Fprintf(w, "%d\n", o.size)
		return
	}
	var proof tlog.TreeProof
	for _, line := range lines[1:] {
		h, err := tlog.ParseHash(line)
		if err != nil {
			w.WriteHeader(400)
			return
		}
		proof = append(proof, h)
	}
	same := old == c.Size && tlog.Hash(c.Root) == o.root && len(proof) == 0
	if old > 0 && !same && tlog.CheckTree(proof, int64(c.Size), tlog.Hash(c.Root), int64(old), o.root) != nil {
		w.WriteHeader(422)
		return
	}
	o.size, o.root = c.Size, tlog.Hash(c.Root)
	line, _ := audit.Cosign(o.name, o.key, time.Now(), []byte(note))
	fmt.Fprint(w, line)
}

func (o *other) requests() int {
	o.Lock()
	defer o.Unlock()
	return o.asked
}

// cast is a log and its witnesses.
type cast struct {
	*witness.Submitter
	policy *audit.WitnessPolicy
	dir    string
	log    *logtest.Log
	others []*other
}

func start(t *testing.T, quorum string, log *logtest.Log, others ...*other) *cast {
	t.Helper()
	c := &cast{dir: filepath.Join(t.TempDir(), "witness"), log: log, others: others}
	text := "# who cosigns\nlog " + log.VKey + "\n"
	for _, o := range others {
		server := httptest.NewServer(o)
		t.Cleanup(server.Close)
		text += "witness " + o.name + " " + o.vkey() + " " + server.URL + "/\n"
	}
	var err error
	if c.policy, err = audit.ParseWitnessPolicy([]byte(text + quorum)); err != nil {
		t.Fatal(err)
	}
	c.open(t)
	return c
}

func (c *cast) open(t *testing.T) {
	t.Helper()
	var err error
	c.Submitter, err = witness.New(witness.Options{Policy: c.policy, Dir: c.dir, Hashes: func(i []int64) ([]tlog.Hash, error) { return c.log.Source().Hashes(i) }})
	if err != nil {
		t.Fatal(err)
	}
}

func (c *cast) submit(size int) witness.Stats {
	c.Submit(context.Background(), c.log.Note(size))
	return c.Stats()
}

// cosigners counts who cosigned the newest checkpoint.
func (c *cast) cosigners() (n int) {
	for _, w := range c.policy.Witnesses {
		if _, err := w.Cosigned(c.Checkpoint()); err == nil {
			n++
		}
	}
	return n
}

func TestWitnessesCosignALogThatGrows(t *testing.T) {
	a, b := newOther("a"), newOther("b")
	c := start(t, "group q 2 a b\nquorum q\n", logtest.Sample("example.org/lab/1", 1, 900), a, b)
	for i, size := range []int{1, 2, 255, 256, 700, 900} {
		st := c.submit(size)
		if st.Quorum != uint64(size) || st.Cosigned != uint64(2*(i+1)) || c.cosigners() != 2 || audit.SizeOf(c.Checkpoint()) != uint64(size) {
			t.Fatalf("at %d: %+v, %d cosigners", size, st, c.cosigners())
		}
		onDisk, err := os.ReadFile(filepath.Join(c.dir, "checkpoint"))
		if err != nil || !bytes.Equal(onDisk, c.Checkpoint()) {
			t.Errorf("on disk lies another one: %v", err)
		}
	}
	asked := a.requests()
	if st := c.submit(900); st.Cosigned != 12 || a.requests() != asked {
		t.Errorf("the same again: %+v", st)
	}
	// Another start goes on where this one was; a witness that was asked by others tells where it is.
	a.size, a.root = 0, tlog.Hash{}
	c.open(t)
	if st := c.Stats(); st.Quorum != 900 || st.Witnesses[0].Size != 900 || c.cosigners() != 2 {
		t.Errorf("opened again: %+v", st)
	}
	c.log.Add("researcher", 0, decision())
	if st := c.submit(901); st.Quorum != 901 || st.Witnesses[0].State != witness.Cosigned {
		t.Errorf("after 409: %+v", st)
	}
	if r, err := audit.VerifyLog(c.log.Source(), audit.Options{VKey: c.log.VKey, Remembered: c.Checkpoint()}); err != nil || r.Exit != 0 {
		t.Errorf("a cosigned checkpoint is one: %v %+v", err, r)
	}
}

// What a witness refuses, or does not answer, is told and kept from nobody else.
func TestAWitnessThatRefusesIsAnAlarm(t *testing.T) {
	for name, c := range map[string]struct {
		does  func(o *other)
		state witness.State
		why   string
	}{
		"422":              {func(o *other) { o.status = 422 }, witness.Refused, "422"},
		"403":              {func(o *other) { o.status = 403 }, witness.Refused, "403"},
		"404":              {func(o *other) { o.status = 404 }, witness.Refused, "404"},
		"500":              {func(o *other) { o.status = 500 }, witness.Unavailable, "500"},
		"301":              {func(o *other) { o.status = 301 }, witness.Unavailable, "301"},
		"409 without size": {func(o *other) { o.status = 409 }, witness.Unavailable, "size"},
		"knows more":       {func(o *other) { o.size = 5000 }, witness.Refused, "older copy"},
		"saw another log":  {func(o *other) { o.size, o.root = 100, tlog.Hash{1} }, witness.Refused, "422"},
		"empty answer":     {func(o *other) { o.lines = []byte("\n") }, witness.Unavailable, "no cosignature"},
		"another's line": {func(o *other) {
			l, _ := audit.Cosign("b", newOther("b").key, time.Now(), []byte("x\n\n"))
			o.lines = []byte(l)
		}, witness.Unavailable, "no cosignature"},
		"of another note": {func(o *other) { l, _ := audit.Cosign("a", o.key, time.Now(), []byte("x\n\n")); o.lines = []byte(l) }, witness.Unavailable, "not good"},
		"endless":         {func(o *other) { o.lines = bytes.Repeat([]byte("x"), 1<<20) }, witness.Unavailable, "over"},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := newOther("a"), newOther("b")
			c.does(a)
			cast := start(t, "group q all a b\nquorum q\n", logtest.Sample("example.org/lab/1", 1, 300), a, b)
			st := cast.submit(300)
			if w := st.Witnesses[0]; w.State != c.state || !strings.Contains(w.Why, c.why) || w.Size != 0 {
				t.Errorf("%+v", w)
			}
			if st.Witnesses[1].State != witness.Cosigned || st.Quorum != 0 || cast.cosigners() != 1 {
				t.Errorf("%+v", st)
			}
			if _, err := os.Stat(filepath.Join(cast.dir, "quorum")); err == nil {
				t.Error("a quorum is kept that was not met")
			}
			a.Lock()
			a.status, a.lines, a.size, a.root = 0, nil, 0, tlog.Hash{}
			a.Unlock()
			if st := cast.submit(300); st.Quorum != 300 || cast.cosigners() != 2 {
				t.Errorf("when it is well again: %+v", st)
			}
		})
	}
}

// A log that was forked, or put back, gets no second cosignature.
func TestAForkGetsNoCosignature(t *testing.T) {
	a := newOther("a")
	c := start(t, "quorum a\n", logtest.Sample("example.org/lab/1", 1, 400), a)
	c.submit(400)
	fork := c.log.Clone()
	fork.Edit(350, func(e *events.Event) { e.Agent = "other" })
	fork.Relink(351)
	fork.Add("researcher", 0, decision())
	before := c.Checkpoint()
	c.log = fork
	if st := c.submit(401); st.Witnesses[0].State != witness.Refused || !bytes.Equal(before, c.Checkpoint()) || st.Quorum != 400 {
		t.Errorf("forked: %+v", st)
	}
	if st := c.submit(300); st.Witnesses[0].State != witness.Refused || !bytes.Equal(before, c.Checkpoint()) {
		t.Errorf("put back: %+v", st)
	}
	c.dir = t.TempDir() // and without our own memory
	c.open(t)
	if st := c.submit(300); st.Witnesses[0].State != witness.Refused {
		t.Errorf("put back, forgotten: %+v", st)
	}
}

func TestKeptCosignaturesAreVerifiedWhenRead(t *testing.T) {
	c := start(t, "quorum a\n", logtest.Sample("example.org/lab/1", 1, 10), newOther("a"))
	c.submit(10)
	name := filepath.Join(c.dir, c.policy.Witnesses[0].ID()+".note")
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)-20] ^= 1
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := witness.Read(c.dir, c.policy); err == nil {
		t.Error("a changed cosignature is taken")
	}
	if list, err := witness.Read(t.TempDir(), c.policy); err != nil || list[0].State != witness.Waiting {
		t.Errorf("nothing there: %v %+v", err, list)
	}
}

func decision() events.Body {
	return &events.Decision{Subject: "researcher", Lineage: []string{"researcher"}, Operation: "memory.read", Resource: "notes.a", Reason: "record_not_found", PolicyVersion: "lab-1"}
}
