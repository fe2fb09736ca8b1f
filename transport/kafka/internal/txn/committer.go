// Package txn commits what a member of a group has consumed together with what its handlers have published.
package txn

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka/internal/backoff"
	"github.com/millrace-go/millrace/transport/kafka/internal/conn"
	"github.com/millrace-go/millrace/transport/kafka/internal/ledger"
	"github.com/millrace-go/millrace/transport/kafka/internal/produce"
	"github.com/millrace-go/millrace/transport/kafka/internal/wire"
)

// Committer commits what a member of a group has finished, in one transaction after the other.
type Committer struct {
	producer *producer
	client   sarama.Client
	log      *slog.Logger
	observer *observer
	life     context.Context
	refuse   func(source any) ([]*produce.Output, error)

	wake chan struct{} // for the loop
	done chan struct{} // closed when the loop has ended

	stale   Session // whose generation the group has refused, or nil; the loop's
	refused int32   // that generation

	mu     sync.Mutex
	ledger *ledger.Ledger
	cause  error // why the brokers refused an output
}

// Partition is a partition of the member.
type Partition struct {
	ledger.Partition
	committer *Committer
	session   Session
	marks     int           // that Mark was called for
	lost      chan struct{} // closed when it is another member's
	moved     chan struct{}
}

// Message is a consumed message that is done.
type Message struct {
	Offset  int64
	Note    string            // what the group keeps beside the offset
	Outputs []*produce.Output // what its handler has published
	Source  any               // what Refuse gets
}

// finished is a message in the ledger.
type finished struct {
	ledger.Unit
	Message
}

// ownerOf returns the partition as the committer knows it.
func ownerOf(p *ledger.Partition) *Partition { return p.Owner.(*Partition) }

// finishedOf returns the message as the committer knows it.
func finishedOf(u *ledger.Unit) *finished { return u.Value.(*finished) }

// Session is the member's, as the group knows it now.
type Session interface {
	Context() context.Context
	MemberID() string
	GenerationID() int32
}

// member is who commits, as the group knew him when the batch was taken and all its partitions were his. sarama's session
// goes on to the next generation, which may have given one of them to another member.
type member struct {
	session    context.Context
	id         string
	generation int32
}

func memberOf(s Session) member {
	return member{session: s.Context(), id: s.MemberID(), generation: s.GenerationID()}
}

// Config is how a member commits, as kafka.Transaction describes it.
type Config struct {
	Consumer, Topic, Instance string
	IDPrefix                  string
	MaxRecords, MaxBytes      int
	MaxDelay, Timeout         time.Duration

	Compression    wire.Compression
	Partitioner    produce.Partitioner
	Sticky         bool // what has no key stays with a partition for a while
	MeterProvider  metric.MeterProvider
	TracerProvider trace.TracerProvider
	Log            *slog.Logger

	// Refuse makes a dead letter of a message whose outputs the brokers refuse.
	Refuse func(source any) ([]*produce.Output, error)

	Without Omission // of tests
}

// New gets a producer ID, so that Subscribe tells when that is not allowed. Its connections end with life.
func New(ctx, life context.Context, cluster *conn.Cluster, topics *conn.Topics, c Config) (*Committer, error) {
	client, err := cluster.Client(ctx, life, func(s *sarama.Config) {
		s.Net.ReadTimeout = c.Timeout // later the brokers have aborted the transaction
		s.Net.WriteTimeout = c.Timeout
	})
	if err != nil {
		return nil, fmt.Errorf("connect the transactions of consumer %s to Kafka: %w", c.Consumer, err)
	}
	name := c.Instance
	if name == "" {
		name = fmt.Sprintf("%016x", rand.Uint64()) // nobody else's, as long as this member lives
	}
	id := fmt.Sprintf("%s-%s-%s-%s", c.IDPrefix, c.Consumer, c.Topic, name)
	observer, err := newObserver(c, id)
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	l := ledger.New(ledger.Limits{
		Units: c.MaxRecords,
		Bytes: c.MaxBytes,
		Delay: c.MaxDelay,
		Idle:  c.MaxDelay / idleShare,
	})
	m := &Committer{
		producer: newProducer(life, client, topics, c, id),
		client:   client,
		log:      c.Log.With(slog.String("transactional_id", id)),
		observer: observer,
		life:     life,
		refuse:   c.Refuse,
		wake:     make(chan struct{}, 1),
		done:     make(chan struct{}),
		ledger:   l,
	}
	if err := m.producer.fence(ctx); err != nil {
		m.producer.close()
		return nil, errors.Join(err, client.Close())
	}
	l.Fenced(time.Now(), nil)
	go m.loop()
	return m, nil
}

// idleShare is the share of Transaction.MaxDelay after which a transaction is committed when nothing more comes.
const idleShare = 10

// Assign begins to commit for a partition of the session. moved is told when something was.
func (m *Committer) Assign(session Session, topic string, number int32, moved chan struct{}) *Partition {
	p := &Partition{Partition: ledger.Partition{Place: ledger.Place{Topic: topic, Number: number}}, committer: m, session: session, lost: make(chan struct{}), moved: moved}
	p.Owner = p
	return p
}

