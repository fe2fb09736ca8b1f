package outbox

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/millrace-go/millrace/outbox/internal/observe"
	"github.com/millrace-go/millrace/outbox/internal/registration"
	"github.com/millrace-go/millrace/outbox/internal/relay"
	"github.com/millrace-go/millrace/outbox/internal/step"
	"github.com/millrace-go/millrace/outbox/internal/store"
	"github.com/millrace-go/millrace/transport"
)

// loop carries out the actions of the relay's core. One goroutine owns the core; each action runs in its own goroutine.
type loop struct {
	relay          *Relay
	core           *relay.Core
	store          *store.Relay
	reader         source
	hard           context.Context         //nolint:containedctx // the loop lives as long as Run: hard ends when draining does
	end            context.CancelCauseFunc // makes Run stop, as if its context had ended
	inputs         chan step.Input
	running        int // actions under way
	leases         map[step.Ref]lease
	ending         bool
	wrote          time.Time // the journal; there is one poll at a time
	paused         bool      // an operator has paused a topic since Run began
	mayHaveResumed bool      // since the current read began: settings came, and a topic was paused before
	changed        bool      // the shards or the number of gaps may have changed since the last call of Relay.hold
}

// lease has the context for sending under a lease. The context ends with the lease.
type lease struct {
	ctx    context.Context //nolint:containedctx // see above
	cancel context.CancelFunc
	once   *onceShard // nil if Delivery is AtLeastOnce
}

// gatherTransactions is from the end of a shard's transaction to its next one. A transaction on the heels of another of its
// transactional ID waits at the brokers, about 20 ms under load. Events that come meanwhile join the transaction if it begins later.
const gatherTransactions = 20 * time.Millisecond

// flushTimeout bounds the last delete when Run ends.
const flushTimeout = 5 * time.Second

func newLoop(hard context.Context, end context.CancelCauseFunc, r *Relay) *loop {
	_, batches := r.publisher.(transport.BatchPublisher)
	gather := time.Duration(0)
	if r.once != nil {
		gather = gatherTransactions
	}
	return &loop{
		relay: r, store: r.store, reader: r.source, hard: hard, end: end, inputs: make(chan step.Input, 64), leases: map[step.Ref]lease{},
		core: relay.New(relay.Config{
			BatchSize: r.cfg.BatchSize, MaxInFlight: r.cfg.MaxInFlight, Batches: batches || r.once != nil,
			PollInterval: r.cfg.PollInterval, LeaseTTL: r.cfg.LeaseTTL, StuckAfter: 2 * r.cfg.PublishTimeout, CrashPause: r.pause, Gather: gather,
			Fault: faultOf, Retry: r.cfg.retry, Gaps: r.gaps, Jitter: jitter,
		}, time.Now()),
	}
}

// jitter shortens d by up to a quarter, so that things that failed together are not retried together.
func jitter(d time.Duration) time.Duration { return d - time.Duration(rand.Int64N(int64(d)/4+1)) }

// run works until ctx has ended and nothing is in flight, or until hard has ended.
func (l *loop) run(ctx context.Context) {
	stopped := ctx.Done()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		actions, wait := l.core.Next(time.Now())
		for _, a := range actions {
			l.start(a)
		}
		if l.changed {
			l.changed = false
			l.relay.hold(l.core)
		}
		if l.ending && l.running == 0 && l.core.Drained() {
			return
		}
		timer.Reset(wait)
		select {
		case <-stopped:
			stopped, l.ending = nil, true
			l.core.Apply(time.Now(), step.Stop{})
		case <-l.hard.Done():
			l.abandon()
			return
		case <-l.relay.wakes.Signal():
			l.core.Apply(time.Now(), l.woken())
		case in := <-l.inputs:
			l.apply(in)
		case <-timer.C:
		}
		for more := true; more; { // take all waiting inputs before the next step
			select {
			case in := <-l.inputs:
				l.apply(in)
			default:
				more = false
			}
		}
	}
}

func (l *loop) apply(in step.Input) {
	l.running--
	switch in := in.(type) {
	case step.Renewed:
		l.changed = true
		if err := l.relay.counting.Renewed(in, l.relay.cfg.LeaseTTL, time.Now()); err != nil {
			l.end(err)
		}
	case step.BlockedLoaded:
		l.heard(in.Controls)
	case step.Polled:
		l.heard(in.Controls)
	case step.ReadDone:
		l.changed = true
		if l.mayHaveResumed { // the WAL may have shown events that were discarded meanwhile
			in.Unload()
		}
	}
	l.core.Apply(time.Now(), in)
}

// heard records that operators' settings arrived.
func (l *loop) heard(controls []step.Control) {
	l.paused = l.paused || slices.ContainsFunc(controls, func(c step.Control) bool { return c.Paused != 0 })
	l.mayHaveResumed = l.mayHaveResumed || l.paused
}

