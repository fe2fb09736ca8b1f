package txn

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/IBM/sarama"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka/internal/backoff"
	"github.com/millrace-go/millrace/transport/kafka/internal/conn"
	"github.com/millrace-go/millrace/transport/kafka/internal/ledger"
	"github.com/millrace-go/millrace/transport/kafka/internal/produce"
	"github.com/millrace-go/millrace/transport/kafka/internal/sequence"
	"github.com/millrace-go/millrace/transport/kafka/internal/wire"
)

// placed is outputs by where they go.
type placed map[topicPartition][]*produce.Output

// place chooses the partitions of the batch's outputs, or returns the claims of which some cannot be sent now, and why.
func (p *producer) place(batch []*ledger.Unit) (outputs placed, stuck []*ledger.Partition, err error) {
	outputs = placed{}
	choose := placing{p.outlets, map[topicPartition]error{}}
	for _, u := range batch {
		if slices.Contains(stuck, u.Partition) {
			continue
		}
		for _, o := range finishedOf(u).Outputs {
			at, failure := choose.place(o)
			if failure != nil {
				stuck, err = append(stuck, u.Partition), failure
				break
			}
			outputs[at] = append(outputs[at], o)
		}
	}
	return outputs, stuck, err
}

// run commits the batch in one transaction: in three round trips, because the offsets go beside the outputs.
func (p *producer) run(ctx context.Context, batch []*ledger.Unit, outputs placed, by member) error {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	p.begun = time.Now()
	if p.v2 {
		return p.runV2(ctx, batch, outputs, by)
	}
	offsets := make(chan error, 1)
	go func() {
		err := p.addOffsets(ctx)
		if err == nil {
			err = p.commitOffsets(ctx, batch, by)
		}
		offsets <- err
	}()
	err := p.send(ctx, outputs)
	if err = errors.Join(err, <-offsets); err != nil {
		return err
	}
	return p.end(ctx, true)
}

// runV2 is run in version 2, where requests add to the transaction what they are about. The offsets follow the outputs: beside
// them, the two would meet at the coordinator, which refuses one of them for a moment.
func (p *producer) runV2(ctx context.Context, batch []*ledger.Unit, outputs placed, by member) error {
	if err := p.rounds(ctx, outputs); err != nil {
		return err
	}
	if err := p.commitOffsets(ctx, batch, by); err != nil {
		return err
	}
	return p.end(ctx, true)
}

// send adds the outputs' partitions to the transaction, and produces the outputs.
func (p *producer) send(ctx context.Context, outputs placed) error {
	if len(outputs) == 0 {
		return nil
	}
	partitions := map[string][]int32{}
	for at := range outputs {
		partitions[at.topic] = append(partitions[at.topic], at.partition)
	}
	if err := p.addPartitions(ctx, partitions); err != nil {
		return err
	}
	return p.rounds(ctx, outputs)
}

// rounds produces the outputs.
func (p *producer) rounds(ctx context.Context, outputs placed) error {
	for len(outputs) > 0 {
		if err := p.round(ctx, outputs); err != nil {
			return err
		}
	}
	return nil
}

