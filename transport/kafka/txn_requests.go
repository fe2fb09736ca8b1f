package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/IBM/sarama"
)

// The versions of the requests: those of Apache Kafka 2.8, which later brokers answer as they did then. Newer ones let the
// brokers add partitions and raise epochs by themselves (KIP-890), which sarama does not speak.
const (
	initProducerIDVersion  = 4
	addPartitionsVersion   = 3
	addOffsetsVersion      = 3
	txnOffsetCommitVersion = 3 // the first with generation and member
	endTxnVersion          = 3
)

// txnProducer sends the requests of one transactional ID. It belongs to one goroutine.
type txnProducer struct {
	id       string
	group    string
	topic    string  // of the offsets
	instance *string // of a static member
	timeout  time.Duration
	client   sarama.Client
	topics   *topics
	codec    sarama.CompressionCodec
	holes    hole

	identity  identity
	sequences map[topicPartition]int32
	stale     map[string]bool // topics whose leaders are to be looked up

	transactions, additions, offsets *link // to the transaction's coordinator twice, and to the group's
}

type topicPartition struct {
	topic     string
	partition int32
}

// hole is what a test leaves out, to see that something breaks without it.
type hole int

const (
	withoutMember hole = 1 << iota // who commits the offsets, so that one who has lost his partitions still may
	withoutStable                  // waiting for offsets that a transaction has not committed yet
	withoutEpoch                   // raising the epoch, so that late requests count
)

func newTxnProducer(client sarama.Client, topics *topics, c Config, id, group, topic, instance string) *txnProducer {
	p := &txnProducer{
		id:       id,
		group:    group,
		topic:    topic,
		timeout:  c.Transaction.Timeout,
		client:   client,
		topics:   topics,
		codec:    c.Producer.Compression.codec(),
		holes:    c.Transaction.holes,
		identity: nobody,
		stale:    map[string]bool{},
	}
	if instance != "" {
		p.instance = &instance
	}
	coordinator := func() (*sarama.Broker, error) { return client.TransactionCoordinator(id) }
	refresh := func() error { return client.RefreshTransactionCoordinator(id) }
	p.transactions = &link{client: client, find: coordinator, refresh: refresh}
	p.additions = &link{client: client, find: coordinator, refresh: refresh}
	p.offsets = &link{
		client:  client,
		find:    func() (*sarama.Broker, error) { return client.Coordinator(group) },
		refresh: func() error { return client.RefreshCoordinator(group) },
	}
	return p
}

func (p *txnProducer) close() {
	p.transactions.close()
	p.additions.close()
	p.offsets.close()
}

// The waits between attempts of a request that a coordinator has not executed: the first, and the largest.
const (
	firstCallRetry = time.Millisecond
	lastCallRetry  = 50 * time.Millisecond
)

// call sends a request until it is executed or refused. Only what a coordinator says to have not executed is sent again:
// what is lost may arrive late, which only a new epoch makes harmless.
func (p *txnProducer) call(ctx context.Context, l *link, send func(*sarama.Broker) (sarama.KError, error)) error {
	retry := Retry{Min: firstCallRetry, Max: lastCallRetry}
	for attempt := 1; ; attempt++ {
		var code sarama.KError
		err := l.do(func(b *sarama.Broker) (err error) {
			code, err = send(b)
			return err
		})
		switch {
		case err != nil:
			return err
		case code == sarama.ErrNoError:
			return nil
		case code == sarama.ErrNotCoordinatorForConsumer || code == sarama.ErrConsumerCoordinatorNotAvailable:
			l.move()
		case code == sarama.ErrConcurrentTransactions: // the one before is about to end
		case code == sarama.ErrOffsetsLoadInProgress, code == sarama.ErrUnstableOffsetCommit:
		case code == sarama.ErrProducerFenced: // sarama has no text for it
			return fmt.Errorf("PRODUCER_FENCED, a later producer has the transactional ID: %w", code)
		default:
			return code
		}
		if !sleep(ctx, retry.wait(attempt)) {
			return errors.Join(code, ctx.Err())
		}
	}
}

// sleep returns false when ctx ends before.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// fence gives the producer an epoch: what is open of an earlier one is aborted, and what is still on its way is refused.
func (p *txnProducer) fence(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	for topic := range p.stale {
		_ = p.client.RefreshMetadata(topic) // producing tells
	}
	clear(p.stale)
	if p.holes&withoutEpoch != 0 && p.identity != nobody {
		return p.end(ctx, false)
	}
	err := p.call(ctx, p.transactions, func(b *sarama.Broker) (sarama.KError, error) {
		response, err := b.InitProducerID(&sarama.InitProducerIDRequest{
			Version:            initProducerIDVersion,
			TransactionalID:    &p.id,
			TransactionTimeout: p.timeout,
			ProducerID:         p.identity.id,
			ProducerEpoch:      p.identity.epoch,
		})
		if err != nil {
			return 0, err
		}
		if response.Err == sarama.ErrNoError {
			p.identity = identity{response.ProducerID, response.ProducerEpoch}
			p.sequences = map[topicPartition]int32{}
		}
		return response.Err, nil
	})
	if superseded(err) {
		p.identity = nobody // next time as a new one
	}
	if err != nil {
		return fmt.Errorf("get a producer epoch: %w", err)
	}
	return nil
}