// woken returns the wake-ups since the previous call.
func (l *loop) woken() step.Woken {
	hashes, all, look := l.relay.wakes.Take()
	w := step.Woken{All: all, Look: look}
	n := int64(max(l.core.Shards(), 1))
	for _, h := range hashes {
		w.Shards = append(w.Shards, int16(h%n))
	}
	return w
}

// start begins an action.
func (l *loop) start(action step.Action) {
	switch a := action.(type) {
	case step.Report:
		l.relay.report(a)
		return
	case step.Read:
		l.mayHaveResumed = false
	case step.Renew:
		l.relay.stand(a.Topics)
		if a.Struggling && l.relay.wal != nil && time.Now().After(l.relay.keepUntil) { // the relays that stand by hold no leases: one of them may get on
			l.end(errStruggles)
		}
	case step.EndLease:
		if held, ok := l.leases[a.Ref]; ok {
			held.cancel()
			delete(l.leases, a.Ref)
			if held.once != nil {
				l.relay.once.end(held.once)
			}
		}
		l.changed = true
		return
	case step.Publish:
		held, ok := l.leases[a.Ref]
		if !ok {
			held.ctx, held.cancel = context.WithCancel(l.hard)
			if l.relay.once != nil {
				held.once = l.relay.once.begin(a.Shard)
			}
			l.leases[a.Ref] = held
		}
		l.do(func() step.Input { return l.relay.publish(held.ctx, a, held.once) })
		return
	}
	l.do(func() step.Input { return l.carryOut(action) })
}

// do runs f in a goroutine and hands its result to the core.
func (l *loop) do(f func() step.Input) {
	l.running++
	go func() { l.inputs <- f() }()
}

// carryOut executes an action on the database.
func (l *loop) carryOut(action step.Action) step.Input {
	ctx := l.hard
	switch a := action.(type) {
	case step.Renew:
		return l.store.Renew(ctx, a)
	case step.LoadBlocked:
		return l.store.Blocked(ctx, a)
	case step.Read:
		answer, err := l.reader.Read(ctx, a.Requests, a.Writers)
		return step.ReadDone{Answer: answer, Err: err}
	case step.Rescan:
		rows, err := l.store.Rescan(ctx, a.Requests)
		return step.Rescanned{Rows: rows, Err: err}
	case step.Delete:
		err := l.store.Delete(ctx, a.Rows)
		if err == nil && l.relay.once != nil {
			l.relay.once.deleted(a.Rows)
		}
		return step.Deleted{Err: err}
	case step.SetAside:
		return l.store.SetAside(ctx, a)
	case step.FetchFailed:
		return l.store.FetchFailed(ctx, a)
	case step.SettleFailed:
		return l.store.SettleFailed(context.WithoutCancel(ctx), a) // the broker already has these events
	case step.Poll:
		answer := l.store.Poll(ctx, a.Shards)
		if time.Since(l.wrote) >= l.relay.journal { // on the connection that is free again
			l.wrote = time.Now()
			l.relay.writeJournal(ctx)
		}
		return answer
	case step.RetryDead:
		return l.store.RetryDead(ctx, a)
	case step.MoveDelayed:
		return l.relay.moveDelayed(ctx, a.Limit)
	case step.Release:
		return step.Released{Shards: a.Shards, Err: l.store.Release(ctx, a)}
	case step.ClearSuspect:
		return step.SuspectCleared{Err: l.store.ClearSuspect(ctx, a.Shard)}
	default:
		panic("outbox: an action that nobody carries out")
	}
}

// abandon waits at most flushTimeout for the actions under way, after their contexts have ended. A publisher that takes no context
// may block for ever.
func (l *loop) abandon() {
	for _, held := range l.leases {
		held.cancel()
	}
	deadline := time.After(flushTimeout)
	for waiting := true; waiting && l.running > 0; {
		select {
		case in := <-l.inputs:
			l.apply(in)
			actions, _ := l.core.Next(time.Now())
			for _, a := range actions { // start nothing new, but record the events that the broker has taken
				if _, ok := a.(step.SettleFailed); ok {
					l.start(a)
				}
			}
		case <-deadline:
			l.relay.cfg.Logger.Error("the publisher does not return: what it was given may be published again", "actions", l.running)
			go func(n int) { // lets the goroutines end
				for range n {
					<-l.inputs
				}
			}(l.running)
			waiting = false
		}
	}
	rows := l.core.Unsaved()
	if len(rows) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(l.hard), flushTimeout)
	defer cancel()
	if err := l.store.Delete(ctx, rows); err != nil {
		l.relay.cfg.Logger.WarnContext(ctx, "delete published events: they will be published again", "events", len(rows), "error", err)
	}
}

// hold stores the shards and the number of gaps for metrics and for the end of Run.
func (r *Relay) hold(c *relay.Core) {
	held := c.Held()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gapCount = c.Gaps()
	if !slices.Equal(r.shards, held) {
		r.shards = held
	}
}

// stand stores the topics whose events wait, for metrics.
func (r *Relay) stand(topics []step.TopicState) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.topics = topics
}

