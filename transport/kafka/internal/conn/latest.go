package conn

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/IBM/sarama"

	"github.com/millrace-go/millrace/transport/kafka/internal/backoff"
)

const (
	// latestStep is how many offsets before the end are read first. Each further read goes back four times as far.
	latestStep = 64
	// stablePause is the wait between two checks whether transactions have ended, and whether a new leader knows it.
	stablePause = 5 * time.Millisecond
)

// Latest returns the value of the partition's newest committed record with that key, or nil. It first waits until every transaction that
// has written to the partition before the call has ended.
func Latest(ctx context.Context, client sarama.Client, topic string, partition int32, key string) ([]byte, error) {
	end, err := client.GetOffset(topic, partition, sarama.OffsetNewest)
	if err != nil {
		return nil, fmt.Errorf("look up the end of %s, partition %d: %w", topic, partition, err)
	}
	for {
		stable, err := StableEnd(client, topic, partition)
		if err != nil {
			return nil, fmt.Errorf("look up the stable end of %s, partition %d: %w", topic, partition, err)
		}
		if stable >= end {
			break
		}
		if !backoff.Sleep(ctx, stablePause) {
			return nil, fmt.Errorf("wait for the end of transactions in %s, partition %d: %w", topic, partition, ctx.Err())
		}
	}
	start, err := client.GetOffset(topic, partition, sarama.OffsetOldest)
	if err != nil {
		return nil, fmt.Errorf("look up the beginning of %s, partition %d: %w", topic, partition, err)
	}
	for back, upTo := int64(latestStep), end; upTo > start; back *= 4 {
		from := max(start, upTo-back)
		value, found, err := latestWithin(ctx, client, topic, partition, key, from, upTo)
		if err != nil || found {
			return value, err
		}
		upTo = from
	}
	return nil, nil
}

// latestWithin searches between two offsets.
func latestWithin(ctx context.Context, client sarama.Client, topic string, partition int32, key string, from, upTo int64) (value []byte, found bool, err error) {
	for from < upTo && ctx.Err() == nil {
		block, err := fetch(client, topic, partition, from)
		if err != nil {
			return nil, false, err
		}
		next := from
		aborted := abortedBy(block.AbortedTransactions)
		for _, records := range block.RecordsSet {
			batch := records.RecordBatch
			if batch == nil || batch.PartialTrailingRecord {
				break
			}
			next = max(next, batch.LastOffset()+1)
			switch {
			case batch.Control:
				aborted.ended(batch)
				continue
			case batch.IsTransactional && aborted.has(batch):
				continue
			}
			for _, r := range batch.Records {
				if at := batch.FirstOffset + r.OffsetDelta; at >= from && at < upTo && string(r.Key) == key {
					value, found = slices.Clone(r.Value), true
				}
			}
		}
		switch {
		case next > from:
			from = next
		case block.LastStableOffset >= upTo:
			// Compaction keeps some batches without their records, such as the last batch of what it has cleaned. sarama drops them, and the
			// rest of the answer may be nothing, although records follow.
			from++
		case !backoff.Sleep(ctx, stablePause): // a new leader does not know yet how far its predecessor has committed
			return nil, false, fmt.Errorf("wait for the leader of %s, partition %d, to know its committed records: %w", topic, partition, ctx.Err())
		}
	}
	return value, found, ctx.Err()
}

// fetch reads committed records from an offset.
func fetch(client sarama.Client, topic string, partition int32, from int64) (*sarama.FetchResponseBlock, error) {
	leader, err := client.Leader(topic, partition)
	if err != nil {
		return nil, err
	}
	request := &sarama.FetchRequest{Version: unreadVersion, MaxBytes: unreadBytes, Isolation: sarama.ReadCommitted, SessionEpoch: -1}
	request.AddBlock(topic, partition, from, unreadBytes, -1)
	response, err := leader.Fetch(request)
	if err != nil {
		return nil, err
	}
	block := response.GetBlock(topic, partition)
	switch {
	case block == nil:
		return nil, sarama.ErrIncompleteResponse
	case block.Err != sarama.ErrNoError:
		return nil, fmt.Errorf("read %s, partition %d: %w", topic, partition, block.Err)
	}
	return block, nil
}
