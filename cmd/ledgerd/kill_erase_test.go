package main

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/client"
	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/replay/replaytest"
	"github.com/ledgerd/ledgerd/internal/store"
)

// eraseKills is how often the ledger is killed around an erasure; .ci/long has more.
var eraseKills = flag.Int("erase-kills", 6, "how often the ledger is killed around an erasure")

const (
	inTheOpen   = "PLAINTEXT of " // begins every value that is written
	heldAgent   = "agent3"        // all of whose payloads are held
	eraseAgents = 4
)

// written is a value that an agent was told is in the log.
type written struct {
	agent, key, value string
}

// eraseStorm kills a ledger around erasures, and knows of every sealed payload
// and wrapped data key the bytes that were on disk.
type eraseStorm struct {
	*victim
	random     *rand.Rand
	url, creds string

	size     uint64
	payloads map[uint64][]byte // sealed ones that may be erased, as they were stored
	owners   map[uint64]string // of those
	keys     map[string][]byte // data keys, as they were stored
	erasures []erasureEvent

	mu      sync.Mutex
	stand   map[uint64]written
	answers []answered
	held    map[uint64]bool // payloads under a hold that is answered
	phases  map[string]int
}

type erasureEvent struct {
	seq  uint64
	body *events.PayloadErased
}

// R83: the binary is killed with SIGKILL before, while and after it erases, and
// while it opens. Every answered erasure is in the log; what an answer, or an
// opening, says to be gone is in no file: ciphertext, nor wrapped key; what is not
// erased opens; and the log verifies, judged again, as erased.
func TestR83_KillNineAroundAnErasure(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	s := newEraseStorm(t, seed)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for i := range eraseAgents {
		wg.Go(func() { s.write(ctx, "agent"+strconv.Itoa(i)) })
	}
	opening := 0
	for n := range *eraseKills {
		s.grow(40)
		if n == 0 {
			s.kill()
			s.dead()
			s.start()
		}
		s.killErasing(n)
		for s.unfinished() && s.random.IntN(3) > 0 {
			opening++
			s.killOpening()
		}
		s.start()
		s.gone("served again", s.size)
	}
	s.grow(20)
	cancel()
	wg.Wait()
	s.kill()
	s.dead()
	s.check(seed, opening)
}

func newEraseStorm(t *testing.T, seed uint64) *eraseStorm {
	work := t.TempDir()
	v := &victim{t: t, dir: filepath.Join(work, "data"), ready: filepath.Join(work, "ready.json"), listen: "127.0.0.1:0"}
	if err := ledger.Init(v.dir, ledger.InitOptions{}); err != nil {
		t.Fatal(err)
	}
	s := &eraseStorm{
		victim: v, random: rand.New(rand.NewPCG(seed, 83)), payloads: map[uint64][]byte{}, owners: map[uint64]string{}, keys: map[string][]byte{},
		stand: map[uint64]written{}, held: map[uint64]bool{}, phases: map[string]int{},
	}
	s.url = v.start().NATS
	v.listen = strings.TrimPrefix(s.url, "nats://")
	s.creds = killFamily(t, v.dir, s.url)
	if r := s.control(s.t.Context(), "hold.place", client.HoldRequest{AgentID: heldAgent}); r == nil || !r.Allowed {
		t.Fatalf("hold: %+v", r)
	}
	return s
}

// write has an agent write one record after the other, some of them again, and in
// a longer run more slowly: an owner of too many cannot be erased at once.
func (s *eraseStorm) write(ctx context.Context, agent string) {
	var c *client.Client
	revision, rest := uint64(0), 2*time.Millisecond+time.Duration(*eraseKills)*100*time.Microsecond
	for n := 0; ctx.Err() == nil; pause(ctx, rest) {
		if c == nil {
			var err error
			o := client.Options{Server: s.url, ID: agent, SeedFile: filepath.Join(s.creds, agent+".nk"), Timeout: 500 * time.Millisecond, Retries: -1}
			if c, err = client.Connect(ctx, o); err != nil {
				continue
			}
		}
		w := written{agent, fmt.Sprintf("k%d", n/2), fmt.Sprintf("%s%s, %d", inTheOpen, agent, n)}
		r, err := c.Write(ctx, client.WriteRequest{Meta: client.Meta{OperationID: fmt.Sprintf("op-%d", n)}, Namespace: "notes", Key: w.key, Value: w.value, ExpectedRevision: revision})
		if err != nil || r.Seq == 0 {
			c.Close()
			c = nil
			continue
		}
		s.told(agent, r)
		if n, revision = n+1, 0; n%2 == 1 && r.Record != nil {
			revision = r.Record.Revision
		}
		if r.Allowed {
			s.mu.Lock()
			s.stand[r.Seq] = w
			s.mu.Unlock()
		}
	}
	if c != nil {
		c.Close()
	}
}

