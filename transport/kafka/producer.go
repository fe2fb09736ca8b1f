package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/IBM/sarama"

	"github.com/millrace-go/millrace/transport"
)

const (
	// maxBatchBytes bounds a batch of several records where the topic would take more.
	maxBatchBytes = 1 << 20
	// maxRequestBytes bounds one produce request, well below the brokers' socket.request.max.bytes of 100 MiB.
	maxRequestBytes = 16 << 20
	// The wait after a failure of a partition: the first, and the longest. It doubles.
	firstRetryWait = 20 * time.Millisecond
	lastRetryWait  = time.Second
)

// producer is an idempotent producer on sarama's brokers. There is one request under way for each broker, with one batch
// for each partition; what comes meanwhile gathers, and goes with the next. So a lone message never waits for others, and
// many share a request.
//
// sarama's own producer was not taken because after a batch has failed for good it goes on with the next of the partition,
// so that a later message of a key overtakes an earlier one.
type producer struct {
	client sarama.Client
	topics *topics
	codec  sarama.CompressionCodec
	log    *slog.Logger
	meters *producerObserver
	life   context.Context

	asking sync.Mutex // for an identity

	mu         sync.Mutex
	closed     bool
	identity   identity // of partitions to come
	partitions map[string]map[int32]*partition
	ready      map[*partition]struct{} // with something to send, and nothing under way
	busy       map[*sarama.Broker]bool
	recovering map[string]bool // topics
	calls      sync.WaitGroup  // Add only under mu while not closed
	running    sync.WaitGroup  // goroutines
}

func newProducer(life context.Context, client sarama.Client, topics *topics, config Config, log *slog.Logger) (*producer, error) {
	meters, err := newProducerObserver(config.MeterProvider)
	if err != nil {
		return nil, err
	}
	return &producer{
		client:     client,
		topics:     topics,
		codec:      config.Producer.Compression.codec(),
		log:        log,
		meters:     meters,
		life:       life,
		identity:   nobody,
		partitions: map[string]map[int32]*partition{},
		ready:      map[*partition]struct{}{},
		busy:       map[*sarama.Broker]bool{},
		recovering: map[string]bool{},
	}, nil
}

// send queues the items of one call and returns when each has a result. What has none when its own context ends, or ctx,
// gets the context's error. It returns an error, and settles nothing, when the producer was stopped.
func (p *producer) send(ctx context.Context, topic string, items []*item) error {
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
	touched := map[*partition]struct{}{}
	for _, item := range items {
		part := p.partition(topic, item.partition)
		part.queue = append(part.queue, item)
		touched[part] = struct{}{}
		if !part.flying {
			p.ready[part] = struct{}{}
		}
	}
	p.dispatch()
	p.mu.Unlock()

	c := items[0].call
	var before <-chan struct{}
	for _, i := range items {
		ended := i.ctx.Done()
		if ended == nil || ended == before {
			continue // most messages of a call have the same
		}
		before = ended
		defer context.AfterFunc(i.ctx, func() {
			p.abandon(touched, i.ctx.Err(), func(other *item) bool { return other.call == c && other.ctx.Done() == ended })
		})()
	}
	all := func(item *item) bool { return item.call == c }
	select {
	case <-c.done:
	case <-ctx.Done():
		p.abandon(touched, reason(ctx), all)
	case <-p.life.Done():
		p.abandon(touched, transport.ErrClosed, all)
	}
	return nil
}

// reason is the context's error, or the publisher's own: that its time is over.
func reason(ctx context.Context) error {
	if cause := context.Cause(ctx); errors.Is(cause, transport.ErrUnavailable) {
		return cause
	}
	return ctx.Err()
}

// abandon gives up messages of the partitions. Those under way may still arrive.
func (p *producer) abandon(parts map[*partition]struct{}, err error, which func(*item) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for part := range parts {
		var items []*item
		for _, item := range part.unsettled() {
			if which(item) {
				items = append(items, item)
			}
		}
		if part.last != nil {
			part.fail(items, fmt.Errorf("%w; the latest attempt: %w", err, part.last))
		} else {
			part.fail(items, err)
		}
	}
}

func (p *producer) partition(topic string, number int32) *partition {
	of := p.partitions[topic]
	if of == nil {
		of = map[int32]*partition{}
		p.partitions[topic] = of
	}
	part := of[number]
	if part == nil {
		part = &partition{topic: topic, number: number, producer: nobody}
		of[number] = part
	}
	return part
}

