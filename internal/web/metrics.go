package web

import (
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/witness"
)

// Door is what the front door and the feed tell of themselves. The keys of the
// maps are of closed lists.
type Door struct {
	Connections   int               // clients, ledgerd's own among them
	Refused       map[string]uint64 // before judgement, by reason code
	Denied        map[string]uint64 // by the server itself, by kind
	SlowConsumers uint64            // connections dropped because they did not read
	Dropped       uint64            // requests that ledgerd's own connections could not take
	FeedSeq       uint64            // the stream holds the log up to here
	FeedLag       uint64            // events
	FeedAge       time.Duration     // of the oldest event that the stream lacks
	FeedHalted    bool
	FeedFault     bool
}

// The metrics. No label's value comes from outside: operations, reasons, lanes
// and checks are closed lists.
var (
	infoDesc      = desc("build_info", "Always 1.", "build", "rules", "format", "go")
	readyDesc     = desc("ready", "1 when /readyz answers 200.")
	checkDesc     = desc("check", "0 ok, 1 warning, 2 failed; see /readyz?verbose.", "check")
	decisionsDesc = desc("decisions_total", "Decisions in the log, by operation and reason code.", "operation", "reason", "allowed")
	retriesDesc   = desc("retries_total", "Proposals answered from the log because their operation id was used before.")
	refusedDesc   = desc("requests_refused_total", "Requests turned away before judgement, by reason code.", "reason")
	deniedDesc    = desc("transport_denied_total", "Connections, publishes and subscriptions that the NATS server refused.", "kind")
	latencyDesc   = desc("decision_latency_seconds", "From a proposal's arrival at the ledger to its answer.")
	syncDesc      = desc("sync_duration_seconds", "From the append of a batch until it is on disk.")
	batchDesc     = desc("batch_jobs", "Proposals, queries and notes judged together.")
	depthDesc     = desc("queue_depth", "Waiting, by lane.", "lane")
	queueMaxDesc  = desc("queue_capacity", "Room, by lane.", "lane")
	durableDesc   = desc("durable_seq", "The last event on disk.")
	signedDesc    = desc("signed_seq", "The last event under a signed checkpoint and the anchor.")
	signedLagDesc = desc("signed_lag_events", "Events on disk without a checkpoint.")
	notesDesc     = desc("checkpoints_total", "Checkpoints signed since the start.")
	feedSeqDesc   = desc("feed_seq", "The last event in the stream.")
	feedLagDesc   = desc("feed_lag_events", "Events on disk that the stream lacks.")
	feedAgeDesc   = desc("feed_lag_seconds", "Age of the oldest event that the stream lacks.")
	feedHaltDesc  = desc("feed_halted", "1 when the feed has stopped for good.")
	feedFaultDesc = desc("feed_interrupted", "1 while the feed tries again after a fault.")
	stateDesc     = desc("state_size", "What the state holds, revoked and deleted ones included.", "of")
	damagedDesc   = desc("damaged_payload_answers_total", "Answers that failed because a payload does not open.")
	freeDesc      = desc("store_free_bytes", "Free on the log's file system.")
	gateDesc      = desc("storage_gate", "0 open, 1 proposals refused, 2 nothing is written.")
	bytesDesc     = desc("store_bytes", "What the log takes.", "of")
	tablesDesc    = desc("store_tables", "Tables of the log.")
	readAmpDesc   = desc("store_read_amplification", "Tables that one read may have to look at.")
	compactDesc   = desc("store_compactions_total", "Compactions since the start.")
	flushDesc     = desc("store_flushes_total", "Flushes since the start.")
	storeErrDesc  = desc("store_background_errors_total", "Faults of the storage engine's own work; the first one stops the ledger.")
	clockDesc     = desc("clock_suspect", "1 while the wall clock is too far ahead to be followed.")
	connDesc      = desc("connections", "Client connections, ledgerd's own among them.")
	slowDesc      = desc("slow_consumers_total", "Connections that the NATS server dropped because they did not read.")
	droppedDesc   = desc("requests_dropped_total", "Requests lost before a handler saw them, because ledgerd's own connection could not take more.")
)

// Of witnesses, by their place in the policy file.
var (
	witnessAnswers = desc("witness_answers_total", "What witnesses answered to checkpoints.", "outcome")
	witnessState   = desc("witness_refused", "1 where the witness refuses to cosign; by its place in the policy.", "witness")
	witnessSize    = desc("witness_size", "The last size that the witness cosigned.", "witness")
	witnessQuorum  = desc("witness_quorum_seq", "The last event under a checkpoint that enough witnesses cosigned.")
	witnessAge     = desc("witness_quorum_age_seconds", "Since the newest cosignature of that checkpoint; -1 without one.")
)

func (e emitter) witnesses(s witness.Stats) {
	e.counter(witnessAnswers, s.Cosigned, string(witness.Cosigned))
	e.counter(witnessAnswers, s.Unavailable, string(witness.Unavailable))
	e.counter(witnessAnswers, s.Refused, string(witness.Refused))
	for i, w := range s.Witnesses {
		refused := 0.0
		if w.State == witness.Refused {
			refused = 1
		}
		e.gauge(witnessState, refused, strconv.Itoa(i+1))
		e.gauge(witnessSize, float64(w.Size), strconv.Itoa(i+1))
	}
	e.gauge(witnessQuorum, float64(s.Quorum))
	age := -1.0
	if !s.QuorumAt.IsZero() {
		age = time.Since(s.QuorumAt).Seconds()
	}
	e.gauge(witnessAge, age)
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("ledgerd_"+name, help, labels, nil)
}