// Lost is closed when a transaction has found that the partition is another member's.
func (p *Partition) Lost() <-chan struct{} { return p.lost }

// Add hands over messages that are done, in offset order.
func (p *Partition) Add(messages []Message) {
	units := make([]*ledger.Unit, len(messages))
	together := make([]finished, len(messages))
	for i, m := range messages {
		f := &together[i]
		f.Message = m
		f.Unit = ledger.Unit{Partition: &p.Partition, Offset: m.Offset, Note: m.Note, Bytes: sizeOf(m.Outputs), Value: f}
		units[i] = &f.Unit
	}
	p.committer.update(func(l *ledger.Ledger) bool { return l.Add(time.Now(), units...) })
}

// Mark commits the note at the offset that follows the messages so far, at once. Marked tells when that has happened. The caller guards
// both.
func (p *Partition) Mark(next int64, note string) {
	f := new(finished)
	f.Unit = ledger.Unit{Partition: &p.Partition, Offset: next - 1, Mark: true, Note: note, Value: f}
	p.marks++
	p.committer.update(func(l *ledger.Ledger) bool { return l.Add(time.Now(), &f.Unit) })
}

// Marked tells whether all marks are committed.
func (p *Partition) Marked() bool {
	p.committer.mu.Lock()
	defer p.committer.mu.Unlock()
	return p.Partition.Marked == p.marks
}

func sizeOf(outputs []*produce.Output) (n int) {
	for _, o := range outputs {
		n += o.Size
	}
	return n
}

// Full tells whether no more of the partition should be handled until something was committed.
func (p *Partition) Full() bool {
	p.committer.mu.Lock()
	defer p.committer.mu.Unlock()
	return p.committer.ledger.Full(&p.Partition)
}

// flushLook is how often Flush looks.
const flushLook = 20 * time.Millisecond

// Flush commits what is finished of the partition before it is given up. It tells whether that has happened within the limit.
func (p *Partition) Flush(limit time.Duration) bool {
	p.committer.update(func(*ledger.Ledger) bool {
		p.Partition.Flush = true
		return true
	})
	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	look := time.NewTicker(flushLook)
	defer look.Stop()
	for {
		p.committer.mu.Lock()
		settled := p.committer.ledger.Settled(&p.Partition)
		p.committer.mu.Unlock()
		if settled {
			return true
		}
		select {
		case <-p.moved:
		case <-look.C: // another goroutine may have taken what was told
		case <-p.lost:
			return true
		case <-p.committer.done:
			return true
		case <-timeout.C:
			return false
		}
	}
}

// Revoke forgets what is not committed of the partition.
func (p *Partition) Revoke() {
	p.committer.update(func(l *ledger.Ledger) bool {
		l.Drop(&p.Partition)
		return false
	})
}

// Close commits what is left, and ends whatever is open: what it leaves behind is no transaction that readers wait for.
func (m *Committer) Close() error {
	m.update(func(l *ledger.Ledger) bool {
		l.Close()
		return true
	})
	<-m.done
	m.producer.close()
	return m.client.Close()
}

func (m *Committer) update(f func(*ledger.Ledger) (wake bool)) {
	m.mu.Lock()
	wake := f(m.ledger)
	m.mu.Unlock()
	if wake {
		select {
		case m.wake <- struct{}{}:
		default:
		}
	}
}

// loop does what the ledger says, until that is to stop or the connections end.
func (m *Committer) loop() {
	defer close(m.done)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for m.life.Err() == nil {
		m.mu.Lock()
		step, until := m.ledger.Next(time.Now())
		batch := slices.Clone(m.ledger.Batch()) // the ledger clears its own when a partition is dropped meanwhile
		var by member
		if step == ledger.Commit {
			by = memberOf(ownerOf(batch[0].Partition).session)
		}
		m.mu.Unlock()
		switch step {
		case ledger.Stop:
			return
		case ledger.Wait:
			timer.Stop()
			if !until.IsZero() {
				timer.Reset(time.Until(until))
			}
			select {
			case <-timer.C:
			case <-m.wake:
			case <-m.life.Done():
			}
		case ledger.Fence:
			m.fence()
		case ledger.Resolve:
			m.resolve(batch)
		case ledger.Commit:
			m.commit(batch, by, ownerOf(batch[0].Partition).session)
		case ledger.DeadLetter:
			m.deadLetter(batch[0])
		}
	}
}

// generationPatience is how long a member waits for its next generation before it commits again in the one that the group has
// refused. The next heartbeat tells it of a rebalance.
const generationPatience = 3 * time.Second

// awaitGeneration waits before a transaction that the group has refused is committed again, because a rebalance is on its way: in
// the same generation it would be refused again.
func (m *Committer) awaitGeneration() {
	if m.stale == nil {
		return
	}
	ctx, cancel := context.WithTimeout(m.life, generationPatience)
	defer cancel()
	for waiting := true; waiting; {
		waiting = m.stale.GenerationID() == m.refused && m.stale.Context().Err() == nil && backoff.Sleep(ctx, flushLook)
	}
	m.stale = nil
}