// status returns what metrics report.
func (r *Relay) status() observe.Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := observe.Status{Gaps: r.gapCount, Shards: append([]int16{}, r.shards...), Topics: r.topics}
	if r.wal != nil {
		s.WAL = r.wal.Status()
	}
	if r.landing != nil {
		s.Landing = r.landing.Status()
	}
	return s
}

// publish sends a batch, unless its lease has ended. If the crash guard wants the event marked, publish marks it before sending it.
// If the broker does not take the event and the relay survives, publish clears the mark. So an outage makes no event suspect.
func (r *Relay) publish(ctx context.Context, a step.Publish, once *onceShard) step.Published {
	answer := step.Published{Ref: a.Ref, Queue: a.Queue}
	if a.Noted {
		if err := r.store.Note(ctx, a.Shard, a.Rows[0].EventID); err != nil { // the event could not be marked, so it is not sent
			answer.Results = repeat(errors.Join(transport.ErrUnavailable, err), len(a.Rows))
			return answer
		}
	}
	now := time.Now()
	switch term, ok := r.counting.Begin(now); {
	case !a.InTime(now):
		answer.Results = repeat(step.ErrLeaseOver, len(a.Rows))
	case !ok:
		answer.Results = repeat(registration.ErrUnregistered, len(a.Rows))
	default:
		if once != nil {
			answer.Results = r.once.publish(ctx, once, a)
		} else {
			answer.Results = r.send(ctx, a, new(sync.Once))
		}
		if !r.counting.Counts(term, time.Now()) {
			answer.Results = repeat(registration.ErrUnregistered, len(a.Rows))
		}
	}
	if a.Noted && answer.Results[0] != nil {
		if err := r.store.Survived(ctx, a.Shard, a.Rows[0].EventID); err != nil && ctx.Err() == nil {
			r.cfg.Logger.WarnContext(ctx, "clear the note of an event", "shard", a.Shard, "error", err)
		}
	}
	return answer
}

// report logs an event of the core and counts it for metrics.
func (r *Relay) report(p step.Report) {
	log := r.cfg.Logger
	switch p.Kind {
	case step.ReportSettled:
		r.observer.Settled(p, time.Now())
		r.counted.Add(p.Topic, store.Counted{Published: int64(p.Count - p.Failed), Failed: int64(p.Failed)})
	case step.ReportFailed:
		log.Warn("publish events", "shard", p.Shard, "topic", p.Topic, "failed_keys", p.Failed, "event_id", p.Event.EventID, "retry_in", p.In.Round(time.Millisecond), "error", p.Err)
	case step.ReportStands:
		log.Warn("the broker does not take events of a topic: they wait", "topic", p.Topic, "error", p.Err)
	case step.ReportGetsOn:
		log.Info("the broker takes events of the topic again", "topic", p.Topic, "after", p.In.Round(time.Millisecond))
	case step.ReportPaused:
		log.Info("an operator has paused the topic: its events wait", "topic", p.Topic)
	case step.ReportResumed:
		if r.wal != nil { // an operator may have discarded events that the WAL has shown
			r.wal.Buffer.Forget()
		}
		log.Info("an operator has resumed the topic", "topic", p.Topic)
	case step.ReportRedirected:
		log.Info("the events of the topic are published to this topic from now on", "topic", p.Topic, "to", p.Action)
	case step.ReportAside:
		r.observer.Moved(p.Aside)
	case step.ReportSurprise:
		r.observer.Surprised()
		log.Warn("events appeared below those that were read: reading the shard again from its start", "shard", p.Shard)
	case step.ReportCareful:
		log.Warn("relays ended while they held this shard: sending its next events one by one", "shard", p.Shard, "relays", p.Count)
	case step.ReportAccused:
		attrs := []any{"shard", p.Shard, "topic", p.Topic, "relays", p.Count}
		if p.Event != nil {
			attrs = append(attrs, "event_id", p.Event.EventID)
		}
		log.Error("relays ended while they sent this event: it is set aside", attrs...)
	case step.ReportStuck:
		log.Error("the publisher does not return: giving the shard back", "shard", p.Shard, "topic", p.Topic, "events", p.Count, "after", p.In)
	case step.ReportRetried:
		log.Info("events that had failed were published: dead ones with the same error are retried", "topic", p.Topic, "events", p.Count)
	case step.ReportError:
		log.Warn("a step of the relay failed: it is repeated", "step", p.Action, "shard", p.Shard, "retry_in", p.In.Round(time.Millisecond), "error", p.Err)
	}
}

// faultOf decides what a publisher's error means for the event.
func faultOf(err error) relay.Fault {
	var network net.Error
	var errno syscall.Errno
	switch {
	case errors.Is(err, transport.ErrNotSent):
		return relay.NotSent
	case errors.Is(err, transport.ErrUnavailable), errors.Is(err, transport.ErrClosed),
		errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled),
		errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF),
		errors.As(err, &network), errors.As(err, &errno):
		return relay.Outage
	case errors.Is(err, transport.ErrRejected), errors.Is(err, transport.ErrLimit):
		return relay.Rejected
	}
	return relay.Unknown
}
