package outbox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/enum"
	"github.com/millrace-go/millrace/outbox/internal/progress"
	"github.com/millrace-go/millrace/outbox/internal/step"
	"github.com/millrace-go/millrace/outbox/internal/turn"
	"github.com/millrace-go/millrace/transport"
)

// Delivery says how often an event may be published.
type Delivery int

const (
	// AtLeastOnce publishes an event again, with the same ID, when a relay ends between publishing and deleting it.
	AtLeastOnce Delivery = iota
	// Transactional publishes each event once for consumers that read committed records only. It needs Kafka.
	Transactional
)

func (d Delivery) String() string {
	switch d {
	case AtLeastOnce:
		return "AtLeastOnce"
	case Transactional:
		return "Transactional"
	}
	return fmt.Sprintf("Delivery(%d)", int(d))
}

// MarshalText returns the word used in configuration files: at_least_once or transactional.
func (d Delivery) MarshalText() ([]byte, error) { return enum.Text(d, AtLeastOnce, Transactional) }

// UnmarshalText parses the word that MarshalText returns.
func (d *Delivery) UnmarshalText(word []byte) error {
	return enum.Read(d, word, AtLeastOnce, Transactional)
}

// maxTransactionalInFlight keeps a shard's progress below transport.MaxNote. Each transaction carries the progress as its note.
const maxTransactionalInFlight = 20_000

// fullProgress is at how many event IDs a shard's progress is pruned: the events in flight, and as many whose deletes are not confirmed.
func fullProgress(inFlight int) int { return 2 * inFlight }

// once publishes in transactions of the broker. Package progress makes the decisions, and once carries them out.
type once struct {
	relay     *Relay
	publisher transport.TransactionalPublisher
	name      string // identifies this outbox in the transactions' names
	closing   sync.WaitGroup

	mu     sync.Mutex
	shards map[*onceShard]struct{}
}

// onceShard is a shard during one lease. It has one transaction at a time.
type onceShard struct {
	number       int16
	line         *turn.Line[onceWish, []error] // of batches that wait for a transaction
	transactions transport.Transactions

	mu       sync.Mutex // guards progress
	progress *progress.Shard
}

// onceWish is a batch to publish.
type onceWish struct {
	step.Publish
	ctx context.Context //nolint:containedctx // of the call that waits for the results
}

// onceCaller waits for the results of a batch.
type onceCaller = turn.Caller[onceWish, []error]

func newOnce(ctx context.Context, r *Relay) (*once, error) {
	var database, server string
	if err := r.pool.QueryRow(ctx, `select current_database(), system_identifier::text from pg_control_system()`).Scan(&database, &server); err != nil {
		return nil, fmt.Errorf("ask for the names of the database and its server: %w", err)
	}
	return &once{
		relay: r, publisher: r.publisher.(transport.TransactionalPublisher),
		name: progress.Name(database, r.cfg.Schema, server), shards: map[*onceShard]struct{}{},
	}, nil
}

// begin returns the shard's state for a new lease.
func (o *once) begin(number int16) *onceShard {
	s := &onceShard{number: number, progress: progress.New(fullProgress(o.relay.cfg.MaxInFlight), progress.Fit(transport.MaxNote)), transactions: o.publisher.Transactions(o.name, int(number))}
	_, joint := s.transactions.(transport.JointTransactions)
	s.line = turn.NewLine[onceWish, []error](func(first, other onceWish) bool {
		return joint && !first.Noted && !other.Noted // an event that the crash guard has marked is sent alone
	})
	o.mu.Lock()
	defer o.mu.Unlock()
	o.shards[s] = struct{}{}
	return s
}

// end closes a lease's transactions after the batch under way. Later batches of this lease wait until their contexts end.
func (o *once) end(s *onceShard) {
	o.mu.Lock()
	delete(o.shards, s)
	o.mu.Unlock()
	o.closing.Go(func() {
		s.line.Close()
		if err := s.transactions.Close(); err != nil {
			o.relay.cfg.Logger.Warn("close the transactions of a shard", "shard", s.number, "error", err)
		}
	})
}

