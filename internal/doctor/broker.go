package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace-go/millrace/outbox/outboxadmin"
	"github.com/millrace-go/millrace/transport"
)

// brokerPatience is how long a broker may take to answer one request.
const brokerPatience = 5 * time.Second

// askBroker checks the broker, the topics of waiting events, and the topics that consumers subscribe to.
func (d *doctor) askBroker(ctx context.Context) {
	d.Progress("Checking: broker")
	connecting, cancel := context.WithTimeout(ctx, brokerPatience)
	defer cancel()
	t, err := d.Broker.Open(connecting, brokerPatience)
	if err != nil {
		d.down(err)
		return
	}
	defer func() { _ = t.Close() }() // it has nothing to flush
	if err := t.(transport.Pinger).Ping(connecting); err != nil {
		d.down(err)
		return
	}
	subscriptions := d.Broker.Subscriptions
	topics, relays := d.waitingTopics(ctx)
	for _, topic := range topics {
		subscriptions = append(subscriptions, Subscription{Topic: topic})
	}
	for _, s := range subscriptions {
		asking, cancel := context.WithTimeout(ctx, brokerPatience)
		abandon := context.AfterFunc(asking, func() { _ = t.Close() }) // closes its connections: some requests ignore the context
		i, err := t.(transport.Inspector).Inspect(asking, s.Topic, s.Consumer)
		late := !abandon()
		cancel()
		switch {
		case err != nil && late:
			d.down(err)
			return
		case err != nil: // it accepted the connection
			d.find("broker", fmt.Sprintf("topic %s could not be checked", s.Topic), err.Error(), "check that "+t.Name()+" allows this name for a topic, and that this account may read it")
		default:
			d.subscribed(s, i, relays)
		}
	}
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
