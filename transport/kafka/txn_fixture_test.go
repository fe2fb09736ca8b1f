package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
)

// copying is a topic with numbered messages, and the topic that copiers fill from it.
type copying struct {
	brokers  []string
	in, out  string
	consumer string
	client   *kgo.Client
	admin    *kadm.Client
	n        int
}

const copyPartitions = 3

// newCopying writes n messages into a topic. Each is of a key, and counts within it.
func newCopying(t *testing.T, brokers []string, n int) *copying {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.UnknownTopicRetries(-1)) // brokers learn of a new topic one after another
	require.NoError(t, err)
	t.Cleanup(client.Close)
	name := "copy-" + watermill.NewShortUUID()
	c := &copying{brokers: brokers, in: name + ".in", out: name + ".out", consumer: name, client: client, admin: kadm.NewClient(client), n: n}
	_, err = c.admin.CreateTopics(t.Context(), copyPartitions, -1, nil, c.in, c.out)
	require.NoError(t, err)
	records := make([]*kgo.Record, n)
	for i := range records {
		key := strconv.Itoa(i % 10)
		records[i] = &kgo.Record{Topic: c.in, Key: []byte(key), Value: fmt.Appendf(nil, "%s:%d", key, i/10)}
	}
	require.NoError(t, client.ProduceSync(t.Context(), records...).FirstErr())
	return c
}

// copier is a process that copies.
type copier struct {
	transport *kafka.Transport
	done      sync.WaitGroup
}

// config is a copier's, with what else is wanted of it.
func (c *copying) config(config kafka.Config) kafka.Config {
	config.Brokers = c.brokers
	config.Delivery = kafka.Transactional
	config.Consumer.SessionTimeout = 6 * time.Second
	if config.Transaction.Timeout == 0 {
		config.Transaction.Timeout = 3 * time.Second
	}
	if config.Transaction.MaxRecords == 0 {
		config.Transaction.MaxRecords = 100
	}
	config.Transaction.MaxDelay = 20 * time.Millisecond
	return config
}

// start starts a copier with the handler; nil copies.
func (c *copying) start(t *testing.T, config kafka.Config, handle func(*message.Message, message.Publisher) error) *copier {
	t.Helper()
	if handle == nil {
		handle = c.copy
	}
	p := &copier{transport: connect(t, config)}
	publisher, err := p.transport.Publisher()
	require.NoError(t, err)
	subscriber, err := p.transport.Subscriber(transport.SubscriberConfig{Consumer: c.consumer, Concurrency: 50, Ordered: true})
	require.NoError(t, err)
	messages, err := subscriber.Subscribe(t.Context(), c.in)
	require.NoError(t, err)
	p.done.Go(func() {
		for msg := range messages {
			p.done.Go(func() {
				if handle(msg, publisher) == nil {
					msg.Ack()
				} else {
					msg.Nack()
				}
			})
		}
	})
	return p
}

// copy is what a copier does with a message.
func (c *copying) copy(msg *message.Message, publisher message.Publisher) error {
	return publisher.Publish(c.out, outputOf(msg))
}

func outputOf(msg *message.Message) *message.Message {
	o := message.NewMessageWithContext(msg.Context(), msg.UUID, msg.Payload)
	transport.SetKey(o, transport.Key(msg))
	return o
}

// stop ends a copier as a service that is told to stop does.
func (p *copier) stop(t *testing.T) {
	t.Helper()
	require.NoError(t, p.transport.Close())
	p.done.Wait()
}

// await waits until the group has committed everything.
func (c *copying) await(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool { return c.lag(t) == 0 }, 3*time.Minute, 10*time.Millisecond)
}

// lag is how many messages the group has not committed.
func (c *copying) lag(t *testing.T) (lag int64) {
	t.Helper()
	for _, behind := range c.behind(t) {
		lag += behind
	}
	return lag
}

// behind is how many messages of each partition the group has not committed.
func (c *copying) behind(t *testing.T) [copyPartitions]int64 {
	t.Helper()
	ends, err := c.admin.ListEndOffsets(t.Context(), c.in)
	require.NoError(t, err)
	committed, err := c.admin.FetchOffsets(t.Context(), c.consumer)
	if err != nil && !errors.Is(err, kerr.GroupIDNotFound) { // the coordinator is on its way
		t.Log(err)
		return [copyPartitions]int64{int64(c.n) + 1}
	}
	var behind [copyPartitions]int64
	ends.Each(func(end kadm.ListedOffset) {
		at := int64(0)
		if o, ok := committed.Lookup(c.in, end.Partition); ok {
			at = max(0, o.At)
		}
		behind[end.Partition] = end.Offset - at
	})
	return behind
}

// report is what a reader finds.
type report struct{ read, duplicates, missing, disordered int }

// read reads the topic, read_committed, up to its end, which must be stable: no transaction hangs.
func (c *copying) read(t *testing.T, topic string) []string {
	t.Helper()
	var ends kadm.ListedOffsets
	require.Eventually(t, func() bool {
		stable, err := c.admin.ListCommittedOffsets(t.Context(), topic)
		require.NoError(t, err)
		ends, err = c.admin.ListEndOffsets(t.Context(), topic)
		require.NoError(t, err)
		same := true
		ends.Each(func(end kadm.ListedOffset) {
			s, _ := stable.Lookup(topic, end.Partition)
			same = same && s.Offset == end.Offset
		})
		return same
	}, wait, 10*time.Millisecond, "the last stable offset stays behind the end")
	reader, err := kgo.NewClient(kgo.SeedBrokers(c.brokers...), kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.KeepControlRecords())
	require.NoError(t, err)
	defer reader.Close()
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	var values []string
	left := map[int32]bool{}
	ends.Each(func(end kadm.ListedOffset) {
		if end.Offset > 0 {
			left[end.Partition] = true
		}
	})
	for len(left) > 0 {
		fetches := reader.PollFetches(ctx)
		require.NoError(t, ctx.Err(), "partitions %v are not at their ends", left)
		fetches.EachRecord(func(r *kgo.Record) {
			if !r.Attrs.IsControl() {
				values = append(values, string(r.Value))
			}
			if end, _ := ends.Lookup(topic, r.Partition); r.Offset+1 >= end.Offset {
				delete(left, r.Partition)
			}
		})
	}
	return values
}

// report compares what is in the output topic with what should be.
func (c *copying) report(t *testing.T) (r report) {
	t.Helper()
	seen := map[string]bool{}
	last := map[string]int{}
	for _, value := range c.read(t, c.out) {
		r.read++
		if seen[value] {
			r.duplicates++
			continue
		}
		seen[value] = true
		key, number, _ := strings.Cut(value, ":")
		i, err := strconv.Atoi(number)
		require.NoError(t, err)
		if i < last[key] {
			r.disordered++
		}
		last[key] = i
	}
	r.missing = c.n - len(seen)
	return r
}

// exactlyOnce waits for the group, and then reads.
func (c *copying) exactlyOnce(t *testing.T) {
	t.Helper()
	c.await(t)
	require.Equal(t, report{read: c.n}, c.report(t))
}

// outputs is how many records the output topic has, those of open and aborted transactions and markers included.
func (c *copying) outputs(t *testing.T) (n int64) {
	t.Helper()
	ends, err := c.admin.ListEndOffsets(t.Context(), c.out)
	require.NoError(t, err)
	ends.Each(func(end kadm.ListedOffset) { n += end.Offset })
	return n
}