// close ends all leases. It waits at most flushTimeout, because a publisher may block for ever.
func (o *once) close() {
	o.mu.Lock()
	shards := slices.Collect(maps.Keys(o.shards))
	o.mu.Unlock()
	for _, s := range shards {
		o.end(s)
	}
	closed := make(chan struct{})
	go func() {
		o.closing.Wait()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(flushTimeout):
		o.relay.cfg.Logger.Warn("the transactions of some shards are not closed yet")
	}
}

// deleted records that the deletes of these rows are durable.
func (o *once) deleted(rows []step.ShardRow) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for s := range o.shards {
		s.decide(func(p *progress.Shard) {
			for _, r := range rows {
				if r.Shard == s.number {
					p.Deleted(r.Row)
				}
			}
		})
	}
}

func (s *onceShard) decide(f func(*progress.Shard)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s.progress)
}

// publish publishes the rows that are not published yet. While a transaction is under way, batches of several topics gather for the
// next one.
func (o *once) publish(ctx context.Context, s *onceShard, a step.Publish) []error {
	ctx, cancel := context.WithTimeout(ctx, o.relay.cfg.PublishTimeout)
	defer cancel()
	results, err := s.line.Do(ctx, onceWish{a, ctx}, func(group []*onceCaller) { o.serve(ctx, s, group) })
	if err != nil {
		return repeat(err, len(a.Rows))
	}
	return results
}

// serve publishes the batches in one transaction. If that fails, for example because of one topic, it publishes each batch in a transaction
// of its own, in reverse order, so that the batch that has waited longest comes last.
func (o *once) serve(ctx context.Context, s *onceShard, group []*onceCaller) {
	group = slices.DeleteFunc(group, func(c *onceCaller) bool { // an expired batch must not shorten the deadline of the others
		over := !c.Wish.InTime(time.Now())
		if over {
			c.Answer(repeat(step.ErrLeaseOver, len(c.Wish.Rows)))
		}
		return over
	})
	if len(group) > 1 {
		joined := groupOf(group)
		results := o.batch(ctx, s, joined, joined.rows)
		if !slices.ContainsFunc(results, func(err error) bool { return err != nil }) {
			for _, c := range group {
				c.Answer(make([]error, len(c.Wish.Rows)))
			}
			return
		}
	}
	for i, c := range slices.Backward(group) {
		own := groupOf(group[i : i+1])
		c.Answer(o.together(c.Wish.ctx, s, own, own.rows))
	}
}

// onceGroup is batches of one transaction.
type onceGroup struct {
	rows     []*step.Row
	to       map[string]string // the topics that they are published to, by their own
	deadline time.Time         // the first one
	logged   *sync.Once        // for the first panic of the publisher
}

func groupOf(callers []*onceCaller) onceGroup {
	g := onceGroup{to: map[string]string{}, deadline: callers[0].Wish.Deadline, logged: new(sync.Once)}
	for _, c := range callers {
		g.rows = append(g.rows, c.Wish.Rows...)
		g.to[c.Wish.Queue] = c.Wish.To
		if c.Wish.Deadline.Before(g.deadline) {
			g.deadline = c.Wish.Deadline
		}
	}
	return g
}

// together publishes rows in one transaction. If the broker refuses several, one row may be the reason for all, so together retries in
// halves. Rows that were not sent because of other rows are then published without those, unless an earlier row of their key failed.
func (o *once) together(ctx context.Context, s *onceShard, a onceGroup, rows []*step.Row) []error {
	results := o.batch(ctx, s, a, rows)
	refused := 0
	for _, err := range results {
		if errors.Is(err, transport.ErrRejected) || errors.Is(err, errPanicked) {
			refused++
		}
	}
	if refused > 1 {
		n := len(rows) / 2
		results = append(o.together(ctx, s, a, rows[:n]), repeat(transport.ErrNotSent, len(rows)-n)...)
	}
	failed := map[string]bool{}
	var rest []*step.Row
	var places []int
	for i, r := range rows {
		if errors.Is(results[i], transport.ErrNotSent) && !failed[r.Key] {
			rest, places = append(rest, r), append(places, i)
		} else if results[i] != nil && r.Key != "" {
			failed[r.Key] = true
		}
	}
	if len(rest) > 0 && len(rest) < len(rows) {
		for i, err := range o.together(ctx, s, a, rest) {
			results[places[i]] = err
		}
	}
	return results
}

