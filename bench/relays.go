package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/outbox"
)

// relayConns is the size of a relay's pool, pgx's default on a small machine.
const relayConns = 4

// startRelays runs relays, each with a pool of its own as if in a process of its own, until stop is called.
func startRelays(ctx context.Context, dsn, schema string, to message.Publisher, n int, options ...func(*outbox.RelayConfig)) (stop func() error, err error) {
	return startRelaysOn(ctx, relayConns, dsn, schema, to, n, options...)
}

// startRelaysOn is startRelays with pools of that many connections.
func startRelaysOn(ctx context.Context, conns int32, dsn, schema string, to message.Publisher, n int, options ...func(*outbox.RelayConfig)) (stop func() error, err error) {
	config := outbox.RelayConfig{Schema: schema, BatchSize: batchSize}
	for _, option := range options {
		option(&config)
	}
	ctx, cancel := context.WithCancel(ctx)
	var (
		running sync.WaitGroup
		mu      sync.Mutex
		errs    []error
		closers []func()
	)
	stop = func() error {
		cancel()
		running.Wait()
		for _, done := range closers {
			done()
		}
		return errors.Join(errs...)
	}
	for range n {
		pool, err := openPool(ctx, dsn, conns, 0)
		if err != nil {
			return nil, errors.Join(err, stop())
		}
		closers = append(closers, pool.Close)
		relay, err := outbox.NewRelay(pool, to, config)
		if err != nil {
			return nil, errors.Join(err, stop())
		}
		running.Go(func() {
			if err := relay.Run(ctx); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, fmt.Errorf("relay: %w", err))
			}
		})
	}
	return stop, nil
}

// settleRelays returns once events on every shard have reached the sink: then each shard has a relay.
func settleRelays(ctx context.Context, p withOutbox, to *counter) error {
	const probes = 256 // keys, for 16 shards
	before := to.count()
	for n, e := range newBacklog(probes) {
		e.key = "probe-" + strconv.Itoa(n)
		if err := p.commit(ctx, n, e); err != nil {
			return err
		}
	}
	deadline := time.Now().Add(recordTimeout)
	for to.count() < before+probes || ctx.Err() != nil {
		if time.Now().After(deadline) || ctx.Err() != nil {
			return errors.Join(errors.New("relays do not take the first events"), ctx.Err())
		}
		time.Sleep(time.Millisecond)
	}
	for { // what is published is deleted a little later
		c, err := committed(ctx, p.pool, p, p.orders.schema)
		if err != nil || c.events == 0 {
			return err
		}
		time.Sleep(time.Millisecond)
	}
}

// counter is a transport.BatchPublisher that counts.
type counter struct {
	mu sync.Mutex
	n  int
}

func (c *counter) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

// PublishBatch acknowledges every message.
func (c *counter) PublishBatch(_ context.Context, _ string, msgs []*message.Message) []error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n += len(msgs)
	return make([]error, len(msgs))
}

// Publish acknowledges every message.
func (c *counter) Publish(topic string, msgs ...*message.Message) error {
	c.PublishBatch(context.Background(), topic, msgs)
	return nil
}

// Close does nothing.
func (*counter) Close() error { return nil }
