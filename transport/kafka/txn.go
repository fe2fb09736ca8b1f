package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/IBM/sarama"

	"github.com/millrace-go/millrace/transport"
)

// committer commits what a member of a group has finished, in one transaction after the other.
type committer struct {
	producer *txnProducer
	client   sarama.Client
	log      *slog.Logger
	observer *txnObserver
	life     context.Context
	refuse   func(*entry) ([]*output, error) // makes a dead letter

	wake chan struct{} // for the loop
	done chan struct{} // closed when the loop has ended

	mu     sync.Mutex
	ledger *ledger
	cause  error // why the brokers refused an output
}

// claimed is a partition of a member with a committer.
type claimed struct {
	txnClaim
	committer *committer
	session   sarama.ConsumerGroupSession
	lost      chan struct{} // closed when it is another member's
	moved     chan struct{}
}

// member is who commits, as the group knew him when the batch was taken and all its partitions were his. sarama's session
// goes on to the next generation, which may have given one of them to another member.
type member struct {
	session    context.Context
	id         string
	generation int32
}

func memberOf(s sarama.ConsumerGroupSession) member {
	return member{session: s.Context(), id: s.MemberID(), generation: s.GenerationID()}
}

// newCommitter gets a producer ID, so that Subscribe tells when that is not allowed. Its connections end with life.
func newCommitter(ctx, life context.Context, t *Transport, consumer, topic, instance string, refuse func(*entry) ([]*output, error)) (*committer, error) {
	c := t.config
	s := c.clientConfig(life)
	s.Net.ReadTimeout = c.Transaction.Timeout // later the brokers have aborted the transaction
	s.Net.WriteTimeout = c.Transaction.Timeout
	client, err := sarama.NewClient(c.Brokers, s)
	if err != nil {
		return nil, fmt.Errorf("connect the transactions of consumer %s to Kafka: %w", consumer, err)
	}
	name := instance
	if name == "" {
		name = fmt.Sprintf("%016x", rand.Uint64()) // nobody else's, as long as this member lives
	}
	id := fmt.Sprintf("%s-%s-%s-%s", c.Transaction.IDPrefix, consumer, topic, name)
	observer, err := newTxnObserver(c, topic, consumer, id)
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	l := &ledger{limits: txnLimits{
		units: c.Transaction.MaxRecords,
		bytes: c.Transaction.MaxBytes,
		delay: c.Transaction.MaxDelay,
		idle:  c.Transaction.MaxDelay / idleShare,
	}}
	m := &committer{
		producer: newTxnProducer(client, t.topics, c, id, consumer, topic, instance),
		client:   client,
		log:      t.log.With(slog.String("topic", topic), slog.String("consumer", consumer), slog.String("transactional_id", id)),
		observer: observer,
		life:     life,
		refuse:   refuse,
		wake:     make(chan struct{}, 1),
		done:     make(chan struct{}),
		ledger:   l,
	}
	if err := m.producer.fence(ctx); err != nil {
		m.producer.close()
		return nil, errors.Join(err, client.Close())
	}
	l.fenced(time.Now(), nil)
	go m.loop()
	return m, nil
}

// idleShare is the share of Transaction.MaxDelay after which a transaction is committed when nothing more comes.
const idleShare = 10

// claim begins to commit for a partition of the session. moved is told when something was.
func (m *committer) claim(session sarama.ConsumerGroupSession, number int32, moved chan struct{}) *claimed {
	c := &claimed{
		txnClaim:  txnClaim{number: number},
		committer: m,
		session:   session,
		lost:      make(chan struct{}),
		moved:     moved,
	}
	c.owner = c
	return c
}

// add hands over entries that are done, in offset order.
func (c *claimed) add(entries []*entry) {
	units := make([]*txnUnit, len(entries))
	together := make([]txnUnit, len(entries))
	for i, e := range entries {
		together[i] = txnUnit{claim: &c.txnClaim, offset: e.offset, outputs: e.outputs, bytes: sizeOf(e.outputs), entry: e}
		units[i] = &together[i]
	}
	c.committer.update(func(l *ledger) bool { return l.add(time.Now(), units...) })
}

func sizeOf(outputs []*output) (n int) {
	for _, o := range outputs {
		n += o.size
	}
	return n
}

// full tells whether no more of the partition should be handled until something was committed.
func (c *claimed) full() bool {
	c.committer.mu.Lock()
	defer c.committer.mu.Unlock()
	return c.committer.ledger.full(&c.txnClaim)
}

// flush commits what is finished of the partition before it is given up. It takes no longer than flushTimeout; what is not
// committed by then is delivered again.
func (c *claimed) flush() {
	c.committer.update(func(*ledger) bool {
		c.txnClaim.flush = true
		return true
	})
	timeout := time.NewTimer(flushTimeout)
	defer timeout.Stop()
	for {
		c.committer.mu.Lock()
		settled := c.committer.ledger.settled(&c.txnClaim)
		c.committer.mu.Unlock()
		if settled {
			return
		}
		select {
		case <-c.moved:
		case <-c.lost:
			return
		case <-c.committer.done:
			return
		case <-timeout.C:
			c.committer.log.Warn("a partition is given up before its last messages are committed: they are delivered again", slog.Int("partition", int(c.number)))
			return
		}
	}
}

