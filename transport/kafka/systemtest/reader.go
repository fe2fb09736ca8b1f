package main

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// record is what was read of one message.
type record struct {
	partition int32
	value     string
}

// contents is what a reader has read.
type contents struct {
	records         []record
	commits, aborts int // markers of transactions, one in each partition that they wrote to
}

// reader reads a topic from its start, read_committed. It is franz-go's, so that it shares no code with what it judges.
type reader struct {
	client *kgo.Client
	cancel context.CancelFunc
	ended  chan struct{}

	mu   sync.Mutex
	got  contents
	seen map[string]struct{}
	next map[int32]int64 // offsets
}

func startReader(brokers []string, topic string) (*reader, error) {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(brokers...),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords(),
		kgo.FetchMaxWait(500*time.Millisecond),
	)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &reader{client: client, cancel: cancel, ended: make(chan struct{}), seen: map[string]struct{}{}, next: map[int32]int64{}}
	go func() { // stop waits for it
		defer close(r.ended)
		for ctx.Err() == nil {
			r.add(client.PollFetches(ctx))
		}
	}()
	return r, nil
}

// add ignores errors of fetches: the client tries again, and what stays unread is missing in the verdict.
func (r *reader) add(fetches kgo.Fetches) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fetches.EachRecord(func(one *kgo.Record) {
		r.next[one.Partition] = one.Offset + 1
		switch {
		case !one.Attrs.IsControl():
			r.got.records = append(r.got.records, record{one.Partition, string(one.Value)})
			r.seen[string(one.Value)] = struct{}{}
		case len(one.Key) == 4 && one.Key[3] == 1: // version and type, two bytes each
			r.got.commits++
		default:
			r.got.aborts++
		}
	})
}

// count is how many different messages were read.
func (r *reader) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.seen)
}

// reached reports whether everything before the ends was read.
func (r *reader) reached(ends map[int32]int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for partition, end := range ends {
		if r.next[partition] < end {
			return false
		}
	}
	return true
}

func (r *reader) read() contents {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.got
}

func (r *reader) stop() {
	r.cancel()
	<-r.ended
	r.client.Close()
}

// readAll reads everything that is committed in the topic.
func readAll(ctx context.Context, admin *kadm.Client, brokers []string, topic string) (contents, error) {
	offsets, err := admin.ListCommittedOffsets(ctx, topic)
	if err == nil {
		err = offsets.Error()
	}
	if err != nil {
		return contents{}, fmt.Errorf("ask for the end of %s: %w", topic, err)
	}
	ends := map[int32]int64{}
	offsets.Each(func(o kadm.ListedOffset) { ends[o.Partition] = o.Offset })
	r, err := startReader(brokers, topic)
	if err != nil {
		return contents{}, err
	}
	defer r.stop()
	ctx, cancel := context.WithTimeoutCause(ctx, stall, fmt.Errorf("%s was not read to its end within %v", topic, stall))
	defer cancel()
	err = poll(ctx, func() (bool, error) { return r.reached(ends), nil })
	return r.read(), err
}

// keys is how many keys the messages of a partition have.
const keys = 100

// seed fills the topic. A message's value tells where it came from and is unique.
func seed(ctx context.Context, brokers []string, topic string, partitions int32, messages int) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		return err
	}
	defer client.Close()
	records := make([]*kgo.Record, messages)
	for i := range records {
		partition, number := int32(i)%partitions, i/int(partitions)
		records[i] = &kgo.Record{
			Topic: topic, Partition: partition, Value: []byte(origin{partition, number}.String()),
			Key:     fmt.Appendf(nil, "%d-%d", partition, number%keys),
			Headers: []kgo.RecordHeader{{Key: "_watermill_message_uuid", Value: []byte(uuid.NewString())}},
		}
	}
	return client.ProduceSync(ctx, records...).FirstErr()
}

// origin is the place of a message in the input.
type origin struct {
	partition int32
	number    int
}

func (o origin) String() string { return strconv.Itoa(int(o.partition)) + "." + strconv.Itoa(o.number) }
