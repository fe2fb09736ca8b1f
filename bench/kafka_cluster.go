package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace-go/millrace/bench/internal/wait"
	"github.com/millrace-go/millrace/framework/devstack"
)

const (
	kafkaBrokers    = 3 // of kfake
	kafkaPartitions = 4 // of each topic
	// progressEvery is how often the admin client asks how far a contestant is.
	progressEvery = 5 * time.Millisecond
)

// place is a kind of Kafka cluster, and how far away it is from the contestants.
type place struct {
	name string // ends the names of its figures; "": kfake
	away time.Duration
	open func(ctx context.Context) (*cluster, error)
}

func (p place) suffix() string {
	s := fmt.Sprintf("_%dms", p.away.Milliseconds())
	if p.name != "" {
		s += "_" + p.name
	}
	return s
}

// places calls fn with kfake and, where it is installed or named by the environment, Apache Kafka; fact tells which.
func places(ctx context.Context, fn func(all []place, fact string) error) (err error) {
	var stack devstack.Stack
	defer func() { err = errors.Join(err, stack.Stop()) }()
	if err := stack.Add(ctx, devstack.Kafka); err != nil {
		return err
	}
	var all []place
	for _, away := range []time.Duration{0, time.Millisecond} {
		all = append(all, place{"", away, openKfake})
	}
	fact := fmt.Sprintf("kfake in this process, %d brokers", kafkaBrokers)
	apache := stack.Services()[0]
	if !apache.Real {
		return fn(all, fact+"; Apache Kafka is not installed, so there are no figures for it")
	}
	for _, away := range []time.Duration{0, time.Millisecond} {
		all = append(all, place{"apache", away, func(ctx context.Context) (*cluster, error) { return openCluster(ctx, stack.KafkaBrokers(), nil) }})
	}
	return fn(all, fact+"; apache: "+apache.Source)
}

// cluster has an input topic and an output topic, which are new.
type cluster struct {
	brokers []string
	in, out string
	group   string // of the contestant, which has the name for itself
	admin   *kadm.Client
	client  *kgo.Client // for what is not measured
	stop    func()
}

func openKfake(ctx context.Context) (*cluster, error) {
	fake, err := kfake.NewCluster(kfake.NumBrokers(kafkaBrokers))
	if err != nil {
		return nil, err
	}
	return openCluster(ctx, fake.ListenAddrs(), fake.Close)
}

func openCluster(ctx context.Context, brokers []string, stop func()) (c *cluster, err error) {
	name := "bench-" + strings.ToLower(rand.Text()[:12])
	c = &cluster{brokers: brokers, in: name + "-in", out: name + "-out", group: name, stop: stop}
	// A broker that is busy knows a new topic seconds later.
	c.client, err = kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.UnknownTopicRetries(-1))
	if err != nil {
		return nil, err
	}
	c.admin = kadm.NewClient(c.client)
	created, err := c.admin.CreateTopics(ctx, kafkaPartitions, -1, nil, c.in, c.out)
	if err = cmp.Or(err, created.Error()); err != nil {
		return nil, errors.Join(fmt.Errorf("create the topics: %w", err), c.close())
	}
	return c, nil
}

// close empties the cluster, which another process may own.
func (c *cluster) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	if c.stop == nil {
		_, _ = c.admin.DeleteTopics(ctx, c.in, c.out)
		_, _ = c.admin.DeleteGroups(ctx, c.group)
	}
	c.client.Close()
	if c.stop != nil {
		c.stop()
	}
	return nil
}

// fill produces the events to the input topic.
func (c *cluster) fill(ctx context.Context, events []event) error {
	records := make([]*kgo.Record, len(events))
	for i, e := range events {
		records[i] = &kgo.Record{
			Topic: c.in, Key: []byte(e.key), Value: e.payload,
			Headers: []kgo.RecordHeader{{Key: idAttribute, Value: []byte(e.id)}},
		}
	}
	if err := c.client.ProduceSync(ctx, records...).FirstErr(); err != nil {
		return fmt.Errorf("fill the input topic: %w", err)
	}
	return nil
}

