package console

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/millrace-go/millrace/console/internal/cache"
	"github.com/millrace-go/millrace/console/internal/figures"
	"github.com/millrace-go/millrace/internal/doctor"
	"github.com/millrace-go/millrace/transport"
)

// Broker is a broker that the first page shows between relays and consumers, with its topics.
type Broker struct {
	// Name is the kind of the broker, such as "kafka". Required.
	Name string
	// Address is where it is, without credentials. Default: "", not shown.
	Address string
	// Open connects to it; the transport must implement transport.Pinger and transport.Inspector. The console asks for a connection at most
	// every 15 s, while somebody looks, and closes it. patience is how long Close may take. Required.
	Open func(ctx context.Context, patience time.Duration) (transport.Transport, error)
	// Subscriptions returns the consumers and topics to ask about; the first 50 are asked about. Called concurrently. Default: none, so that
	// only the topics of the outbox are shown, without what consumers have not read.
	Subscriptions func() []Subscription
}

// Subscription is a consumer's subscription to a topic, by the names that the broker knows.
type Subscription struct{ Consumer, Topic string }

const (
	// freshBroker is how long the answer of a broker is shown, and maxAsked about how many topics it is asked.
	freshBroker = 15 * time.Second
	maxAsked    = 50
	// brokerTimeout bounds all questions to a broker. A page waits for brokerWait at most, and then shows the answer before.
	brokerTimeout = 20 * time.Second
	brokerWait    = 300 * time.Millisecond
)

// brokers asks brokers, once for all sessions.
type brokers struct {
	all    []Broker
	cache  *cache.Cache
	asking sync.WaitGroup
	ctx    context.Context // ends with the console
	end    context.CancelFunc
}

func newBrokers(all []Broker) *brokers {
	b := &brokers{all: all, cache: cache.New(max(len(all), 1), brokerTimeout)}
	b.ctx, b.end = context.WithCancel(context.Background())
	return b
}

func (b *brokers) close() {
	b.end()
	b.asking.Wait()
}

// look returns what the brokers say. topics are those of the outbox of the database.
func (b *brokers) look(ctx context.Context, db string, topics []figures.Topic) (all []figures.Broker) {
	topics = topics[:min(len(topics), 2*maxNodes)]
	waiting, cancel := context.WithTimeout(ctx, brokerWait)
	defer cancel()
	for _, of := range b.all {
		key := of.key(db)
		ready := make(chan struct{})
		b.asking.Go(func() {
			defer close(ready)
			_, _, _ = cache.Get(b.ctx, b.cache, key, freshBroker, func(ctx context.Context) (figures.Broker, error) {
				ctx, cancel := context.WithCancel(ctx)
				defer cancel()
				defer context.AfterFunc(b.ctx, cancel)()
				return of.ask(ctx, topics), nil
			})
		})
		select {
		case <-ready:
		case <-waiting.Done():
		}
		seen, at := cache.Last[figures.Broker](b.cache, key)
		seen.Name, seen.Address, seen.At = of.Name, of.Address, at
		all = append(all, seen)
	}
	return all
}

// told returns a text that changes with what the brokers said last, but not with the number of unread messages, which never rests.
func (b *brokers) told(db string) string {
	if len(b.all) == 0 {
		return ""
	}
	var said []string
	for _, of := range b.all {
		seen, _ := cache.Last[figures.Broker](b.cache, of.key(db))
		said = append(said, strconv.FormatBool(seen.Error != ""))
		for _, t := range seen.Topics {
			said = append(said, t.Topic, strconv.FormatBool(t.Wrong()))
		}
	}
	return versionOf(said)
}

func (of Broker) key(db string) string { return db + " " + of.Name + " " + of.Address }

func (of Broker) ask(ctx context.Context, topics []figures.Topic) figures.Broker {
	var about []doctor.Subscription
	if of.Subscriptions != nil {
		for _, s := range of.Subscriptions() {
			about = append(about, doctor.Subscription(s))
		}
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
