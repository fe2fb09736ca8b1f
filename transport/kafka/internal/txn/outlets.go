package txn

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/IBM/sarama"

	"github.com/millrace-go/millrace/transport/kafka/internal/conn"
	"github.com/millrace-go/millrace/transport/kafka/internal/produce"
)

// outlets knows the partitions of the topics that a member's outputs go to. It looks at a topic in the background, so that one
// whose partitions have no leader delays no output of another. It belongs to one goroutine, but for what mu guards.
type outlets struct {
	life        context.Context
	client      sarama.Client
	topics      *conn.Topics
	partitioner produce.Partitioner
	spread      *produce.Spread
	stale       map[string]bool // topics that are to be looked at before the next transaction
	short       map[string]shortage
	opening     map[int32]chan error // connections to brokers that have not answered in time

	mu      sync.Mutex
	known   map[string]outlet
	looking map[string]bool
	running sync.WaitGroup
}

// outlet is a topic, as it was found.
type outlet struct {
	at            time.Time
	all, writable []int32
	err           error
}

func newOutlets(life context.Context, client sarama.Client, topics *conn.Topics, partitioner produce.Partitioner, spread *produce.Spread) *outlets {
	return &outlets{life: life, client: client, topics: topics, partitioner: partitioner, spread: spread, stale: map[string]bool{}, short: map[string]shortage{}, opening: map[int32]chan error{}, known: map[string]outlet{}, looking: map[string]bool{}}
}

func (o *outlets) close() { o.running.Wait() }

// renew looks at the topics of which a request has failed.
func (o *outlets) renew() {
	for topic := range o.stale {
		o.look(topic)
	}
	clear(o.stale)
}

// look asks for the partitions of the topic, which it creates when it is missing.
func (o *outlets) look(topic string) (found outlet) {
	found.err = o.client.RefreshMetadata(topic)
	if errors.Is(found.err, sarama.ErrUnknownTopicOrPartition) {
		if found.err = o.topics.EnsureAgain(o.life, topic); found.err == nil {
			found.err = o.client.RefreshMetadata(topic)
		}
	}
	if found.err == nil || errors.Is(found.err, sarama.ErrLeaderNotAvailable) {
		if found.all, found.err = o.client.Partitions(topic); found.err == nil {
			found.writable, found.err = o.client.WritablePartitions(topic)
		}
	}
	found.at = time.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.known[topic] = found
	return found
}

// lookLater is look in the background.
func (o *outlets) lookLater(topic string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.looking[topic] {
		return
	}
	o.looking[topic] = true
	o.running.Go(func() {
		o.look(topic)
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.looking, topic)
	})
}

// of is the topic as it was found lately.
func (o *outlets) of(topic string) outlet {
	o.mu.Lock()
	found, ok := o.known[topic]
	o.mu.Unlock()
	if !ok {
		return o.look(topic)
	}
	age := conn.MetadataInterval
	if found.err != nil || len(found.writable) < len(found.all) {
		age = conn.RetryWait
	}
	if time.Since(found.at) >= age {
		o.lookLater(topic)
	}
	return found
}

// placing chooses partitions for one transaction. It asks for each partition once whether it can be reached.
type placing struct {
	*outlets
	reached map[topicPartition]error
}

// place chooses the partition of an output, as its topic is now: one that was made anew may have fewer.
func (p placing) place(o *produce.Output) (at topicPartition, err error) {
	found := p.of(o.Topic)
	if found.err != nil {
		return at, fmt.Errorf("look up topic %s: %w", o.Topic, found.err)
	}
	if o.Record.Key != nil {
		number, err := p.partitioner(o.Topic, o.Record.Key, int32(len(found.all)))
		if err != nil {
			return at, err
		}
		at = topicPartition{o.Topic, number}
		return at, p.reach(at, found)
	}
	n := len(found.writable)
	if n == 0 {
		return at, sarama.ErrLeaderNotAvailable
	}
	first := p.spread.Of(n, o.Size)
	for i := range n {
		at = topicPartition{o.Topic, found.writable[(first+i)%n]}
		if err = p.reach(at, found); err == nil {
			break
		}
	}
	return at, err
}

// reach returns an error when no output can be sent to the partition now. A transaction must not begin there: it could not
// end before the partition takes writes.
func (p placing) reach(at topicPartition, found outlet) error {
	err, ok := p.reached[at]
	if ok {
		return err
	}
	if !slices.Contains(found.writable, at.partition) {
		err = sarama.ErrLeaderNotAvailable
	} else if err = p.lacks(at); err == nil {
		var leader *sarama.Broker
		if leader, err = p.client.Leader(at.topic, at.partition); err == nil {
			err = p.open(leader)
		}
	}
	if err != nil {
		err = fmt.Errorf("reach %s, partition %d: %w", at.topic, at.partition, err)
		p.lookLater(at.topic)
	}
	p.reached[at] = err
	return err
}

// openPatience is how long a transaction waits for a broker's connection, if the broker answered the last time.
const openPatience = time.Second

// errSilent is of a broker whose connection is not open yet.
var errSilent = fmt.Errorf("the broker does not answer yet: %w", sarama.ErrNotConnected)

// open waits until the client's connection to the broker is open. For a broker that has not answered lately it does not wait: otherwise
// each output for that broker would delay the transactions of others by a timeout.
func (o *outlets) open(broker *sarama.Broker) (err error) {
	answer, silent := o.opening[broker.ID()]
	if answer == nil {
		answer = make(chan error, 1)
		o.running.Go(func() { answer <- conn.Open(broker) })
	}
	patience := openPatience
	if silent {
		patience = 0
	}
	select {
	case err = <-answer:
		answer = nil
	case <-time.After(patience):
		err = errSilent
	}
	if err == nil {
		delete(o.opening, broker.ID())
	} else {
		o.opening[broker.ID()] = answer
	}
	return err
}
