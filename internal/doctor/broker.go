package doctor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace-go/millrace/internal/words"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
	"github.com/millrace-go/millrace/transport"
)

// brokerPatience is how long a broker may take to answer one request.
const brokerPatience = 5 * time.Second

// askBroker checks the broker, the topics of waiting events, and the topics that consumers subscribe to.
func (d *doctor) askBroker(ctx context.Context) {
	d.Progress("Checking: broker")
	subscriptions := d.Broker.Subscriptions
	topics, relays := d.waitingTopics(ctx)
	for _, topic := range topics {
		subscriptions = append(subscriptions, Subscription{Topic: topic})
	}
	a := ask(ctx, d.Broker, subscriptions, true)
	unasked := 0
	for _, t := range a.Topics {
		if errors.Is(t.Err, errNotAsked) {
			unasked++
			continue
		}
		if t.Err != nil { // it accepted the connection
			d.find("broker", fmt.Sprintf("topic %s could not be checked", t.Of.Topic), t.Err.Error(), "check that "+a.Name+" allows this name for a topic, and that this account may read it")
			continue
		}
		d.subscribed(t.Of, t.Found, relays)
		for _, p := range t.problems {
			if p.Remedy == "" {
				d.note("broker", p.Symptom)
			} else {
				d.find("broker", p.Symptom, p.Cause, p.Remedy)
			}
		}
	}
	if unasked > 0 {
		d.find("broker", words.Count(unasked, "other subscription")+" could not be checked", errNotAsked.Error(), "look at the broker's load, and at the network between")
	}
	if a.Err != nil {
		d.down(a.Err)
	}
}

// errNotAsked means that the broker was not asked about a topic.
var errNotAsked = errors.New("the broker answers too slowly to be asked about all")

// BrokerAnswer is what a broker says.
type BrokerAnswer struct {
	Name   string
	Err    error         // why it does not answer
	Topics []TopicAnswer // none if it does not answer
}

// TopicAnswer is what a broker says about a topic, and a consumer's subscription to it.
type TopicAnswer struct {
	Of    Subscription
	Found transport.Inspection
	Err   error // why this topic could not be checked

	problems []transport.Problem
}

// AskBroker asks a broker about subscriptions, and about topics alone where no consumer is named. Each request may take 5 s; after
// one that takes longer it asks no more: the others get an error, or the broker as a whole if it has answered none.
func AskBroker(ctx context.Context, b Broker, subscriptions []Subscription) BrokerAnswer {
	return ask(ctx, b, subscriptions, false)
}

// ask is AskBroker. If examine is set, it also looks for problems, which takes more requests.
func ask(ctx context.Context, b Broker, subscriptions []Subscription, examine bool) (a BrokerAnswer) {
	connecting, cancel := context.WithTimeout(ctx, brokerPatience)
	defer cancel()
	t, err := b.Open(connecting, brokerPatience)
	if err != nil {
		a.Err = err
		return a
	}
	defer func() { _ = t.Close() }() // it has nothing to flush
	a.Name = t.Name()
	if a.Err = t.(transport.Pinger).Ping(connecting); a.Err != nil {
		return a
	}
	answered := false
	for n, s := range subscriptions {
		asking, cancel := context.WithTimeout(ctx, brokerPatience)
		abandon := context.AfterFunc(asking, func() { _ = t.Close() }) // closes its connections: some requests ignore the context
		i, err := t.(transport.Inspector).Inspect(asking, s.Topic, s.Consumer)
		var problems []transport.Problem
		if examiner, ok := t.(transport.Examiner); ok && examine && err == nil {
			problems, err = examiner.Examine(asking, s.Topic, s.Consumer)
		}
		late := !abandon()
		cancel()
		if err != nil && late && !answered {
			a.Err, a.Topics = err, nil
			return a
		}
		answered = answered || !late
		a.Topics = append(a.Topics, TopicAnswer{Of: s, Found: i, Err: err, problems: problems})
		if late { // its connections are closed
			for _, other := range subscriptions[n+1:] {
				a.Topics = append(a.Topics, TopicAnswer{Of: other, Err: errNotAsked})
			}
			return a
		}
	}
	return a
}

func (d *doctor) down(err error) {
	meanwhile := "events wait in the outbox, and none is lost"
	if d.pool == nil {
		meanwhile = "the service handles nothing"
	}
	d.find("broker", d.Broker.Name+" does not answer", err.Error(), "start it, or correct its address and credentials ("+d.Broker.How+"; in a configuration, the section "+d.Broker.Name+
		"); until then "+meanwhile)
}

// subscribed reports on a topic and, if one is named, on a consumer's Subscription.
func (d *doctor) subscribed(s Subscription, i transport.Inspection, relays int) {
	switch {
	case !i.Topic && s.Consumer == "" && relays == 0: // the state before the first start of a service
		d.note("broker", fmt.Sprintf("Topic %s does not exist yet, and no relay runs: the first one that publishes to it creates it, unless its configuration forbids it", s.Topic))
	case !i.Topic:
		d.find("broker", fmt.Sprintf("topic %s is missing", s.Topic), "nothing has created it yet, or it was deleted; events for it wait, or are dead, and its consumers receive none",
			"start a relay or a consumer that may create it (create_missing in pubsub.resources or kafka.topics.missing), or create it yourself")
	case s.Consumer == "":
	case !i.Consumer:
		d.find("broker", fmt.Sprintf("consumer %s has no subscription to topic %s", s.Consumer, s.Topic), "the consumer never ran, or its Subscription or the offsets of its group were deleted; it misses or repeats what is published meanwhile",
			"start the consumer, or create the subscription, and publish again what it missed")
	default:
		if i.Lag > d.Limits.Backlog {
			remedy := "start it, or run more processes with more partitions"
			if d.pool != nil {
				remedy += "; " + d.command("", "dead", "list", "--state", "all")
			}
			d.find("broker", fmt.Sprintf("consumer %s is %d messages behind on topic %s", s.Consumer, i.Lag, s.Topic), "it does not run, fails, or is too slow", remedy)
		}
		if d.pool == nil { // without a database there are no records
			return
		}
		if i.Retention > 0 {
			d.checkWindow(i.Retention, fmt.Sprintf("topic %s, consumer %s", s.Topic, s.Consumer))
		} else if i.Retention < 0 {
			d.find("window", fmt.Sprintf("topic %s keeps messages for ever, but consumers keep records for %s", s.Topic, days(d.Limits.Retention)),
				"if the offsets of a consumer are set back further, old events become dead letters, because nobody knows whether they were processed",
				"set the topic's retention.ms to less than claim.retention in the services' configurations; or use --ignore window if nobody sets offsets back")
		}
	}
}

// waitingTopics returns the topics of events that wait in the outbox, and the number of relays.
func (d *doctor) waitingTopics(ctx context.Context) (topics []string, relays int) {
	if !d.there["outbox"] {
		return nil, 0
	}
	r, err := outboxadmin.Inspect(ctx, d.pool, d.Schema)
	if err != nil { // inOutbox reports the error
		return nil, 0
	}
	for _, t := range r.Topics {
		topics = append(topics, t.Topic)
	}
	return topics, len(r.Relays)
}