// dispatch sends what can be sent.
func (p *producer) dispatch() {
	requests := map[*sarama.Broker][]*partition{}
	sizes := map[*sarama.Broker]int{}
	for part := range p.ready {
		if p.busy[part.leader] || sizes[part.leader] >= maxRequestBytes {
			continue
		}
		if !part.wants() {
			delete(p.ready, part)
			continue
		}
		if part.lacks() {
			p.recover(part.topic)
			continue
		}
		b := part.take(min(p.topics.limit(part.topic), maxBatchBytes), p.build)
		for _, item := range b.items {
			sizes[part.leader] += item.size
		}
		requests[part.leader] = append(requests[part.leader], part)
		delete(p.ready, part)
	}
	for leader, parts := range requests {
		p.busy[leader] = true
		request := newProduceRequest(nil)
		for _, part := range parts {
			request.AddBatch(part.topic, part.number, part.batch.wire)
		}
		p.running.Go(func() { p.request(leader, request, parts) })
	}
}

func (p *producer) build(records []*sarama.Record) *sarama.RecordBatch {
	return newBatch(records, p.codec, time.Now())
}

// request sends one request and applies its answer.
func (p *producer) request(leader *sarama.Broker, request *sarama.ProduceRequest, parts []*partition) {
	response, err := produce(leader, p.client.Config(), request)
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.busy, leader)
	for _, part := range parts {
		a := answerTo(response, err, part.topic, part.number)
		if a.kind != appended {
			p.meters.failed(p.life, part.topic)
		}
		switch a.kind {
		case appended:
			p.meters.acknowledged(p.life, part.topic, len(part.batch.items))
		case fenced:
			if part.producer.id == p.identity.id {
				p.identity = nobody
			}
			fallthrough
		case retriable, unknown, unsequenced:
			part.leader = nil
			p.log.Debug("a batch will be sent again", slog.String("topic", part.topic), slog.Int("partition", int(part.number)), slog.Any("error", a.err))
		case refused, unavailable:
		}
		part.landed(a)
		p.ready[part] = struct{}{}
	}
	p.dispatch()
}

// recover looks up, in the background, what partitions of the topic lack: a leader, an identity.
func (p *producer) recover(topic string) {
	if p.recovering[topic] || p.life.Err() != nil {
		return
	}
	p.recovering[topic] = true
	var lacking []*partition
	retries := 0
	for part := range p.ready {
		if part.topic == topic && part.lacks() {
			lacking = append(lacking, part)
			retries = max(retries, part.retries)
		}
	}
	p.running.Go(func() {
		leaders := make([]*sarama.Broker, len(lacking))
		failures := make([]error, len(lacking))
		id, err := p.ask(topic, retries)
		for i, part := range lacking {
			if failures[i] = err; err == nil {
				leaders[i], failures[i] = p.client.Leader(topic, part.number)
			}
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.recovering, topic)
		for i, part := range lacking {
			part.found(leaders[i], id, failures[i])
		}
		p.dispatch()
	})
}

// ask returns an identity, and sees to it that the client knows the topic's leaders, after waiting as so many failures in a
// row demand.
func (p *producer) ask(topic string, retries int) (identity, error) {
	if !p.wait(retries) {
		return nobody, transport.ErrClosed
	}
	var err error
	if retries > 0 { // before all else: only this makes sarama look again for brokers that it could not reach
		err = p.client.RefreshMetadata(topic)
	}
	if errors.Is(err, sarama.ErrUnknownTopicOrPartition) {
		p.topics.forget(topic) // deleted meanwhile: it is created again, or known to be missing
		err = p.topics.ensure(p.life, topic)
	}
	if err != nil {
		return nobody, err
	}
	return p.identify()
}

// wait waits before an attempt that follows so many failures. It returns false when the transport ends.
func (p *producer) wait(retries int) bool {
	if retries == 0 {
		return p.life.Err() == nil
	}
	wait := firstRetryWait
	for i := 1; i < retries && wait < lastRetryWait; i++ {
		wait *= 2
	}
	timer := time.NewTimer(min(wait, lastRetryWait))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-p.life.Done():
		return false
	}
}

// identify returns the identity for partitions to come, which it asks a broker for when there is none.
func (p *producer) identify() (identity, error) {
	p.asking.Lock()
	defer p.asking.Unlock()
	p.mu.Lock()
	id := p.identity
	p.mu.Unlock()
	if id != nobody {
		return id, nil
	}
	response, err := p.client.InitProducerID()
	if err == nil && response.Err != sarama.ErrNoError {
		err = response.Err
	}
	if err != nil {
		return nobody, fmt.Errorf("get a producer ID: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.identity = identity{response.ProducerID, response.ProducerEpoch}
	return p.identity, nil
}

// stop refuses new calls and returns after the last one and the last goroutine.
func (p *producer) stop() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.calls.Wait()
	p.running.Wait()
}
