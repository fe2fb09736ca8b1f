package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/IBM/sarama"

	"github.com/millrace-go/millrace/transport"
)

// run commits the batch in one transaction: in three round trips, because the offsets go beside the outputs.
func (p *txnProducer) run(ctx context.Context, batch []*txnUnit, by member) error {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	offsets := make(chan error, 1)
	go func() {
		err := p.addOffsets(ctx)
		if err == nil {
			err = p.commitOffsets(ctx, nextOffsets(batch), by)
		}
		offsets <- err
	}()
	err := p.send(ctx, batch)
	if err = errors.Join(err, <-offsets); err != nil {
		return err
	}
	return p.end(ctx, true)
}

// nextOffsets is, for each partition of the batch, what follows its last unit.
func nextOffsets(batch []*txnUnit) map[int32]int64 {
	next := map[int32]int64{}
	for _, u := range batch {
		next[u.claim.number] = u.offset + 1
	}
	return next
}

// send produces the outputs of the batch.
func (p *txnProducer) send(ctx context.Context, batch []*txnUnit) error {
	outputs := map[topicPartition][]*output{}
	partitions := map[string][]int32{}
	for _, u := range batch {
		for _, o := range u.outputs {
			at := topicPartition{o.topic, o.partition}
			if outputs[at] == nil {
				partitions[o.topic] = append(partitions[o.topic], o.partition)
			}
			outputs[at] = append(outputs[at], o)
		}
	}
	if len(outputs) == 0 {
		return nil
	}
	if err := p.addPartitions(ctx, partitions); err != nil {
		return err
	}
	for len(outputs) > 0 {
		if err := p.round(ctx, outputs); err != nil {
			return err
		}
	}
	return nil
}

// addPartitions makes partitions part of the transaction.
func (p *txnProducer) addPartitions(ctx context.Context, partitions map[string][]int32) error {
	var refusal error
	err := p.call(ctx, p.transactions, func(b *sarama.Broker) (sarama.KError, error) {
		response, err := b.AddPartitionsToTxn(&sarama.AddPartitionsToTxnRequest{
			Version:         addPartitionsVersion,
			TransactionalID: p.id,
			ProducerID:      p.identity.id,
			ProducerEpoch:   p.identity.epoch,
			TopicPartitions: partitions,
		})
		if err != nil {
			return 0, err
		}
		for topic, errs := range response.Errors {
			for _, partition := range errs {
				switch code := partition.Err; code {
				case sarama.ErrNoError, sarama.ErrOperationNotAttempted: // because of another one
				case sarama.ErrUnknownTopicOrPartition, sarama.ErrTopicAuthorizationFailed, sarama.ErrInvalidTopic:
					p.stale[topic] = true
					refusal = fmt.Errorf("%w: %s, partition %d: %w", transport.ErrUnavailable, topic, partition.Partition, code)
				default:
					return code, nil
				}
			}
		}
		return sarama.ErrNoError, nil
	})
	if err = errors.Join(err, refusal); err != nil {
		return fmt.Errorf("add partitions to the transaction: %w", err)
	}
	return nil
}

// round sends to each broker one request, with one batch for each partition, and takes what it sends from outputs. Nearly
// always it takes all.
func (p *txnProducer) round(ctx context.Context, outputs map[topicPartition][]*output) error {
	batches := map[topicPartition]*sarama.RecordBatch{}
	sizes := map[*sarama.Broker]int{}
	now := time.Now()
	for at, of := range outputs {
		leader, err := p.leader(at)
		if err != nil {
			return err
		}
		if sizes[leader] >= maxRequestBytes {
			continue
		}
		records, size := cut(of, min(p.topics.limit(at.topic), maxBatchBytes))
		sizes[leader] += size
		batch := newBatch(records, p.codec, now)
		batch.IsTransactional = true
		batch.ProducerID, batch.ProducerEpoch, batch.FirstSequence = p.identity.id, p.identity.epoch, p.sequences[at]
		p.sequences[at] = advance(p.sequences[at], len(records))
		batches[at] = batch
		if outputs[at] = of[len(records):]; len(outputs[at]) == 0 {
			delete(outputs, at)
		}
	}
	retry := Retry{Min: firstCallRetry, Max: lastCallRetry}
	for attempt := 1; ; attempt++ {
		again, err := p.produce(batches)
		if len(batches) == 0 || err != nil {
			return err
		}
		if !sleep(ctx, retry.wait(attempt)) {
			return fmt.Errorf("produce in the transaction: %w", errors.Join(again, ctx.Err()))
		}
	}
}

