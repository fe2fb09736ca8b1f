// Package produce publishes: with an idempotent producer, or, for handlers, in transactions.
package produce

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/IBM/sarama"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka/internal/backoff"
	"github.com/millrace-go/millrace/transport/kafka/internal/conn"
	"github.com/millrace-go/millrace/transport/kafka/internal/sequence"
	"github.com/millrace-go/millrace/transport/kafka/internal/wire"
)

const (
	// MaxBatchBytes bounds a batch of several records if the topic allows more.
	MaxBatchBytes = 1 << 20
	// MaxRequestBytes bounds one produce request, well below the brokers' socket.request.max.bytes of 100 MiB.
	MaxRequestBytes = 16 << 20
)

// retry is the wait after failures of a partition.
var retry = backoff.Doubling{Min: 20 * time.Millisecond, Max: time.Second}

// producer is an idempotent producer on sarama's brokers. Each broker has one request in flight, with one batch for each partition.
// Messages that arrive meanwhile are collected for the next request. So a single message never waits for others, and many messages share
// a request.
//
// sarama's own producer is not used, because after a batch has failed for good it continues with the partition's next batch, so that a
// later message of a key overtakes an earlier one.
type producer struct {
	client      sarama.Client
	topics      *conn.Topics
	compression wire.Compression
	log         *slog.Logger
	meters      *observer
	life        context.Context
	place       func(topic string, record *sarama.Record, now layout) (int32, error)

	asking sync.Mutex // held while an identity is requested

	mu         sync.Mutex
	closed     bool
	identity   sequence.Identity // for new partitions
	partitions map[string]map[int32]*sequence.Partition
	ready      map[*sequence.Partition]struct{} // have something to send, and nothing in flight
	busy       map[*sarama.Broker]bool
	recovering map[string]bool // topics
	calls      sync.WaitGroup  // Add only under mu while not closed
	running    sync.WaitGroup  // goroutines
}

func newProducer(life context.Context, client sarama.Client, topics *conn.Topics, config Config, place func(string, *sarama.Record, layout) (int32, error)) (*producer, error) {
	meters, err := newObserver(config.MeterProvider)
	if err != nil {
		return nil, err
	}
	return &producer{
		client:      client,
		topics:      topics,
		compression: config.Compression,
		log:         config.Log,
		meters:      meters,
		life:        life,
		place:       place,
		identity:    sequence.Nobody,
		partitions:  map[string]map[int32]*sequence.Partition{},
		ready:       map[*sequence.Partition]struct{}{},
		busy:        map[*sarama.Broker]bool{},
		recovering:  map[string]bool{},
	}, nil
}

// send queues the items of one call and returns when each has a result. An item without a result when its own context or ctx ends gets
// the context's error. If the producer was stopped, send returns an error and settles nothing.
func (p *producer) send(ctx context.Context, topic string, items []*sequence.Item) error {
	if len(items) == 0 {
		return nil
	}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return transport.ErrClosed
	}
	p.calls.Add(1)
	defer p.calls.Done()
	for _, item := range items {
		part := p.partition(topic, item.Partition)
		part.Add(item)
		if !part.InFlight {
			p.ready[part] = struct{}{}
		}
	}
	p.dispatch()
	p.mu.Unlock()

	c := items[0].Call
	var before <-chan struct{}
	for _, i := range items {
		ended := i.Ctx.Done()
		if ended == nil || ended == before {
			continue // most messages of a call share a context
		}
		before = ended
		defer context.AfterFunc(i.Ctx, func() {
			p.abandon(topic, i.Ctx.Err(), func(other *sequence.Item) bool { return other.Call == c && other.Ctx.Done() == ended })
		})()
	}
	all := func(item *sequence.Item) bool { return item.Call == c }
	select {
	case <-c.Done:
	case <-ctx.Done():
		p.abandon(topic, reason(ctx), all)
	case <-p.life.Done():
		p.abandon(topic, transport.ErrClosed, all)
	}
	return nil
}

// reason returns the context's error, or its cause if the publisher's own timeout has expired.
func reason(ctx context.Context) error {
	if cause := context.Cause(ctx); errors.Is(cause, transport.ErrUnavailable) {
		return cause
	}
	return ctx.Err()
}

