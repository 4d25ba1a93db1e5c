package natsapi_test

import (
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/natsapi"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/replay/replaytest"
)

// agents registers agents that may read and write.
func (f *front) agents(agents ...[2]string) {
	f.t.Helper()
	var docs []string
	for _, a := range agents {
		docs = append(docs, f.agent(a[0], a[1], "memory.read", "memory.write"))
	}
	if r := f.ask("admin", "control", "apply", replaytest.ApplyRequest(docs...)); !r.Allowed {
		f.t.Fatalf("apply: %s", r.Text)
	}
}

// burst is what an agent sends without waiting for answers.
type burst struct {
	sub     *nats.Subscription
	sent    int
	answers map[string]int // by reason
}

const aRead = `{"namespace":"project","key":"client_region"}`

// pour sends n requests as id at once.
func (f *front) pour(id string, n int) *burst {
	f.t.Helper()
	nc := f.conn(id)
	inbox := "_INBOX." + id + "." + fmt.Sprint(time.Now().UnixNano())
	sub, err := nc.SubscribeSync(inbox + ".*")
	if err != nil {
		f.t.Fatal(err)
	}
	for i := range n {
		if err := nc.PublishRequest("gov.main.propose."+id+".memory.read", fmt.Sprint(inbox, ".", i), []byte(aRead)); err != nil {
			f.t.Fatal(err)
		}
	}
	if err := nc.Flush(); err != nil {
		f.t.Fatal(err)
	}
	return &burst{sub: sub, sent: n, answers: map[string]int{}}
}

// collect waits for n answers more.
func (b *burst) collect(t *testing.T, n int) {
	t.Helper()
	for range n {
		m, err := b.sub.NextMsg(20 * time.Second)
		if err != nil {
			t.Fatalf("%v of %d requests are answered: %v", b.answers, b.sent, err)
		}
		var r struct {
			Reason string `json:"reason_code"`
		}
		if err := json.Unmarshal(m.Data, &r); err != nil {
			t.Fatalf("answer %s: %v", m.Data, err)
		}
		b.answers[r.Reason]++
	}
}

// refusals sums the requests.refused events since at, by id and code, and counts
// the decisions on each subject.
func (f *front) refusals(at uint64) (refused map[string]int, decided map[string]int) {
	refused, decided = map[string]int{}, map[string]int{}
	for _, e := range f.since(at) {
		switch b := e.Body.(type) {
		case *events.RequestsRefused:
			refused[b.ID+" "+b.Code] += int(b.Count)
		case *events.Decision:
			decided[b.Subject]++
		}
	}
	return refused, decided
}

// LOAD-01: one agent sends a hundred times what it may beside twenty that send
// what they may. It is told so, they notice nothing, and the log's count is what
// it was told.
func TestR66_LOAD01_AFloodHurtsTheFlooderAlone(t *testing.T) {
	f := openFront(t, func(c *natsapi.Config) { c.Rate, c.Burst = 0.001, 60 })
	var agents [][2]string
	for i := range 20 {
		agents = append(agents, [2]string{fmt.Sprint("worker", i), ""})
	}
	f.agents(agents...)
	at := f.head()
	flood := f.pour("researcher", 6000)
	var victims []*burst
	for _, a := range agents {
		victims = append(victims, f.pour(a[0], 60))
	}
	for i, v := range victims {
		v.collect(t, v.sent)
		if v.answers["record_unavailable"] != v.sent {
			t.Errorf("%s got %v", agents[i][0], v.answers)
		}
	}
	flood.collect(t, flood.sent)
	if flood.answers["rate_limited"] != flood.sent-60 || flood.answers["visible_from"] != 60 {
		t.Errorf("the flooder got %v", flood.answers)
	}
	eventually(t, "the refusals are counted", func() bool {
		refused, _ := f.refusals(at)
		return refused["researcher rate_limited"] == flood.answers["rate_limited"]
	})
	refused, decided := f.refusals(at)
	if len(refused) != 1 || decided["researcher"] != 60 || decided["worker7"] != 60 {
		t.Errorf("refused %v, decided %v", refused, decided)
	}
}

// Many children have no more together than their tree may.
func TestR66_ChildrenShareTheRateOfTheirTree(t *testing.T) {
	f := openFront(t, func(c *natsapi.Config) { c.Rate, c.Burst, c.TreeBurst = 0.001, 60, 150 })
	f.agents([2]string{"root", ""}, [2]string{"one", "root"}, [2]string{"two", "root"}, [2]string{"three", "two"}, [2]string{"other", ""})
	at := f.head()
	taken := 0
	for _, id := range []string{"one", "two", "three", "root"} {
		b := f.pour(id, 100)
		b.collect(t, b.sent)
		if n := b.sent - b.answers["rate_limited"]; n > 60 {
			t.Errorf("%s got %v", id, b.answers)
		} else {
			taken += n
		}
	}
	if taken != 150 {
		t.Errorf("four of one tree had %d requests judged, want 150", taken)
	}
	b := f.pour("other", 60)
	b.collect(t, 60)
	if b.answers["rate_limited"] != 0 {
		t.Errorf("another tree got %v", b.answers)
	}
	eventually(t, "the refusals are counted", func() bool {
		sum := 0
		refused, _ := f.refusals(at)
		for _, n := range refused {
			sum += n
		}
		return sum == 250
	})
}