// end forgets what is not committed of the partition.
func (c *claimed) end() {
	c.committer.update(func(l *ledger) bool {
		l.drop(&c.txnClaim)
		return false
	})
}

// close commits what is left, and ends whatever is open: what it leaves behind is no transaction that readers wait for.
func (m *committer) close() error {
	m.update(func(l *ledger) bool {
		l.closing = true
		return true
	})
	<-m.done
	m.producer.close()
	return m.client.Close()
}

func (m *committer) update(f func(*ledger) (wake bool)) {
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
func (m *committer) loop() {
	defer close(m.done)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for m.life.Err() == nil {
		m.mu.Lock()
		step, until := m.ledger.next(time.Now())
		batch := m.ledger.batch
		var by member
		if step == txnCommit {
			by = memberOf(batch[0].claim.owner.session)
		}
		m.mu.Unlock()
		switch step {
		case txnStop:
			return
		case txnWait:
			timer.Stop()
			if !until.IsZero() {
				timer.Reset(time.Until(until))
			}
			select {
			case <-timer.C:
			case <-m.wake:
			case <-m.life.Done():
			}
		case txnFence:
			m.fence()
		case txnResolve:
			m.resolve(batch)
		case txnCommit:
			m.commit(batch, by)
		case txnBury:
			m.bury(batch[0])
		}
	}
}

func (m *committer) fence() {
	err := m.producer.fence(m.life)
	m.observer.fenced(m.life, err)
	if superseded(err) {
		m.log.Error("another process has this transactional ID, or the brokers have forgotten it", slog.Any("error", err))
	} else if err != nil {
		m.log.Warn("a transaction is not ended yet", slog.Any("error", err))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ledger.fenced(time.Now(), err)
}

func (m *committer) commit(batch []*txnUnit, by member) {
	ctx, end := m.observer.begin(m.life, batch)
	err := m.producer.run(ctx, batch, by)
	outcome := outcomeOf(err, by)
	end(outcome, err)
	if err != nil {
		level := slog.LevelWarn
		if errors.Is(err, sarama.ErrIllegalGeneration) { // a rebalance was on its way
			level = slog.LevelInfo
		}
		m.log.Log(ctx, level, "a transaction failed", slog.Int("messages", len(batch)), slog.Any("error", err))
	}
	m.mu.Lock()
	m.cause = err
	lost := m.ledger.ended(time.Now(), outcome)
	m.mu.Unlock()
	m.tell(batch, lost)
}

// resolve asks the group what became of the batch.
func (m *committer) resolve(batch []*txnUnit) {
	first := map[int32]int64{}
	for _, u := range batch {
		if _, ok := first[u.claim.number]; !ok {
			first[u.claim.number] = u.offset
		}
	}
	partitions := make([]int32, 0, len(first))
	for number := range first {
		partitions = append(partitions, number)
	}
	committed, err := m.producer.committed(m.life, partitions)
	verdict := txnUnknown
	if err != nil {
		m.log.Warn("it is not known whether a transaction was committed", slog.Any("error", err))
	} else {
		verdict = verdictOf(first, nextOffsets(batch), committed)
		m.log.Info("a transaction's outcome is known", slog.String("outcome", verdict.String()))
	}
	m.observer.resolved(m.life, verdict)
	m.mu.Lock()
	lost := m.ledger.resolved(time.Now(), verdict)
	m.mu.Unlock()
	m.tell(batch, lost)
}

// verdictOf tells the outcome of a transaction that wanted to take the group's offsets from first, or from before, to next.
func verdictOf(first, next, committed map[int32]int64) txnVerdict {
	done, replay := 0, 0
	for partition, offset := range committed {
		switch {
		case offset == next[partition]:
			done++
		case offset <= first[partition]:
			replay++
		}
	}
	switch len(next) {
	case done:
		return txnDone
	case replay:
		return txnReplay
	}
	return txnForeign
}

// bury makes the message whose output the brokers refuse a dead letter.
func (m *committer) bury(u *txnUnit) {
	m.mu.Lock()
	cause := m.cause
	m.mu.Unlock()
	log := m.log.With(slog.Int("partition", int(u.claim.number)), slog.Int64("offset", u.offset), slog.Any("cause", cause))
	ok := false
	switch {
	case u.dead:
		log.Error("the brokers refuse a dead letter: its partition waits for it")
	case !errors.Is(cause, transport.ErrRejected):
		log.Error("what a handler has published cannot be sent: its partition waits for it")
	default:
		outputs, err := m.refuse(u.entry)
		if ok = err == nil; ok {
			log.Warn("the brokers refuse what a handler has published: its message becomes a dead letter")
			u.outputs, u.dead = outputs, true
		} else {
			log.Error("the brokers refuse what a handler has published: its partition waits for it", slog.Any("error", err))
		}
	}
	m.mu.Lock()
	m.ledger.buried(time.Now(), ok)
	m.mu.Unlock()
	m.tell([]*txnUnit{u}, nil)
}

// tell wakes those who wait for the claims of the batch.
func (m *committer) tell(batch []*txnUnit, lost []*txnClaim) {
	for _, u := range batch {
		select {
		case u.claim.owner.moved <- struct{}{}:
		default:
		}
	}
	for _, c := range lost {
		close(c.owner.lost)
	}
}