// produced is how many records the output topic has. In transactions some would be markers, and some not committed.
func (c *cluster) produced(ctx context.Context) (n int, err error) {
	ends, err := c.admin.ListEndOffsets(ctx, c.out)
	if err = cmp.Or(err, ends.Error()); err != nil {
		return 0, fmt.Errorf("ask for the output topic's end: %w", err)
	}
	ends.Each(func(o kadm.ListedOffset) { n += int(o.Offset) })
	return n, nil
}

// consumed is how many records of the input topic are committed: in transactions these are those whose outputs are.
func (c *cluster) consumed(ctx context.Context) (n int, err error) {
	offsets, err := c.admin.FetchOffsets(ctx, c.group)
	if errors.Is(err, kerr.GroupIDNotFound) {
		return 0, nil // yet
	}
	if err = cmp.Or(err, offsets.Error()); err != nil {
		return 0, fmt.Errorf("ask for the group's offsets: %w", err)
	}
	offsets.Each(func(o kadm.OffsetResponse) { n += max(0, int(o.At)) })
	return n, nil
}

// throughput watches a contestant until it has done all n records. The rate is that between the first tenth, before which
// it opens connections and joins the group, and the last, in which it may wait for one partition.
func throughput(ctx context.Context, done func(context.Context) (int, error), n int, box time.Duration) (float64, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, box, fmt.Errorf("not all of %d messages came within %v", n, box))
	defer cancel()
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	from, to, began, ended := 0, 0, time.Now(), time.Time{}
	for {
		now, err := done(ctx)
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		if err != nil {
			return 0, err
		}
		switch first, last := n/10, n-n/10; {
		case ended.IsZero() && now >= last:
			to, ended = now, time.Now()
		case from == 0 && now >= first:
			from, began = now, time.Now()
		}
		if now >= n {
			return float64(to-from) / ended.Sub(began).Seconds(), nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

// check reads the output topic as a read_committed reader and reports whether exactly the events are there, each of them
// once, and no transaction is open after the patience.
func (c *cluster) check(ctx context.Context, events []event, patience time.Duration) error {
	left, err := c.stable(ctx) // where partitions end that are not read to their end
	for deadline := time.Now().Add(patience); errors.Is(err, errOpen) && time.Now().Before(deadline) && wait.For(ctx, progressEvery); {
		left, err = c.stable(ctx) // brokers write the markers after they have confirmed the transaction
	}
	if err != nil {
		return err
	}
	reader, err := kgo.NewClient(
		kgo.SeedBrokers(c.brokers...), kgo.ConsumeTopics(c.out), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(), // the last record of a transaction is its marker
	)
	if err != nil {
		return err
	}
	defer reader.Close()
	there := newSink(len(events), func() {})
	for len(left) > 0 {
		fetches := reader.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return fmt.Errorf("read the output topic: %w", err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if !r.Attrs.IsControl() {
				there.note(headerID(r))
			}
			maps.DeleteFunc(left, func(partition int32, end int64) bool { return partition == r.Partition && r.Offset+1 >= end })
		})
	}
	return there.check(events)
}

var errOpen = errors.New("a transaction was left open")

// stable returns the ends of the output topic's partitions that have records. All must be readable.
func (c *cluster) stable(ctx context.Context) (map[int32]int64, error) {
	stable, err := c.admin.ListCommittedOffsets(ctx, c.out)
	if err = cmp.Or(err, stable.Error()); err != nil {
		return nil, fmt.Errorf("ask for the output topic's last stable offsets: %w", err)
	}
	ends, err := c.admin.ListEndOffsets(ctx, c.out)
	if err = cmp.Or(err, ends.Error()); err != nil {
		return nil, fmt.Errorf("ask for the output topic's end: %w", err)
	}
	all := map[int32]int64{}
	ends.Each(func(end kadm.ListedOffset) {
		if readable, ok := stable.Lookup(end.Topic, end.Partition); !ok || readable.Offset != end.Offset {
			err = fmt.Errorf("%w: partition %d is readable up to %d of %d", errOpen, end.Partition, readable.Offset, end.Offset)
		}
		if end.Offset > 0 {
			all[end.Partition] = end.Offset
		}
	})
	return all, err
}

func headerID(r *kgo.Record) string {
	for _, h := range r.Headers {
		if h.Key == idAttribute {
			return string(h.Value)
		}
	}
	return ""
}