// collector makes the metrics from what the source says at the moment of a
// scrape.
type collector struct {
	state   *atomic.Pointer[state]
	version Version
}

// Describe implements prometheus.Collector: unchecked, for what there is
// depends on what happened.
func (c *collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	e := emitter(out)
	v := c.version
	e.gauge(infoDesc, 1, v.Build, strconv.FormatUint(v.Rules, 10), v.Format, v.Go)
	source := c.state.Load().source
	if source == nil {
		e.gauge(readyDesc, 0)
		return
	}
	e.checks(source.Checks())
	e.ledger(source.Ledger.Stats())
	e.door(source.Door())
	if source.Witness != nil {
		e.witnesses(source.Witness.Stats())
	}
}

type emitter chan<- prometheus.Metric

func (e emitter) gauge(d *prometheus.Desc, v float64, labels ...string) {
	e <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

func (e emitter) counter(d *prometheus.Desc, v uint64, labels ...string) {
	e <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
}

func (e emitter) flag(d *prometheus.Desc, on bool) {
	v := 0.0
	if on {
		v = 1
	}
	e.gauge(d, v)
}

func (e emitter) histogram(d *prometheus.Desc, h ledger.Histogram) {
	buckets := make(map[float64]uint64, len(h.Bounds))
	var count uint64
	for i, n := range h.Counts {
		count += n
		if i < len(h.Bounds) {
			buckets[h.Bounds[i]] = count
		}
	}
	e <- prometheus.MustNewConstHistogram(d, count, h.Sum, buckets)
}

func (e emitter) checks(checks []ledger.Check) {
	ready := true
	for _, c := range checks {
		v := 0.0
		switch c.Status {
		case ledger.CheckWarn:
			v = 1
		case ledger.CheckFail:
			v, ready = 2, false
		}
		e.gauge(checkDesc, v, c.Name)
	}
	e.flag(readyDesc, ready)
}

func (e emitter) ledger(s ledger.Stats) {
	for _, d := range s.Decisions {
		allowed := "false"
		if d.Allowed {
			allowed = "true"
		}
		e.counter(decisionsDesc, d.Count, d.Operation, string(d.Reason), allowed)
	}
	e.counter(retriesDesc, s.Retries)
	e.histogram(latencyDesc, s.Latency)
	e.histogram(syncDesc, s.Sync)
	e.histogram(batchDesc, s.Batch)
	for _, q := range s.Queues {
		e.gauge(depthDesc, float64(q.Depth), q.Lane)
		e.gauge(queueMaxDesc, float64(q.Max), q.Lane)
	}
	e.gauge(durableDesc, float64(s.Durable))
	e.gauge(signedDesc, float64(s.Signed))
	e.gauge(signedLagDesc, float64(s.Durable-min(s.Signed, s.Durable)))
	e.counter(notesDesc, s.Checkpoints)
	e.gauge(stateDesc, float64(s.State.Agents), "agents")
	e.gauge(stateDesc, float64(s.State.Principals), "principals")
	e.gauge(stateDesc, float64(s.State.Records), "records")
	e.gauge(stateDesc, float64(s.State.Operations), "operation_ids")
	e.gauge(stateDesc, float64(s.State.OpenRuns), "open_runs")
	e.gauge(stateDesc, float64(s.State.Doubts), "runs_in_doubt")
	e.gauge(stateDesc, float64(s.State.Denies), "emergency_denies")
	e.counter(damagedDesc, s.Damaged)
	e.flag(clockDesc, s.ClockSuspect)
	e.gauge(gateDesc, float64(s.Gate))
	e.gauge(freeDesc, float64(s.FreeBytes))
	e.store(s)
}

func (e emitter) store(s ledger.Stats) {
	for _, part := range []struct {
		of    string
		bytes uint64
	}{
		{"disk", s.Store.DiskBytes}, {"wal", s.Store.WALBytes}, {"tables", s.Store.TableBytes},
		{"memtables", s.Store.MemTableBytes}, {"cache", uint64(max(0, s.Store.CacheBytes))}, {"compaction_debt", s.Store.CompactionDebt},
	} {
		e.gauge(bytesDesc, float64(part.bytes), part.of)
	}
	e.gauge(tablesDesc, float64(s.Store.Tables))
	e.gauge(readAmpDesc, float64(s.Store.ReadAmp))
	e.counter(compactDesc, uint64(max(0, s.Store.Compactions)))
	e.counter(flushDesc, uint64(max(0, s.Store.Flushes)))
	e.counter(storeErrDesc, s.Store.BackgroundErrors)
}

func (e emitter) door(d Door) {
	for reason, n := range d.Refused {
		e.counter(refusedDesc, n, reason)
	}
	for kind, n := range d.Denied {
		e.counter(deniedDesc, n, kind)
	}
	e.gauge(connDesc, float64(d.Connections))
	e.counter(slowDesc, d.SlowConsumers)
	e.counter(droppedDesc, d.Dropped)
	e.gauge(feedSeqDesc, float64(d.FeedSeq))
	e.gauge(feedLagDesc, float64(d.FeedLag))
	e.gauge(feedAgeDesc, d.FeedAge.Seconds())
	e.flag(feedHaltDesc, d.FeedHalted)
	e.flag(feedFaultDesc, d.FeedFault)
}