func (s *eraseStorm) told(who string, r *client.Reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers = append(s.answers, answered{who, r.Operation, r.OperationID, r.Seq, r.Hash})
}

// grow waits until so many more answers were given.
func (s *eraseStorm) grow(n int) {
	s.t.Helper()
	count := func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.answers)
	}
	before := count()
	for end := time.Now().Add(within); count() < before+n; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("no answers any more:\n%s", &s.stderr)
		}
	}
}

// control sends what an admin asks for; nil where no answer comes.
func (s *eraseStorm) control(ctx context.Context, verb string, request any) *client.Reply {
	c, err := client.Connect(ctx, client.Options{Server: s.url, ID: "admin", SeedFile: filepath.Join(s.dir, "keys", "admin.nk"), Timeout: within, Retries: -1})
	if err != nil {
		return nil
	}
	defer c.Close()
	r, err := c.Control(ctx, verb, request)
	if err != nil || r.Seq == 0 {
		return nil
	}
	s.told("admin", r)
	return r
}

// killErasing asks for an erasure and kills the ledger: at some moment, or with
// the answer.
func (s *eraseStorm) killErasing(n int) {
	s.t.Helper()
	before := s.size
	request, refused := s.choose()
	replies := make(chan *client.Reply, 1)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { replies <- s.control(ctx, "payload.erase", request) }()
	var reply *client.Reply
	answered := false
	if n%4 == 3 {
		reply, answered = <-replies, true
	} else {
		time.Sleep(time.Duration(s.random.IntN(60_000)) * time.Microsecond)
	}
	s.kill()
	if !answered {
		time.AfterFunc(200*time.Millisecond, cancel) // what was sent has come by then
		reply = <-replies
	}
	s.dead()
	s.phases[s.phase(before)]++
	switch {
	case reply == nil:
	case refused != "" && reply.ReasonCode == refused:
		s.phases["refused: it is held"]++
	case refused != "" || !reply.Allowed || reply.Erased == nil || reply.Erased.Under == 0 || reply.Erased.Pending:
		s.t.Fatalf("%+v: %s", request, reply.Raw)
	default:
		s.phases["answered"]++
		at := slices.IndexFunc(s.erasures, func(e erasureEvent) bool { return e.seq == reply.Erased.Under })
		if at < 0 || !slices.Equal(s.erasures[at].body.Seqs, reply.Erased.Seqs) || s.erasures[at].body.Owner != reply.Erased.AgentID {
			s.t.Fatalf("%s: the log says nothing of it", reply.Raw)
		}
		s.gone("answered", reply.Erased.Under)
	}
}

