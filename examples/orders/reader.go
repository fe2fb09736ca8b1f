package main

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// reader reads committed results with franz-go, so that it shares no code with what it judges.
type reader struct {
	client *kgo.Client
	admin  *kadm.Client
	cancel context.CancelFunc
	ended  chan struct{}

	mu      sync.Mutex
	results map[string]int  // by order
	next    map[int32]int64 // offsets
}

func startReader(c config) (*reader, error) {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(c.Brokers...),
		kgo.ConsumeTopics(c.Results),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords(), // the topic may end with them
		kgo.FetchMaxWait(500*time.Millisecond),
	)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &reader{
		client: client, admin: kadm.NewClient(client), cancel: cancel, ended: make(chan struct{}),
		results: map[string]int{}, next: map[int32]int64{},
	}
	go func() { // stop waits for it
		defer close(r.ended)
		for ctx.Err() == nil {
			r.add(r.client.PollFetches(ctx)) // after an error the client retries
		}
	}()
	return r, nil
}

func (r *reader) add(fetches kgo.Fetches) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fetches.EachRecord(func(record *kgo.Record) {
		r.next[record.Partition] = record.Offset + 1
		if record.Attrs.IsControl() {
			return
		}
		var one result
		if err := json.Unmarshal(record.Value, &one); err != nil {
			one.OrderID = fmt.Sprintf("(a result that is none: %v)", err)
		}
		r.results[one.OrderID]++
	})
}

// count returns how many orders have a result.
func (r *reader) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.results)
}

// settled reports whether the processors have committed every order.
func (r *reader) settled(ctx context.Context, c config) (bool, error) {
	ends, err := r.admin.ListEndOffsets(ctx, c.Orders)
	if err != nil {
		return false, err
	}
	offsets, err := r.admin.FetchOffsetsForTopics(ctx, consumer, c.Orders)
	if err != nil {
		return false, err
	}
	all := true
	ends.Each(func(end kadm.ListedOffset) {
		offset, ok := offsets.Lookup(end.Topic, end.Partition)
		all = all && ok && end.Err == nil && offset.At >= end.Offset
	})
	return all, nil
}

func (r *reader) stop() {
	r.cancel()
	<-r.ended
	r.client.Close()
}

// readAll reads all committed results again and counts them by order.
func readAll(ctx context.Context, c config) (map[string]int, error) {
	r, err := startReader(c)
	if err != nil {
		return nil, err
	}
	defer r.stop()
	ends, err := r.admin.ListCommittedOffsets(ctx, c.Results)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("ask for the end of the results: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, stall, fmt.Errorf("the results were not read to their end within %v", stall))
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !r.reached(ends) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.results, nil
}

func (r *reader) reached(ends kadm.ListedOffsets) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := true
	ends.Each(func(end kadm.ListedOffset) { all = all && r.next[end.Partition] >= end.Offset })
	return all
}
