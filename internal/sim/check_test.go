package sim

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/replay"
	"github.com/ledgerd/ledgerd/internal/store"
)

// compareBatch holds a judged batch against the model, proposal by proposal, and
// teaches the model what is in it.
func (w *world) compareBatch(f *flight) error {
	c := &cursor{w: w, batch: f.step.Batch}
	for i, m := range f.messages {
		if err := w.compareOne(f, i, c); err != nil {
			return fmt.Errorf("%s (%s) %s %.600s: %w", m.from.id, m.from.kind, m.operation, m.body, err)
		}
	}
	var err error
	switch {
	case f.report != nil:
		err = w.compareReport(f, c)
	case f.tick:
		err = w.compareTick(c)
	}
	if err == nil {
		err = w.compareExpiries(c)
	}
	if err != nil {
		return err
	}
	if rest := len(c.batch.Events) - c.at; rest > 0 {
		return fmt.Errorf("%d events that nobody caused, the first %s", rest, c.batch.Events[c.at])
	}
	return w.checkPayloads(f)
}

// cursor reads the events of a batch in order.
type cursor struct {
	w     *world
	batch store.Batch
	at    int
}

// time is that of the next event, or of the last where there is none.
func (c *cursor) time() events.Time {
	if c.at < len(c.batch.Events) {
		if e, err := events.Parse(c.batch.Events[c.at]); err == nil {
			return e.Time
		}
	}
	return c.w.times
}

func (c *cursor) next() (*events.Event, events.Hash, error) {
	if c.at >= len(c.batch.Events) {
		return nil, events.Hash{}, errors.New("an event is missing")
	}
	b, leaf := c.batch.Events[c.at], c.batch.Leaves[c.at]
	e, err := events.Parse(b)
	switch {
	case err != nil:
		return nil, leaf, err
	case e.Seq != c.batch.First+uint64(c.at) || leaf != events.LeafHash(b):
		return nil, leaf, fmt.Errorf("event %d or its leaf is out of place", e.Seq)
	case e.Time < c.w.times:
		return nil, leaf, fmt.Errorf("event %d: ledger time goes back from %s to %s", e.Seq, c.w.times, e.Time)
	}
	c.w.times = e.Time
	c.at++
	return &e, leaf, nil
}

// expect takes the events that must come next, of an agent, and teaches them to
// the model.
func (c *cursor) expect(agent string, cause uint64, want ...fact) error {
	for _, f := range want {
		e, leaf, err := c.next()
		if err != nil {
			return fmt.Errorf("want %q: %w", f.say(), err)
		}
		if f.kind == "memory.written" {
			c.w.known.values[leaf] = f.record.value
		}
		got := factOf(e, leaf, c.w.known)
		if got.say() != f.say() || e.Cause != cause || e.Agent != agent {
			return fmt.Errorf("event %d is %q caused by %d, want %q by %d", e.Seq, got.say(), e.Cause, f.say(), cause)
		}
		c.w.model.learn(got)
	}
	return nil
}