// stall holds the writer until the returned function is called.
func (f *front) stall() (free func()) {
	f.t.Helper()
	held, go_ := make(chan struct{}), make(chan struct{})
	if code := f.ledger.Ask("admin", func(*projection.State) func() []byte {
		close(held)
		<-go_
		return func() []byte { return nil }
	}, nil); code != "" {
		f.t.Fatal(code)
	}
	<-held
	return sync.OnceFunc(func() { close(go_) })
}

// A queue that is full is said to be, at once; who has nothing waiting still
// finds room, every request is answered, and the count is in the log.
func TestR66_AFullQueueIsOverloaded(t *testing.T) {
	f := openFront(t)
	f.agents([2]string{"child", "formatter"}, [2]string{"other", ""})
	f.stop()
	f.options.QueueMax = 300
	f.start()
	for _, id := range []string{"researcher", "child", "other"} {
		f.conn(id)
	}
	at := f.head()
	free := f.stall()
	defer free()
	flood := f.pour("researcher", 2000)
	flood.collect(t, 1700) // a third of the queue waits, and what was being read before
	if flood.answers["overloaded"] != 1700 {
		t.Fatalf("%v before anything was judged", flood.answers)
	}
	child, other := f.pour("child", 10), f.pour("other", 10)
	free()
	flood.collect(t, 300)
	child.collect(t, 10)
	other.collect(t, 10)
	if flood.answers["overloaded"]+flood.answers["visible_from"] != 2000 || child.answers["overloaded"]+other.answers["overloaded"] != 0 {
		t.Errorf("the flooder got %v, its kin %v, another %v", flood.answers, child.answers, other.answers)
	}
	eventually(t, "the refusals are counted", func() bool {
		refused, decided := f.refusals(at)
		return len(refused) == 1 && refused["researcher overloaded"] == flood.answers["overloaded"] && decided["researcher"] == flood.answers["visible_from"]
	})
}

// What waited longer than it may is answered and counted, and leaves no decision.
func TestR66_WhatWaitedTooLongIsOverloaded(t *testing.T) {
	f := openFront(t)
	f.stop()
	f.options.MaxWait = time.Nanosecond
	f.start()
	at := f.head()
	b := f.pour("researcher", 50)
	b.collect(t, 50)
	if b.answers["overloaded"] != 50 {
		t.Errorf("answers %v", b.answers)
	}
	if r := f.ask("formatter", "query", "checkpoint", `{}`); r.Reply.Reason != "overloaded" {
		t.Errorf("the query's answer %s", r.Text)
	}
	want(t, f.ask("admin", "control", "environment.set", `{"capabilities":["memory.read"]}`), "control_done")
	eventually(t, "the refusals are counted", func() bool {
		refused, decided := f.refusals(at)
		return refused["researcher overloaded"] == 50 && refused["formatter overloaded"] == 1 && decided["researcher"] == 0
	})
}

// Many connections that do nothing but send do not make the server cut off
// ledgerd itself: others are answered all the while, and an admin's verb too.
func TestR66_AFloodDoesNotCutLedgerdOff(t *testing.T) {
	f := openFront(t, func(c *natsapi.Config) { c.Rate, c.Burst = 1, 60 })
	at := f.head()
	body := make([]byte, 4000)
	var all sync.WaitGroup
	flood := make(chan struct{})
	for range 60 {
		nc, err := f.dial("researcher")
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		all.Go(func() {
			<-flood
			for range 6000 {
				if nc.Publish("gov.main.propose.researcher.memory.read", body) != nil || !nc.IsConnected() {
					return
				}
			}
		})
	}
	f.conn("formatter")
	close(flood)
	for range 20 {
		want(t, f.propose("formatter", "memory.read", aRead), "visible_from")
		want(t, f.ask("admin", "control", "agent.revoke", `{"agent_id":"nobody"}`), "not_found")
	}
	all.Wait()
	if s := f.node.Stats(); s.SlowConsumers != 0 || s.Dropped != 0 {
		t.Errorf("%d connections cut off as slow, %d requests lost", s.SlowConsumers, s.Dropped)
	}
	eventually(t, "the flood is counted", func() bool {
		refused, _ := f.refusals(at)
		return refused["researcher rate_limited"] > 0
	})
}
