// Package brokers asks brokers what they know, once for all sessions.
package brokers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/millrace-go/millrace/console/internal/figures"
	"github.com/millrace-go/millrace/internal/doctor"
	"github.com/millrace-go/millrace/transport"
)

// Broker is a broker to ask.
type Broker struct {
	Name, Address string
	Open          func(ctx context.Context, patience time.Duration) (transport.Transport, error)
	Subscriptions func() []doctor.Subscription // nil: none
}

const (
	// freshBroker is how long the answer of a broker is shown, and maxAsked about how many topics it is asked.
	freshBroker = 15 * time.Second
	maxAsked    = 50
	// oldBroker is the maximum age of the answers that Lately returns.
	oldBroker = time.Minute
	// brokerTimeout bounds all questions to a broker. A page waits for brokerWait at most, and then shows the previous answer.
	brokerTimeout = 20 * time.Second
	brokerWait    = 300 * time.Millisecond
	// maxTopics is about how many topics of an outbox a broker is asked.
	maxTopics = 12
)

// Brokers asks brokers, once for all sessions. It is safe for concurrent use.
type Brokers struct {
	all []Broker
	ctx context.Context // ends with the console
	end context.CancelFunc

	mu      sync.Mutex
	answers map[question]figures.Broker // the last ones
	asking  map[question]chan struct{}  // closed when the answer is there
	closed  bool
	work    sync.WaitGroup
}

// question is one to a broker, for a database.
type question struct {
	broker int
	db     string
}

// New returns Brokers that have not been asked.
func New(all []Broker) *Brokers {
	b := &Brokers{all: all, answers: map[question]figures.Broker{}, asking: map[question]chan struct{}{}}
	b.ctx, b.end = context.WithCancel(context.Background())
	return b
}

// Close ends what is being asked, and waits for it. After that nothing is asked.
func (b *Brokers) Close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.end()
	b.work.Wait()
}

// Look returns what the brokers say. topics are those of the outbox of the database.
func (b *Brokers) Look(ctx context.Context, db string, topics []figures.Topic) (all []figures.Broker) {
	waiting, cancel := context.WithTimeout(ctx, brokerWait)
	defer cancel()
	var ready []<-chan struct{}
	for i := range b.all {
		ready = append(ready, b.ask(question{i, db}, topics[:min(len(topics), maxTopics)]))
	}
	for _, answered := range ready {
		select {
		case <-answered:
		case <-waiting.Done():
		}
	}
	return b.said(db)
}

// Lately returns the brokers' answers of the last minute, and asks nothing.
func (b *Brokers) Lately(db string) []figures.Broker {
	return slices.DeleteFunc(b.said(db), func(of figures.Broker) bool { return time.Since(of.At) > oldBroker })
}

// Fingerprint returns a text that changes with each answer of the brokers.
func (b *Brokers) Fingerprint(db string) string {
	var said []string
	for _, of := range b.said(db) {
		said = append(said, strconv.FormatInt(of.At.UnixNano(), 10))
	}
	return strings.Join(said, " ")
}

// said returns the last answers.
func (b *Brokers) said(db string) (all []figures.Broker) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, of := range b.all {
		seen := b.answers[question{i, db}]
		seen.Name, seen.Address = of.Name, of.Address
		all = append(all, seen)
	}
	return all
}

// ask asks a broker in a goroutine, unless its answer is fresh or it is being asked. The channel is closed when the answer is there.
func (b *Brokers) ask(q question, topics []figures.Topic) <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if ready := b.asking[q]; ready != nil {
		return ready
	}
	ready := make(chan struct{})
	if b.closed || time.Since(b.answers[q].At) < freshBroker {
		close(ready)
		return ready
	}
	b.asking[q] = ready
	b.work.Go(func() {
		ctx, cancel := context.WithTimeout(b.ctx, brokerTimeout)
		defer cancel()
		answer := b.all[q.broker].ask(ctx, topics)
		b.mu.Lock()
		defer b.mu.Unlock()
		answer.At = time.Now()
		b.answers[q] = answer
		delete(b.asking, q)
		close(ready)
	})
	return ready
}

// ask returns the broker's answer. A panic of its functions is the answer, too.
func (of Broker) ask(ctx context.Context, topics []figures.Topic) (answer figures.Broker) {
	defer func() {
		if bug := recover(); bug != nil {
			answer = figures.Broker{Error: fmt.Sprintf("asking it panicked: %v", bug)}
		}
	}()
	var about []doctor.Subscription
	if of.Subscriptions != nil {
		about = of.Subscriptions()
	}
	for _, t := range topics {
		if !slices.ContainsFunc(about, func(s doctor.Subscription) bool { return s.Topic == t.Topic }) {
			about = append(about, doctor.Subscription{Topic: t.Topic})
		}
	}
	return figures.Answered(doctor.AskBroker(ctx, doctor.Broker{Name: of.Name, Open: of.open}, about[:min(len(about), maxAsked)]))
}

// open refuses a transport that cannot be asked.
func (of Broker) open(ctx context.Context, patience time.Duration) (transport.Transport, error) {
	t, err := of.Open(ctx, patience)
	if err != nil {
		return nil, err
	}
	_, pings := t.(transport.Pinger)
	if _, inspects := t.(transport.Inspector); !pings || !inspects {
		return nil, errors.Join(errors.New("this transport cannot be asked"), t.Close())
	}
	return t, nil
}