func (w *world) compareOne(f *flight, i int, c *cursor) error {
	m := f.messages[i]
	out, seq := f.step.Outcome(i)
	q := request{control: m.control, subject: m.from.id, operation: m.operation, foreign: m.foreign, absent: w.absent}
	q.malformed = m.malformed || m.mutated && out.Decision != nil && out.Decision.Reason == "malformed_request"
	if !q.malformed {
		q.body = decode(m.body)
	}
	w.model.now = c.time()
	v := w.model.judge(q)
	f.verdicts = append(f.verdicts, v)
	if v.unknown {
		return errors.New("the model does not know what was sent")
	}
	if v.retry != out.Retry {
		return fmt.Errorf("a retry of %d, want of %d (%s)", out.Retry, v.retry, v.reason)
	}
	if v.retry != 0 {
		w.volumes.decisions["(retry)"]++
		return nil
	}
	line := w.model.ancestors(m.from.id)
	if line == nil {
		line = []string{m.from.id}
	}
	version := "none"
	if w.model.policy != nil {
		version = w.model.policy.version
	}
	var facts []fact
	take := func() (*events.Event, error) {
		e, leaf, err := c.next()
		if err == nil {
			if d, ok := e.Body.(*events.Decision); ok && !e.Payload.IsZero() && d.Operation != ledger.StepOperation {
				w.known.requests[leaf] = q.body
			}
			facts = append(facts, factOf(e, leaf, w.known))
		}
		return e, err
	}
	for n := range v.steps {
		e, err := take()
		if err != nil {
			return err
		}
		d, ok := e.Body.(*events.Decision)
		if !ok || d.StepID+" "+d.Reason != v.steps[n] {
			return fmt.Errorf("step %d: want %s, got %+v", n, v.steps[n], e.Body)
		}
	}
	e, err := take()
	if err != nil {
		return err
	}
	d, ok := e.Body.(*events.Decision)
	switch {
	case !ok || e.Seq != seq:
		return fmt.Errorf("event %d is no decision on this", e.Seq)
	case d.Reason != v.reason || d.Owner != v.owner:
		return fmt.Errorf("decided %s %q, want %s %q", d.Reason, d.Owner, v.reason, v.owner)
	case d.Subject != m.from.id || !slices.Equal(d.Lineage, line) || d.PolicyVersion != version || d.Operation != m.operation && d.Operation != "unsupported":
		return fmt.Errorf("a decision about %s %v %s under %s, want %s %v %s under %s", d.Subject, d.Lineage, d.Operation, d.PolicyVersion, m.from.id, line, m.operation, version)
	}
	w.volumes.decisions[d.Reason]++
	for _, f := range facts {
		w.model.learn(f)
	}
	if v.run == newRun {
		v.run = d.RunID
		for i := range v.effects {
			v.effects[i].id = d.RunID
		}
		f.verdicts[len(f.verdicts)-1].run = v.run
	}
	if d.RunID != v.run {
		return fmt.Errorf("a decision on run %q, want %q", d.RunID, v.run)
	}
	if err := c.expect(m.from.id, seq, v.effects...); err != nil {
		return err
	}
	return w.goOn(v.run, c)
}

// checkPayloads: no value lies in plain beside the log but where it must be open.
func (w *world) checkPayloads(f *flight) error {
	for _, b := range f.step.Batch.Events {
		if strings.Contains(string(b), canary) {
			return fmt.Errorf("an event holds a value: %s", b)
		}
	}
	for _, p := range f.step.Batch.Payloads {
		if p.Record[0] == 1 && strings.Contains(string(p.Record), canary) {
			return fmt.Errorf("payload %d is in plain", p.Seq)
		}
	}
	return nil
}

// compare holds the state that the log folded to against the model: who holds
// what, and every record.
func (w *world) compare() error {
	s := w.stepper.State()
	ids := w.model.agents()
	if len(ids) != len(s.AgentIDs()) {
		return fmt.Errorf("agents %v, want %v", s.AgentIDs(), ids)
	}
	for _, id := range ids {
		a := s.Agent(id)
		if a == nil {
			return fmt.Errorf("agent %s is not there", id)
		}
		effective := s.Effective(a)
		for _, c := range capabilities {
			held, by := s.Holds(a, c)
			want := w.model.passes(id, c)
			if held != want || effective.Has(c) != want || held != (by == "") {
				return fmt.Errorf("%s holds %s: %v by %q, effectively %v, want %v", id, c, held, by, effective, want)
			}
			if may, _ := s.May(a, c); may != w.model.holds(id, c) {
				return fmt.Errorf("%s may use %s itself: %v", id, c, may)
			}
			if want && a.Parent != nil && !w.model.passes(a.Parent.ID, c) {
				return fmt.Errorf("%s holds %s, its parent does not", id, c)
			}
		}
	}
	if err := errors.Join(w.compareErasures(s), w.compareLending(s)); err != nil {
		return err
	}
	return w.compareRecords(s)
}

func (w *world) compareRecords(s *projection.State) error {
	want := map[string]*record{}
	for i := range w.model.facts {
		if f := &w.model.facts[i]; strings.HasPrefix(f.kind, "memory.") {
			want[f.record.owner+":"+f.record.name] = &f.record
		}
	}
	live := 0
	w.model.now = max(w.model.now, s.Time)
	for _, r := range want {
		if !r.deleted && !w.model.gone(r) {
			live++
		}
	}
	var err error
	s.Records(w.model.now, func(r *projection.Record) bool {
		name := r.Owner + ":" + r.Namespace + "." + r.Key
		m := want[name]
		if m == nil || m.deleted || m.revision != r.Revision || m.visibility != r.Visibility || m.class != string(r.Class) || m.expires != r.Expires || m.run != r.RunID {
			err = fmt.Errorf("record %s is %+v, want %+v", name, r, m)
			return false
		}
		live--
		return true
	})
	if err == nil && live != 0 {
		err = fmt.Errorf("%d records are missing", live)
	}
	return err
}

