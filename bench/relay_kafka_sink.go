package main

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
)

// kafkaSink publishes to the cluster's topic, whatever the events' topic is, and notes what the brokers have confirmed.
type kafkaSink struct {
	kafkaPublisher
	cluster   *cluster
	transport *kafka.Transport
	tap       *tap
	sink      atomic.Pointer[sink]
}

type kafkaPublisher interface {
	transport.BatchPublisher
	transport.TransactionalPublisher
}

func newKafkaSink(ctx context.Context, c *cluster) (*kafkaSink, error) {
	k := &kafkaSink{cluster: c, tap: newTap(0)}
	k.sink.Store(newSink(0, func() {}))
	o, err := c.ours(ctx, kafka.Config{Dial: k.tap.DialContext})
	if err != nil {
		return nil, err
	}
	k.transport, k.kafkaPublisher = o.transport, o.publisher.(kafkaPublisher)
	return k, nil
}

// forget deletes what relays of the schema have created.
func (c *cluster) forget(schema string) error {
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	topics, err := c.admin.ListTopics(ctx)
	for name := range topics {
		if strings.HasPrefix(name, "millrace.progress.") && strings.Contains(name, "."+schema+".") {
			_, deleted := c.admin.DeleteTopics(ctx, name)
			err = errors.Join(err, deleted)
		}
	}
	return err
}

func (k *kafkaSink) note(msgs []*message.Message, results []error) {
	var confirmed []*message.Message
	for i, err := range results {
		if err == nil {
			confirmed = append(confirmed, msgs[i])
		}
	}
	if len(confirmed) > 0 {
		k.sink.Load().PublishBatch(context.Background(), "", confirmed)
	}
}

// PublishBatch publishes at least once.
func (k *kafkaSink) PublishBatch(ctx context.Context, _ string, msgs []*message.Message) []error {
	results := k.kafkaPublisher.PublishBatch(ctx, k.cluster.out, msgs)
	k.note(msgs, results)
	return results
}

// Transactions returns transactions that publish to the cluster's topic.
func (k *kafkaSink) Transactions(name string, number int) transport.Transactions {
	return &kafkaTransactions{k.kafkaPublisher.Transactions(name, number), k}
}

type kafkaTransactions struct {
	transport.Transactions
	to *kafkaSink
}

// Publish publishes in one transaction.
func (k *kafkaTransactions) Publish(ctx context.Context, _ string, msgs []*message.Message, note []byte) []error {
	results := k.Transactions.Publish(ctx, k.to.cluster.out, msgs, note)
	k.to.note(msgs, results)
	return results
}

// kafkaCounts are requests of a tap.
type kafkaCounts struct{ transactions, produce int }

func (t *tap) counts() (n kafkaCounts) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n.transactions = t.committed
	for _, asked := range t.asked[requestProduce] {
		n.produce += asked
	}
	return n
}

func (n kafkaCounts) since(before kafkaCounts) kafkaCounts {
	return kafkaCounts{n.transactions - before.transactions, n.produce - before.produce}
}

// follow notes when a read_committed reader gets each event of the output topic, until stop is called.
func (c *cluster) follow(ctx context.Context, got *times) (stop func(), err error) {
	reader, err := kgo.NewClient(kgo.SeedBrokers(c.brokers...), kgo.ConsumeTopics(c.out),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var reading sync.WaitGroup
	reading.Go(func() {
		for ctx.Err() == nil {
			fetches := reader.PollFetches(ctx)
			now := time.Now().UnixNano()
			fetches.EachRecord(func(r *kgo.Record) { got.note(headerID(r), now) })
		}
	})
	return func() {
		cancel()
		reading.Wait()
		reader.Close()
	}, nil
}