// abandon gives up messages of the topic. Those in flight may still arrive.
func (p *producer) abandon(topic string, err error, which func(*sequence.Item) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, part := range p.partitions[topic] {
		var items []*sequence.Item
		for _, item := range part.Unsettled() {
			if which(item) {
				items = append(items, item)
			}
		}
		if part.Last != nil {
			part.Fail(items, fmt.Errorf("%w; the latest attempt: %w", err, part.Last))
		} else {
			part.Fail(items, err)
		}
	}
}

func (p *producer) partition(topic string, number int32) *sequence.Partition {
	of := p.partitions[topic]
	if of == nil {
		of = map[int32]*sequence.Partition{}
		p.partitions[topic] = of
	}
	part := of[number]
	if part == nil {
		part = sequence.New(topic, number)
		of[number] = part
	}
	return part
}

// dispatch sends what can be sent.
func (p *producer) dispatch() {
	requests := map[*sarama.Broker][]*sequence.Partition{}
	sizes := map[*sarama.Broker]int{}
	for part := range p.ready {
		if p.busy[part.Leader] || sizes[part.Leader] >= MaxRequestBytes {
			continue
		}
		if !part.Wants() {
			delete(p.ready, part)
			continue
		}
		if part.Lacks() {
			p.recover(part.Topic)
			continue
		}
		b := part.Take(min(p.topics.Limit(part.Topic), MaxBatchBytes), p.build)
		for _, item := range b.Items {
			sizes[part.Leader] += item.Size
		}
		requests[part.Leader] = append(requests[part.Leader], part)
		delete(p.ready, part)
	}
	for leader, parts := range requests {
		p.busy[leader] = true
		request := conn.NewProduceRequest(nil)
		for _, part := range parts {
			request.AddBatch(part.Topic, part.Number, part.Batch.Wire)
		}
		p.running.Go(func() { p.request(leader, request, parts) })
	}
}

func (p *producer) build(records []*sarama.Record) *sarama.RecordBatch {
	return wire.NewBatch(records, p.compression, time.Now())
}

// request sends one request and applies its answer.
func (p *producer) request(leader *sarama.Broker, request *sarama.ProduceRequest, parts []*sequence.Partition) {
	response, err := conn.Produce(leader, p.client.Config(), request)
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.busy, leader)
	for _, part := range parts {
		a := sequence.AnswerTo(response, err, part.Topic, part.Number)
		if a.Kind != sequence.Appended {
			p.meters.failed(p.life, part.Topic)
		}
		switch a.Kind {
		case sequence.Appended:
			p.meters.acknowledged(p.life, part.Topic, len(part.Batch.Items))
		case sequence.Fenced:
			if part.Identity.ID == p.identity.ID {
				p.identity = sequence.Nobody
			}
			fallthrough
		case sequence.Retriable, sequence.Unknown, sequence.Unsequenced:
			part.Leader = nil
			p.log.Debug("a batch will be sent again", slog.String("topic", part.Topic), slog.Int("partition", int(part.Number)), slog.Any("error", a.Err))
		case sequence.Refused, sequence.Unavailable:
		}
		part.Landed(a)
		p.ready[part] = struct{}{}
	}
	p.dispatch()
}

// identify returns the identity for new partitions. If there is none, it asks a broker.
func (p *producer) identify() (sequence.Identity, error) {
	p.asking.Lock()
	defer p.asking.Unlock()
	p.mu.Lock()
	id := p.identity
	p.mu.Unlock()
	if id != sequence.Nobody {
		return id, nil
	}
	response, err := p.client.InitProducerID()
	if err == nil && response.Err != sarama.ErrNoError {
		err = response.Err
	}
	if err != nil {
		return sequence.Nobody, fmt.Errorf("get a producer ID: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.identity = sequence.Identity{ID: response.ProducerID, Epoch: response.ProducerEpoch}
	return p.identity, nil
}

// stop refuses new calls and returns after the last call and the last goroutine.
func (p *producer) stop() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.calls.Wait()
	p.running.Wait()
}