// addPartitions makes partitions part of the transaction.
func (p *producer) addPartitions(ctx context.Context, partitions map[string][]int32) error {
	var refusal error
	err := p.call(ctx, p.transactions, func() (sarama.KError, error) {
		codes, err := p.transactions.AddPartitions(p.self(), partitions)
		if err != nil {
			return 0, err
		}
		for topic, errs := range codes {
			for _, partition := range errs {
				switch code := partition.Err; code {
				case sarama.ErrNoError, sarama.ErrOperationNotAttempted: // because of another one
				case sarama.ErrTopicAuthorizationFailed, sarama.ErrInvalidTopic:
					refusal = p.failure(topicPartition{topic, partition.Partition}, fmt.Errorf("%w: %w", transport.ErrUnavailable, code))
				default:
					if code == sarama.ErrUnknownTopicOrPartition { // it was made anew, say, with fewer partitions
						p.outlets.stale[topic] = true
					}
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
func (p *producer) round(ctx context.Context, outputs placed) error {
	batches := map[topicPartition]*sarama.RecordBatch{}
	sizes := map[*sarama.Broker]int{}
	now := time.Now()
	for at, of := range outputs {
		leader, err := p.leader(at)
		if err != nil {
			return err
		}
		if sizes[leader] >= produce.MaxRequestBytes {
			continue
		}
		records, size := cut(of, min(p.topics.Limit(at.topic), produce.MaxBatchBytes))
		sizes[leader] += size
		batch := wire.NewBatch(records, p.compression, now)
		batch.IsTransactional = true
		batch.ProducerID, batch.ProducerEpoch, batch.FirstSequence = p.identity.ID, p.identity.Epoch, p.sequences[at]
		p.sequences[at] = sequence.Advance(p.sequences[at], len(records))
		batches[at] = batch
		if outputs[at] = of[len(records):]; len(outputs[at]) == 0 {
			delete(outputs, at)
		}
	}
	retry := backoff.Doubling{Min: firstCallRetry, Max: lastCallRetry}
	for attempt := 1; ; attempt++ {
		again, err := p.produce(batches, now)
		if len(batches) == 0 || err != nil {
			return err
		}
		if !backoff.Sleep(ctx, retry.Wait(attempt)) {
			return fmt.Errorf("produce in the transaction: %w", errors.Join(again, ctx.Err()))
		}
	}
}

func (p *producer) leader(at topicPartition) (*sarama.Broker, error) {
	leader, err := p.client.Leader(at.topic, at.partition)
	if err != nil {
		p.outlets.stale[at.topic] = true
		return nil, fmt.Errorf("find the leader of %s, partition %d: %w", at.topic, at.partition, err)
	}
	return leader, nil
}

// produce sends the batches and takes those from them that are appended. What is left may be sent again at once, if there
// is no error: it is not in the log. That is usual where brokers ask the coordinator whether the partitions belong to the
// transaction (KIP-890): one such question fails when another follows on its heels, and here the offsets' does. In version 2
// the coordinator may still be ending the transaction before.
//
// A partition that has lacked replicas since the time for shortPatience is an error.
func (p *producer) produce(batches map[topicPartition]*sarama.RecordBatch, since time.Time) (again, err error) {
	requests := map[*sarama.Broker]*sarama.ProduceRequest{}
	sent := map[*sarama.Broker][]topicPartition{}
	for at, batch := range batches {
		leader, err := p.leader(at)
		if err != nil {
			return nil, err
		}
		if requests[leader] == nil {
			requests[leader] = conn.NewProduceRequest(new(p.self()))
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
			response, err := conn.Produce(leader, p.client.Config(), request)
			results <- result{leader, response, err}
		}()
	}
	var errs, retriable []error
	for range requests {
		r := <-results
		for _, at := range sent[r.leader] {
			a := sequence.AnswerTo(r.response, r.err, at.topic, at.partition)
			if a.Kind == sequence.Appended {
				delete(batches, at)
				p.outlets.took(at)
				continue
			}
			p.doubtful = p.doubtful || a.Kind == sequence.Unknown
			failure := p.failure(at, a.Err)
			switch lacks := errors.Is(a.Err, sarama.ErrNotEnoughReplicas); {
			case lacks && time.Since(since) >= shortPatience:
				p.outlets.lacking(at, a.Err)
				errs = append(errs, failure)
			case lacks, errors.Is(a.Err, sarama.ErrConcurrentTransactions):
				retriable = append(retriable, failure)
			default:
				p.outlets.stale[at.topic] = true
				errs = append(errs, failure)
			}
		}
	}
	if len(errs) > 0 {
		return nil, fmt.Errorf("produce in the transaction: %w", errors.Join(errs...))
	}
	return errors.Join(retriable...), nil
}

// cut returns the records of the first outputs that together have at most limit bytes, and at least one.
func cut(outputs []*produce.Output, limit int) (records []*sarama.Record, size int) {
	size = wire.BatchOverhead
	for _, o := range outputs {
		if len(records) > 0 && size+o.Size > limit {
			break
		}
		size += o.Size
		records = append(records, o.Record)
	}
	return records, size
}

// outcomeOf reads the error of a transaction that was committed by a member, who is now as said.
func outcomeOf(err error, by, now member) ledger.Outcome {
	is := func(code sarama.KError) bool { return errors.Is(err, code) }
	switch {
	case err == nil:
		return ledger.Committed
	case is(sarama.ErrUnknownMemberId), is(sarama.ErrFencedInstancedId):
		return ledger.Lost
	case is(sarama.ErrIllegalGeneration) && by.session.Err() != nil && now.generation == by.generation:
		return ledger.Lost // else the member has its next generation, or is about to
	case errors.Is(err, transport.ErrRejected), errors.Is(err, transport.ErrUnavailable) && !is(sarama.ErrInvalidTxnState):
		return ledger.Refused
	}
	return ledger.Failed
}
