// Package brokers asks brokers what they know, once for all sessions.
package brokers

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/millrace-go/millrace/console/internal/cache"
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
	// brokerTimeout bounds all questions to a broker. A page waits for brokerWait at most, and then shows the answer before.
	brokerTimeout = 20 * time.Second
	brokerWait    = 300 * time.Millisecond
	// maxTopics is about how many topics of an outbox a broker is asked.
	maxTopics = 12
)

// Brokers asks brokers, once for all sessions.
type Brokers struct {
	all    []Broker
	cache  *cache.Cache
	asking sync.WaitGroup
	ctx    context.Context // ends with the console
	end    context.CancelFunc
}

// New returns Brokers that have not been asked.
func New(all []Broker) *Brokers {
	b := &Brokers{all: all, cache: cache.New(max(len(all), 1), brokerTimeout)}
	b.ctx, b.end = context.WithCancel(context.Background())
	return b
}

// Close ends what is being asked, and waits for it.
func (b *Brokers) Close() {
	b.end()
	b.asking.Wait()
}

// Look returns what the brokers say. topics are those of the outbox of the database.
func (b *Brokers) Look(ctx context.Context, db string, topics []figures.Topic) (all []figures.Broker) {
	topics = topics[:min(len(topics), maxTopics)]
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

// Told returns a text that changes with what the brokers said last, but not with the number of unread messages, which never rests.
func (b *Brokers) Told(db string) string {
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
	sum := sha256.Sum256([]byte(strings.Join(said, " ")))
	return hex.EncodeToString(sum[:8])
}

func (of Broker) key(db string) string { return db + " " + of.Name + " " + of.Address }

func (of Broker) ask(ctx context.Context, topics []figures.Topic) figures.Broker {
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
