package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/transport"
)

// brokerPatience is how long a broker may take to answer one question.
const brokerPatience = 5 * time.Second

// askBroker looks at the broker, at the topics that events wait for, and at what consumers subscribe to.
func (d *doctor) askBroker(ctx context.Context, subscriptions []subscription) {
	connecting, cancel := context.WithTimeout(ctx, brokerPatience)
	defer cancel()
	t, err := d.openBroker(connecting, slog.New(slog.DiscardHandler), brokerPatience)
	if err != nil {
		d.down(err)
		return
	}
	defer func() { _ = t.Close() }() // it has nothing to flush
	if err := t.(transport.Pinger).Ping(connecting); err != nil {
		d.down(err)
		return
	}
	for _, topic := range d.waitingTopics(ctx) {
		subscriptions = append(subscriptions, subscription{topic: topic})
	}
	for _, s := range subscriptions {
		asking, cancel := context.WithTimeout(ctx, brokerPatience)
		abandon := context.AfterFunc(asking, func() { _ = t.Close() }) // ends its connections: some questions heed no context
		i, err := t.(transport.Inspector).Inspect(asking, s.topic, s.consumer)
		late := !abandon()
		cancel()
		switch {
		case err != nil && late:
			d.down(err)
			return
		case err != nil: // it has let us in
			d.find("broker", fmt.Sprintf("topic %s could not be looked at", s.topic), err.Error(), "see that the topic's name is one that "+t.Name()+" takes, and that this account may look it up")
		default:
			d.subscribed(s, i)
		}
	}
}

func (d *doctor) down(err error) {
	d.find("broker", d.brokerName()+" does not answer", err.Error(), "start it, or mend the address and the credentials ("+brokerFlags[d.brokerName()]+"; in a configuration, the section "+d.brokerName()+
		"); until then events wait in the outbox, and none is lost")
}

// subscribed concludes from what the broker tells of a topic, and of a consumer's subscription where one is named.
func (d *doctor) subscribed(s subscription, i transport.Inspection) {
	switch {
	case !i.Topic:
		d.find("broker", fmt.Sprintf("topic %s is missing", s.topic), "it was never made, or was deleted: its events wait in the outbox, or are parked, and its consumers get none",
			"make it, or let relays and consumers make it (pubsub.resources, kafka.topics.missing: create_missing in their configurations)")
	case s.consumer == "":
	case !i.Consumer:
		d.find("broker", fmt.Sprintf("consumer %s has no subscription to topic %s", s.consumer, s.topic), "it never ran, or its subscription or its group's offsets were deleted: it misses, or repeats, what is published meanwhile",
			"start the consumer, or make the subscription, and replay what it has missed")
	default:
		if i.Lag > d.limits.backlog {
			d.find("broker", fmt.Sprintf("consumer %s is %d messages behind on topic %s", s.consumer, i.Lag, s.topic), "it does not run, fails, or is too slow",
				"start it, or give it more processes and partitions; "+d.command("", "dead", "list", "--state", "all", "--consumer", s.consumer))
		}
		if i.Retention > 0 {
			d.checkWindow(i.Retention, fmt.Sprintf("topic %s, consumer %s", s.topic, s.consumer))
		} else if i.Retention < 0 {
			d.find("window", fmt.Sprintf("topic %s keeps messages for ever, and it is remembered for %v what was processed", s.topic, d.limits.retention),
				"a consumer that is set back further than that gets events that become dead letters, because nobody knows whether they were processed", "a retention.ms of the topic that is less than claim.retention of the services' configurations, or --ignore window where nobody sets consumers back")
		}
	}
}

// waitingTopics are those of events that wait in the outbox.
func (d *doctor) waitingTopics(ctx context.Context) (topics []string) {
	if !d.there["outbox"] {
		return nil
	}
	r, err := outbox.Inspect(ctx, d.pool, d.schema)
	if err != nil { // inOutbox has told
		return nil
	}
	for _, t := range r.Topics {
		topics = append(topics, t.Topic)
	}
	return topics
}
