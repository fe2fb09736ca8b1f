package conn

import (
	"time"

	"github.com/IBM/sarama"

	"github.com/millrace-go/millrace/transport/kafka/internal/sequence"
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

// Producer is whose transaction a request is about.
type Producer struct {
	ID string // the transactional one
	sequence.Identity
}

// A method of Link that sends a request returns the coordinator's answer as a code. After an error nobody knows whether the
// request has arrived.

// InitProducerID asks for the producer's next identity. Its transactions are aborted after timeout.
func (l *Link) InitProducerID(p Producer, timeout time.Duration) (next sequence.Identity, code sarama.KError, err error) {
	err = l.do(func(b *sarama.Broker) error {
		response, err := b.InitProducerID(&sarama.InitProducerIDRequest{
			Version:            initProducerIDVersion,
			TransactionalID:    &p.ID,
			TransactionTimeout: timeout,
			ProducerID:         p.Identity.ID,
			ProducerEpoch:      p.Epoch,
		})
		if err == nil {
			next, code = sequence.Identity{ID: response.ProducerID, Epoch: response.ProducerEpoch}, response.Err
		}
		return err
	})
	return next, code, err
}

// AddPartitions makes partitions part of the transaction. It returns a code for each.
func (l *Link) AddPartitions(p Producer, partitions map[string][]int32) (codes map[string][]*sarama.PartitionError, err error) {
	err = l.do(func(b *sarama.Broker) error {
		response, err := b.AddPartitionsToTxn(&sarama.AddPartitionsToTxnRequest{
			Version:         addPartitionsVersion,
			TransactionalID: p.ID,
			ProducerID:      p.Identity.ID,
			ProducerEpoch:   p.Epoch,
			TopicPartitions: partitions,
		})
		if err == nil {
			codes = response.Errors
		}
		return err
	})
	return codes, err
}

// AddOffsets makes the group's offsets part of the transaction.
func (l *Link) AddOffsets(p Producer, group string) (code sarama.KError, err error) {
	err = l.do(func(b *sarama.Broker) error {
		response, err := b.AddOffsetsToTxn(&sarama.AddOffsetsToTxnRequest{
			Version:         addOffsetsVersion,
			TransactionalID: p.ID,
			ProducerID:      p.Identity.ID,
			ProducerEpoch:   p.Epoch,
			GroupID:         group,
		})
		if err == nil {
			code = response.Err
		}
		return err
	})
	return code, err
}

// CommitOffsets commits offsets of the topic in the transaction, on behalf of the member: the coordinator refuses them from
// one that has lost its partitions.
func (l *Link) CommitOffsets(p Producer, group, topic string, by Member, next map[int32]int64) (code sarama.KError, err error) {
	offsets := make([]*sarama.PartitionOffsetMetadata, 0, len(next))
	for partition, offset := range next {
		offsets = append(offsets, &sarama.PartitionOffsetMetadata{Partition: partition, Offset: offset, LeaderEpoch: -1})
	}
	err = l.do(func(b *sarama.Broker) error {
		request := &sarama.TxnOffsetCommitRequest{
			Version:         txnOffsetCommitVersion,
			TransactionalID: p.ID,
			GroupID:         group,
			ProducerID:      p.Identity.ID,
			ProducerEpoch:   p.Epoch,
			GenerationID:    by.Generation,
			MemberID:        by.ID,
			GroupInstanceID: by.Instance,
			Topics:          map[string][]*sarama.PartitionOffsetMetadata{topic: offsets},
		}
		response, err := b.TxnOffsetCommit(request)
		if err != nil {
			return err
		}
		if request.Version < txnOffsetCommitVersion { // sarama takes what the broker knows
			code = sarama.ErrUnsupportedVersion
			return nil
		}
		for _, partitions := range response.Topics {
			for _, partition := range partitions {
				if code == sarama.ErrNoError {
					code = partition.Err
				}
			}
		}
		return nil
	})
	return code, err
}

// EndTransaction commits or aborts the transaction.
func (l *Link) EndTransaction(p Producer, commit bool) (code sarama.KError, err error) {
	err = l.do(func(b *sarama.Broker) error {
		response, err := b.EndTxn(&sarama.EndTxnRequest{
			Version:           endTxnVersion,
			TransactionalID:   p.ID,
			ProducerID:        p.Identity.ID,
			ProducerEpoch:     p.Epoch,
			TransactionResult: commit,
		})
		if err == nil {
			code = response.Err
		}
		return err
	})
	return code, err
}

// Offsets returns the group's offsets of the topic's partitions. Stable ones no transaction can change any more.
func (l *Link) Offsets(group, topic string, partitions []int32, stable bool) (offsets map[int32]int64, code sarama.KError, err error) {
	err = l.do(func(b *sarama.Broker) error {
		request := sarama.NewOffsetFetchRequest(l.client.Config().Version, group, map[string][]int32{topic: partitions})
		request.RequireStable = stable
		response, err := b.FetchOffset(request)
		if err != nil {
			return err
		}
		offsets, code = map[int32]int64{}, response.Err
		for _, partition := range partitions {
			block := response.GetBlock(topic, partition)
			switch {
			case code != sarama.ErrNoError:
			case block == nil:
				code = sarama.ErrUnknown
			case block.Err != sarama.ErrNoError:
				code = block.Err
			default:
				offsets[partition] = block.Offset
			}
		}
		return nil
	})
	return offsets, code, err
}
