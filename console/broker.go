package console

import (
	"context"
	"time"

	"github.com/millrace-go/millrace/console/internal/brokers"
	"github.com/millrace-go/millrace/internal/doctor"
	"github.com/millrace-go/millrace/transport"
)

// Broker is a broker that the first page shows between relays and consumers, with its topics.
type Broker struct {
	// Name is the kind of the broker, such as "kafka". Required.
	Name string
	// Address is where it is, without credentials. Default: "", not shown.
	Address string
	// Open connects to it; the transport must implement transport.Pinger and transport.Inspector. While a page is
	// open, the console calls it at most every 15 s, and closes the transport after each use. patience is how long Close may take. Required.
	Open func(ctx context.Context, patience time.Duration) (transport.Transport, error)
	// Subscriptions returns the consumers and topics to ask about; the first 50 are asked about. Called concurrently. They are shown
	// with each database, so everybody who may look at one database sees them all. Default: none, so that only the topics of the outbox are
	// shown, without what consumers have not read.
	Subscriptions func() []Subscription
}

// Subscription is a consumer's subscription to a topic, by the names that the broker knows.
type Subscription struct{ Consumer, Topic string }

// askedOf returns the brokers as their room knows them.
func askedOf(all []Broker) *brokers.Brokers {
	var asked []brokers.Broker
	for _, b := range all {
		subscriptions := func() (of []doctor.Subscription) {
			if b.Subscriptions != nil {
				for _, s := range b.Subscriptions() {
					of = append(of, doctor.Subscription(s))
				}
			}
			return of
		}
		asked = append(asked, brokers.Broker{Name: b.Name, Address: b.Address, Open: b.Open, Subscriptions: subscriptions})
	}
	return brokers.New(asked)
}