// heal ends all faults and has everything answered that an honest agent waits
// for: two rounds must do.
func (w *world) heal(step int) error {
	w.r = w.chances(step)
	w.options.Drop, w.options.Double, w.options.Crash, w.options.Jump, w.options.Mutate = 0, 0, 0, 0, 0
	for range 2 {
		for _, a := range w.actors {
			for _, id := range sortedIDs(a.waiting) {
				w.bus = append(w.bus, a.waiting[id])
			}
		}
		for len(w.bus)+len(w.queue)+len(w.flight)+len(w.mail)+len(w.execs)+len(w.reports) > 0 {
			w.deliver()
			if err := w.work(); err != nil {
				return err
			}
			if err := w.judge(); err != nil {
				return err
			}
			w.log.sync(len(w.log.pending))
			if err := w.settle(); err != nil {
				return err
			}
			w.hand()
		}
	}
	for _, a := range w.actors {
		if len(a.waiting) > 0 {
			return fmt.Errorf("%s still waits for %v", a.id, sortedIDs(a.waiting))
		}
	}
	return nil
}

func sortedIDs(m map[string]*message) (ids []string) {
	for id := range m {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// finish is what every history ends with: chain, tree and payloads, judging
// again, the model, and what is owed.
func (w *world) finish() error {
	if err := w.compare(); err != nil {
		return err
	}
	if err := w.owed(); err != nil {
		return err
	}
	if err := w.onceEach(); err != nil {
		return err
	}
	if err := w.checkEffects(); err != nil {
		return err
	}
	w.carryOut(w.log.Durable())
	w.remember()
	src := replay.Source{
		Size: w.log.Durable(), Events: w.log.Events, Payload: w.stepper.Payload,
		State: func() (*projection.State, error) { return w.stepper.State(), nil },
	}
	if err := w.verify(src); err != nil {
		return err
	}
	report := replay.Run(src)
	faults := []error{report.Err}
	for _, f := range report.Findings {
		faults = append(faults, errors.New(f.String()))
	}
	if len(report.Unverifiable) > 0 || report.UnverifiedEvents > 0 || report.MissingPayloads > 0 || !report.StoredSame {
		faults = append(faults, fmt.Errorf("judged again: %d of %d, %d payloads missing, state the same: %v", report.Judged, report.Decisions, report.MissingPayloads, report.StoredSame))
	}
	w.volumes.events += int(report.Events)
	w.volumes.judged += int(report.Judged)
	for _, n := range report.Erased {
		w.volumes.unjudged += int(n)
	}
	return errors.Join(faults...)
}

func (w *world) verify(src replay.Source) error {
	for _, remembered := range []int{len(w.anchors) - 1, len(w.anchors) / 2} {
		report, err := audit.VerifyLog(&audit.Source{
			Size: src.Size, Checkpoint: w.anchors[len(w.anchors)-1], Events: src.Events, Hashes: w.log.ReadHashes(),
			Payload: func(seq uint64) (audit.Payload, error) {
				salt, b, ok, err := src.Payload(seq)
				if err != nil || !ok {
					return audit.Payload{}, err
				}
				return audit.Payload{State: audit.PayloadReadable, Salt: salt, Bytes: b}, nil
			},
		}, audit.Options{VKey: w.vkey, Remembered: w.anchors[remembered]})
		if err != nil {
			return err
		}
		if report.Exit != audit.ExitPass {
			return fmt.Errorf("verified as %s: %v", report.Verdict, report.Faults)
		}
		if remembered == len(w.anchors)-1 && w.seed%8 != 0 {
			return nil
		}
	}
	return nil
}

// onceEach: of an operation id that was allowed there is one outcome.
func (w *world) onceEach() error {
	allowed := map[string]uint64{}
	for _, b := range w.log.events {
		e, err := events.Parse(b)
		if err != nil {
			return err
		}
		d, ok := e.Body.(*events.Decision)
		if !ok || !d.Allowed || d.OperationID == "" || d.Operation == "memory.read" || ledger.IsStep(d) {
			continue
		}
		name := d.Subject + " " + d.OperationID
		if first := allowed[name]; first != 0 {
			return fmt.Errorf("operation %s was allowed at %d and at %d", name, first, e.Seq)
		}
		allowed[name] = e.Seq
	}
	return nil
}