func (p *txnProducer) leader(at topicPartition) (*sarama.Broker, error) {
	leader, err := p.client.Leader(at.topic, at.partition)
	if err != nil {
		p.stale[at.topic] = true
		return nil, fmt.Errorf("find the leader of %s, partition %d: %w", at.topic, at.partition, err)
	}
	return leader, nil
}

// produce sends the batches and takes those from them that are appended. What is left may be sent again at once, if there
// is no error: it is not in the log. That is usual where brokers ask the coordinator whether the partitions belong to the
// transaction (KIP-890): one such question fails when another follows on its heels, and here the offsets' does.
func (p *txnProducer) produce(batches map[topicPartition]*sarama.RecordBatch) (again, err error) {
	requests := map[*sarama.Broker]*sarama.ProduceRequest{}
	sent := map[*sarama.Broker][]topicPartition{}
	for at, batch := range batches {
		leader, err := p.leader(at)
		if err != nil {
			return nil, err
		}
		if requests[leader] == nil {
			requests[leader] = newProduceRequest(&p.id)
			requests[leader].Timeout = int32(p.timeout / 2 / time.Millisecond)
		}
		requests[leader].AddBatch(at.topic, at.partition, batch)
		sent[leader] = append(sent[leader], at)
	}
	type result struct {
		leader   *sarama.Broker
		response *sarama.ProduceResponse
		err      error
	}
	results := make(chan result, len(requests))
	for leader, request := range requests {
		go func() {
			response, err := produce(leader, p.client.Config(), request)
			results <- result{leader, response, err}
		}()
	}
	var errs, retriable []error
	for range requests {
		r := <-results
		for _, at := range sent[r.leader] {
			a := answerTo(r.response, r.err, at.topic, at.partition)
			if a.kind == appended {
				delete(batches, at)
				continue
			}
			failure := fmt.Errorf("%s, partition %d: %w", at.topic, at.partition, a.err)
			if errors.Is(a.err, sarama.ErrNotEnoughReplicas) {
				retriable = append(retriable, failure)
				continue
			}
			p.stale[at.topic] = true
			errs = append(errs, failure)
		}
	}
	if len(errs) > 0 {
		return nil, fmt.Errorf("produce in the transaction: %w", errors.Join(errs...))
	}
	return errors.Join(retriable...), nil
}

// cut returns the records of the first outputs that together have at most limit bytes, and at least one.
func cut(outputs []*output, limit int) (records []*sarama.Record, size int) {
	size = batchOverhead
	for _, o := range outputs {
		if len(records) > 0 && size+o.size > limit {
			break
		}
		size += o.size
		records = append(records, o.record)
	}
	return records, size
}

// outcomeOf reads the error of a transaction.
func outcomeOf(err error, by member) txnOutcome {
	is := func(code sarama.KError) bool { return errors.Is(err, code) }
	switch {
	case err == nil:
		return txnCommitted
	case is(sarama.ErrUnknownMemberId), is(sarama.ErrFencedInstancedId):
		return txnLost
	case is(sarama.ErrIllegalGeneration) && by.session.Err() != nil:
		return txnLost // else a rebalance is about to give the member its next generation
	case errors.Is(err, transport.ErrRejected), errors.Is(err, transport.ErrUnavailable) && !is(sarama.ErrInvalidTxnState):
		return txnRefused
	}
	return txnFailed
}