// choose makes a request: of some records' payloads, of all of an agent, of what
// is held.
func (s *eraseStorm) choose() (r client.EraseRequest, refused reason.Code) {
	r.Basis = "subject_request"
	pick := func(fits func(seq uint64) bool) (seqs []uint64) {
		for seq := range s.payloads {
			if fits(seq) && s.under(seq) == 0 {
				seqs = append(seqs, seq)
			}
		}
		slices.Sort(seqs)
		s.random.Shuffle(len(seqs), func(i, j int) { seqs[i], seqs[j] = seqs[j], seqs[i] })
		seqs = seqs[:min(len(seqs), 1+s.random.IntN(20))]
		slices.Sort(seqs)
		return seqs
	}
	switch s.random.IntN(6) {
	case 0:
		r.AgentID, refused = heldAgent, reason.PayloadHeld
	case 1, 2:
		r.AgentID = fmt.Sprintf("agent%d", s.random.IntN(eraseAgents-1))
	case 3:
		seqs := pick(func(seq uint64) bool { return s.owners[seq] != heldAgent && !s.held[seq] })
		if hold := s.control(s.t.Context(), "hold.place", client.HoldRequest{Seq: seqs[0]}); hold == nil || !hold.Allowed {
			s.t.Fatalf("hold: %+v", hold)
		}
		s.held[seqs[0]] = true
		r.Seqs, refused = seqs, reason.PayloadHeld
		if s.random.IntN(2) == 0 {
			if lift := s.control(s.t.Context(), "hold.lift", client.HoldRequest{Seq: seqs[0]}); lift == nil || !lift.Allowed {
				s.t.Fatalf("lift: %+v", lift)
			}
			delete(s.held, seqs[0])
			refused = ""
		}
	default:
		r.Seqs = pick(func(seq uint64) bool { return s.owners[seq] != heldAgent && !s.held[seq] })
	}
	if r.AgentID != "" && refused == "" {
		for seq := range s.held {
			if s.owners[seq] == r.AgentID {
				refused = reason.PayloadHeld
			}
		}
	}
	return r, refused
}

// under is the first erasure of the payload beside an event, 0 for none.
func (s *eraseStorm) under(seq uint64) uint64 {
	for _, e := range s.erasures {
		if e.body.Owner != "" && e.body.Owner == s.owners[seq] && seq < e.body.Before || slices.Contains(e.body.Seqs, seq) {
			return e.seq
		}
	}
	return 0
}

// killOpening kills the ledger while it opens, or soon after.
func (s *eraseStorm) killOpening() {
	s.t.Helper()
	s.cmd = exec.Command("ledgerd", "serve", "--data", s.dir, "--listen", s.listen, "--ready-file", s.ready, "--rate", "0")
	s.stderr.Reset()
	s.cmd.Stderr = &s.stderr
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	time.Sleep(time.Duration(s.random.IntN(250_000)) * time.Microsecond)
	s.kill()
	s.dead()
}