// batch executes the steps that package progress decides for a batch.
func (o *once) batch(ctx context.Context, s *onceShard, g onceGroup, rows []*step.Row) (results []error) {
	var batch *progress.Batch
	s.decide(func(shard *progress.Shard) { batch = shard.Begin(rows) })
	for results == nil {
		var next progress.Step
		s.decide(func(*progress.Shard) { next = batch.Next() })
		switch a := next.(type) {
		case progress.Take:
			if !step.Holds(g.deadline, time.Now()) { // another relay may hold the shard by now: do not take it from that relay
				s.decide(func(*progress.Shard) { batch.Taken(time.Time{}, nil, step.ErrLeaseOver) })
				continue
			}
			note, err := s.transactions.Take(ctx)
			at := time.Now()
			ids, wrong := progress.Decode(note)
			s.decide(func(*progress.Shard) { batch.Taken(at, ids, unavailable(errors.Join(err, wrong))) })
		case progress.Look:
			found, err := o.relay.store.Look(ctx, s.number, a.IDs)
			s.decide(func(*progress.Shard) { batch.Looked(time.Now(), a.IDs, found, unavailable(err)) })
		case progress.Send:
			sent := repeat(step.ErrLeaseOver, len(a.Rows))
			if step.Holds(g.deadline, time.Now()) {
				sent = o.send(ctx, s, g, a)
			}
			s.decide(func(*progress.Shard) { batch.Sent(sent) })
		case progress.Done:
			results = a.Results
		}
	}
	for i, err := range results {
		if errors.Is(err, progress.ErrFull) {
			results[i] = unavailable(err)
		}
	}
	return results
}

// unavailable marks an error as an outage, so that it counts against no event.
func unavailable(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", transport.ErrUnavailable, err)
}

// send publishes rows and the progress in one transaction, or nothing. A row that is no valid message counts as refused.
func (o *once) send(ctx context.Context, s *onceShard, g onceGroup, a progress.Send) (results []error) {
	msgs, topics, bad := make([]*message.Message, len(a.Rows)), make([]string, len(a.Rows)), false
	results = repeat(transport.ErrNotSent, len(a.Rows))
	for i, r := range a.Rows {
		var err error
		if msgs[i], err = o.relay.messageOf(ctx, r); err != nil {
			results[i], bad = err, true
		}
		topics[i] = g.to[r.Topic]
	}
	if bad {
		return results
	}
	defer func() {
		if p := recover(); p != nil {
			results = repeat(o.relay.panicked(ctx, g.logged, p, topics[0], len(msgs)), len(msgs))
		}
	}()
	ctx, end := o.spans(ctx, topics, msgs)
	if one := topics[0]; !slices.ContainsFunc(topics, func(topic string) bool { return topic != one }) {
		results = s.transactions.Publish(ctx, one, msgs, progress.Encode(a.Progress))
	} else {
		results = s.transactions.(transport.JointTransactions).PublishTo(ctx, topics, msgs, progress.Encode(a.Progress))
	}
	end(results)
	return results
}

// spans begins a span for each topic. The publisher's own spans belong to the last one.
func (o *once) spans(ctx context.Context, topics []string, msgs []*message.Message) (within context.Context, end func(results []error)) {
	end = func([]error) {}
	for from, upTo := 0, 0; from < len(topics); from = upTo {
		for upTo < len(topics) && topics[upTo] == topics[from] {
			upTo++
		}
		var done func([]error)
		within, done = o.relay.observer.Span(ctx, topics[from], msgs[from:upTo])
		before := end
		end = func(results []error) {
			before(results)
			done(results[from:upTo])
		}
	}
	return within, end
}