func (m *Committer) fence() {
	before := m.producer.id
	err := m.producer.fence(m.life)
	if id := m.producer.id; id != before {
		m.log.Warn("the end of a transaction hangs, because a partition that it has written to is out of reach: this member goes on under another transactional ID", slog.String("new_transactional_id", id))
		m.observer.id = id
	}
	m.observer.fenced(m.life, err)
	if superseded(err) {
		m.log.Error("another process has this transactional ID, or the brokers have forgotten it", slog.Any("error", err))
	} else if err != nil {
		m.log.Warn("a transaction is not ended yet", slog.Any("error", err))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ledger.Fenced(time.Now(), err)
}

func (m *Committer) commit(batch []*ledger.Unit, by member, session Session) {
	outputs, stuck, err := m.producer.place(batch)
	if len(stuck) > 0 {
		m.withhold(batch, stuck, err)
		return
	}
	ctx, end := m.observer.begin(m.life, batch)
	err = m.producer.run(ctx, batch, outputs, by)
	outcome := outcomeOf(err, by, memberOf(session))
	end(outcome, err)
	if err != nil {
		level := slog.LevelWarn
		if errors.Is(err, sarama.ErrIllegalGeneration) { // a rebalance was on its way
			level = slog.LevelInfo
			m.stale, m.refused = session, by.generation
		}
		m.log.Log(ctx, level, "a transaction failed", slog.Int("messages", len(batch)), slog.Any("error", err))
	}
	m.mu.Lock()
	m.cause = err
	lost := m.ledger.Ended(time.Now(), outcome)
	m.mu.Unlock()
	m.tell(batch, lost)
}

// withhold lets the claims wait whose outputs cannot be sent now.
func (m *Committer) withhold(batch []*ledger.Unit, stuck []*ledger.Partition, cause error) {
	m.mu.Lock()
	m.ledger.Withheld(time.Now(), stuck)
	m.mu.Unlock()
	for _, c := range stuck {
		if c.Failures&(c.Failures-1) == 0 { // the first, the second, the fourth
			m.log.Warn("what a handler has published cannot be sent yet: its partition waits for it", slog.String("partition_of", c.Topic), slog.Int("partition", int(c.Number)), slog.Any("error", cause))
		}
	}
	m.tell(batch, nil)
}

// resolve asks the group what became of the batch.
func (m *Committer) resolve(batch []*ledger.Unit) {
	first := ledger.FirstOffsets(batch)
	committed, err := m.producer.committed(m.life, slices.Collect(maps.Keys(first)))
	verdict := ledger.Unknown
	if err != nil {
		m.log.Warn("it is not known whether a transaction was committed", slog.Any("error", err))
	} else {
		verdict = ledger.VerdictOf(first, m.producer.next(batch), committed)
		m.log.Info("a transaction's outcome is known", slog.String("outcome", verdict.String()))
	}
	m.observer.resolved(m.life, verdict)
	m.mu.Lock()
	lost := m.ledger.Resolved(time.Now(), verdict)
	m.mu.Unlock()
	m.tell(batch, lost)
	if verdict != ledger.Unknown {
		m.awaitGeneration()
	}
}

// deadLetter makes the message whose output the brokers refuse a dead letter.
func (m *Committer) deadLetter(u *ledger.Unit) {
	m.mu.Lock()
	cause := m.cause
	m.mu.Unlock()
	log := m.log.With(slog.String("partition_of", u.Partition.Topic), slog.Int("partition", int(u.Partition.Number)), slog.Int64("offset", u.Offset), slog.Any("cause", cause))
	ok := false
	switch {
	case u.Mark:
		log.Error("the brokers refuse the group's offset: its partition waits for it")
	case u.Dead:
		log.Error("the brokers refuse a dead letter: its partition waits for it")
	case !errors.Is(cause, transport.ErrRejected):
		log.Error("what a handler has published cannot be sent: its partition waits for it")
	default:
		outputs, err := m.refuse(finishedOf(u).Source)
		if ok = err == nil; ok {
			log.Warn("the brokers refuse what a handler has published: its message becomes a dead letter")
			finishedOf(u).Outputs, u.Dead = outputs, true
		} else {
			log.Error("the brokers refuse what a handler has published: its partition waits for it", slog.Any("error", err))
		}
	}
	m.mu.Lock()
	m.ledger.DeadLettered(time.Now(), ok)
	m.mu.Unlock()
	m.tell([]*ledger.Unit{u}, nil)
}

// tell wakes those who wait for the claims of the batch.
func (m *Committer) tell(batch []*ledger.Unit, lost []*ledger.Partition) {
	for _, u := range batch {
		select {
		case ownerOf(u.Partition).moved <- struct{}{}:
		default:
		}
	}
	for _, c := range lost {
		close(ownerOf(c).lost)
	}
}