// dead reads what a killed ledger has left: what is new in the log, and the bytes
// of payloads and data keys.
func (s *eraseStorm) dead() {
	s.t.Helper()
	st, err := store.OpenReadOnly(s.dir, store.Options{})
	if err != nil {
		s.t.Fatal(err)
	}
	defer st.Close()
	err = st.Events(s.size+1, st.Durable(), func(seq uint64, b []byte) error {
		e, err := events.Parse(b)
		if err != nil {
			return err
		}
		if body, ok := e.Body.(*events.PayloadErased); ok {
			s.erasures = append(s.erasures, erasureEvent{seq, body})
		}
		owner, mayErase := e.Sealed()
		if !mayErase {
			return nil
		}
		s.owners[seq] = owner
		record, ok, err := st.Payload(seq)
		if ok {
			s.payloads[seq] = record[2+record[1]:]
		}
		return err
	})
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		s.t.Fatal(err)
	}
	s.size = st.Durable()
	names, err := st.DataKeys()
	for _, name := range names {
		if s.keys[name] == nil && err == nil {
			s.keys[name], _, err = st.DataKey(name)
		}
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// phase is how far the first erasure behind an event has come.
func (s *eraseStorm) phase(behind uint64) string {
	s.t.Helper()
	at := slices.IndexFunc(s.erasures, func(e erasureEvent) bool { return e.seq > behind })
	if at < 0 {
		return "no event"
	}
	st, err := store.OpenReadOnly(s.dir, store.Options{})
	if err != nil {
		s.t.Fatal(err)
	}
	defer st.Close()
	e := s.erasures[at]
	purged, err := st.Purged()
	there := false
	if e.body.Owner == "" && err == nil {
		_, there, err = st.Payload(e.body.Seqs[0])
	} else if names, err2 := st.DataKeys(); err2 == nil {
		there = slices.ContainsFunc(names, func(name string) bool { return keyGone(name, e) })
	}
	switch {
	case err != nil:
		s.t.Fatal(err)
	case there:
		return "event, not deleted"
	case purged < e.seq:
		return "deleted, not purged"
	}
	return "purged"
}

// unfinished reports whether the store has not come to the end of every erasure.
func (s *eraseStorm) unfinished() bool {
	s.t.Helper()
	st, err := store.OpenReadOnly(s.dir, store.Options{})
	if err != nil {
		s.t.Fatal(err)
	}
	defer st.Close()
	purged, err := st.Purged()
	if err != nil {
		s.t.Fatal(err)
	}
	return len(s.erasures) > 0 && purged < s.erasures[len(s.erasures)-1].seq
}

// keyGone reports whether a data key is destroyed with an erasure.
func keyGone(name string, e erasureEvent) bool {
	owner, text, _ := strings.Cut(name, "#")
	since, _ := strconv.ParseUint(text, 10, 64)
	return owner == e.body.Owner && since < e.seq
}

// gone looks in every file for any eight bytes of what the erasures up to an
// event are of, wherever they stand.
func (s *eraseStorm) gone(when string, upTo uint64) {
	s.t.Helper()
	of := map[uint64]string{}
	var quick [1 << 16]bool
	add := func(what string, b []byte) {
		for at := 0; at+8 <= len(b); at += 8 {
			x := binary.LittleEndian.Uint64(b[at:])
			of[x], quick[x&0xffff] = what, true
		}
	}
	for seq, b := range s.payloads {
		if under := s.under(seq); under != 0 && under <= upTo {
			add(fmt.Sprintf("payload %d, erased under %d", seq, under), b)
		}
	}
	for name, b := range s.keys {
		for _, e := range s.erasures {
			if e.seq <= upTo && keyGone(name, e) {
				add(fmt.Sprintf("data key %s, erased under %d", name, e.seq), b)
			}
		}
	}
	err := filepath.WalkDir(s.dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) || err == nil && d.IsDir() {
			return nil
		}
		if err != nil {
			return err
		}
		b, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		for i := 0; i+8 <= len(b); i++ {
			x := binary.LittleEndian.Uint64(b[i:])
			if what, there := of[x]; quick[x&0xffff] && there {
				s.t.Fatalf("%s: %s still stands in %s at %d", when, what, path, i)
			}
		}
		if strings.Contains(string(b), inTheOpen) {
			s.t.Fatalf("%s: %s has a value in the open", when, path)
		}
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// check holds all that was seen against the log at the end.
func (s *eraseStorm) check(seed uint64, opening int) {
	t := s.t
	s.gone("at the end", s.size)
	report := replaytest.CheckLedger(t, ledger.Options{Dir: s.dir})
	st, err := store.OpenReadOnly(s.dir, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	payloads, err := ledger.OpenPayloads(s.dir, st)
	if err != nil {
		t.Fatal(err)
	}
	erased, kept := 0, 0
	for seq, w := range s.stand {
		_, b, ok, err := payloads.Open(seq)
		under := s.under(seq)
		if under == 0 && (err != nil || !ok || !strings.Contains(string(b), w.value)) || under != 0 && (ok || err != nil) {
			t.Fatalf("payload %d, erased under %d: %v %v %q", seq, under, ok, err, b)
		}
		if under != 0 {
			erased++
		} else {
			kept++
		}
		if under != 0 && (w.agent == heldAgent || s.held[seq]) {
			t.Fatalf("payload %d of %s is erased under %d, and was held", seq, w.agent, under)
		}
	}
	for _, e := range s.erasures {
		if report.Erased[e.seq] == 0 {
			t.Errorf("judged again, nothing was missing for erasure %d: %v", e.seq, report.Erased)
		}
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	log := readLog(t, s.victim, s.url, s.creds)
	checkReceipts(t, s.answers, log, *eraseKills)
	t.Logf("seed %d: %d kills around an erasure and %d while opening after one: %v; %d erasures, of %d values erased and %d kept; %d answers, %d events, %d decisions judged again",
		seed, *eraseKills, opening, s.phases, len(s.erasures), erased, kept, len(s.answers), report.Events, report.Judged)
	if len(s.erasures) == 0 || erased == 0 || kept == 0 {
		t.Error("too tame to mean anything")
	}
}