// superseded tells that the brokers know a later epoch of the producer, or have forgotten it.
func superseded(err error) bool {
	for _, code := range []sarama.KError{sarama.ErrProducerFenced, sarama.ErrInvalidProducerEpoch, sarama.ErrInvalidProducerIDMapping, sarama.ErrUnknownProducerID} {
		if errors.Is(err, code) {
			return true
		}
	}
	return false
}

// addOffsets makes the group's offsets part of the transaction.
func (p *txnProducer) addOffsets(ctx context.Context) error {
	err := p.call(ctx, p.additions, func(b *sarama.Broker) (sarama.KError, error) {
		response, err := b.AddOffsetsToTxn(&sarama.AddOffsetsToTxnRequest{
			Version:         addOffsetsVersion,
			TransactionalID: p.id,
			ProducerID:      p.identity.id,
			ProducerEpoch:   p.identity.epoch,
			GroupID:         p.group,
		})
		if err != nil {
			return 0, err
		}
		return response.Err, nil
	})
	if err != nil {
		return fmt.Errorf("add the group's offsets to the transaction: %w", err)
	}
	return nil
}

// commitOffsets commits the offsets of partitions in the transaction, on behalf of the member: the coordinator refuses
// them from one who has lost his partitions.
func (p *txnProducer) commitOffsets(ctx context.Context, next map[int32]int64, by member) error {
	offsets := make([]*sarama.PartitionOffsetMetadata, 0, len(next))
	for partition, offset := range next {
		offsets = append(offsets, &sarama.PartitionOffsetMetadata{Partition: partition, Offset: offset, LeaderEpoch: -1})
	}
	err := p.call(ctx, p.offsets, func(b *sarama.Broker) (sarama.KError, error) {
		request := &sarama.TxnOffsetCommitRequest{
			Version:         txnOffsetCommitVersion,
			TransactionalID: p.id,
			GroupID:         p.group,
			ProducerID:      p.identity.id,
			ProducerEpoch:   p.identity.epoch,
			GenerationID:    by.generation,
			MemberID:        by.id,
			GroupInstanceID: p.instance,
			Topics:          map[string][]*sarama.PartitionOffsetMetadata{p.topic: offsets},
		}
		if p.holes&withoutMember != 0 {
			request.GenerationID, request.MemberID, request.GroupInstanceID = sarama.GroupGenerationUndefined, "", nil
		}
		response, err := b.TxnOffsetCommit(request)
		if err != nil {
			return 0, err
		}
		if request.Version < txnOffsetCommitVersion { // sarama takes what the broker knows
			return sarama.ErrUnsupportedVersion, nil
		}
		for _, partitions := range response.Topics {
			for _, partition := range partitions {
				if partition.Err != sarama.ErrNoError {
					return partition.Err, nil
				}
			}
		}
		return sarama.ErrNoError, nil
	})
	if err != nil {
		return fmt.Errorf("commit the offsets in the transaction: %w", err)
	}
	return nil
}

// end commits or aborts the transaction.
func (p *txnProducer) end(ctx context.Context, commit bool) error {
	err := p.call(ctx, p.transactions, func(b *sarama.Broker) (sarama.KError, error) {
		response, err := b.EndTxn(&sarama.EndTxnRequest{
			Version:           endTxnVersion,
			TransactionalID:   p.id,
			ProducerID:        p.identity.id,
			ProducerEpoch:     p.identity.epoch,
			TransactionResult: commit,
		})
		if err != nil {
			return 0, err
		}
		return response.Err, nil
	})
	if err != nil {
		return fmt.Errorf("end the transaction: %w", err)
	}
	return nil
}

// committed asks for the group's offsets of the partitions, when no transaction can change them any more.
func (p *txnProducer) committed(ctx context.Context, partitions []int32) (map[int32]int64, error) {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	var found map[int32]int64
	err := p.call(ctx, p.offsets, func(b *sarama.Broker) (sarama.KError, error) {
		request := sarama.NewOffsetFetchRequest(p.client.Config().Version, p.group, map[string][]int32{p.topic: partitions})
		request.RequireStable = p.holes&withoutStable == 0
		response, err := b.FetchOffset(request)
		if err != nil {
			return 0, err
		}
		if response.Err != sarama.ErrNoError {
			return response.Err, nil
		}
		found = map[int32]int64{}
		for _, partition := range partitions {
			block := response.GetBlock(p.topic, partition)
			if block == nil {
				return sarama.ErrUnknown, nil
			}
			if block.Err != sarama.ErrNoError {
				return block.Err, nil
			}
			found[partition] = block.Offset
		}
		return sarama.ErrNoError, nil
	})
	if err != nil {
		return nil, fmt.Errorf("ask for the group's offsets: %w", err)
	}
	return found, nil
}
