package conn

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/IBM/sarama"

	"github.com/millrace-go/millrace/transport/kafka/internal/sequence"
)

// The versions of the requests in transactions of version 1. They are those of Apache Kafka 2.8, and later brokers answer them in the
// same way.
const (
	initProducerIDVersion  = 4
	addPartitionsVersion   = 3
	addOffsetsVersion      = 3
	txnOffsetCommitVersion = 3 // the first with generation and member
	endTxnVersion          = 3
)

// The versions of the requests in transactions of version 2 (KIP-890). sarama does not know them but can encode them, because their
// fields are those of the versions that it knows.
const (
	produceV2Version         = 12
	txnOffsetCommitV2Version = 5
	endTxnV2Version          = 5
)

// Producer identifies the producer whose transaction a request is about.
type Producer struct {
	ID string // the transactional ID
	sequence.Identity
	V2 bool // its transactions are of version 2: produce and offset requests add their partitions implicitly, and each end brings the next epoch
}

// version returns the version of a request in the producer's transactions.
func (p Producer) version(v1, v2 int16) int16 {
	if p.V2 {
		return v2
	}
	return v1
}

// A method of Link that sends a request returns the coordinator's answer as a code. After an error the request may have arrived.

// InitProducerID requests the producer's next identity. The brokers abort its transactions after timeout.
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

// AddPartitions adds partitions to the transaction. It returns a code for each.
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

// AddOffsets adds the group's offsets to the transaction.
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

// CommitOffsets commits offsets, by topic and partition, in the transaction, on behalf of the member. The coordinator refuses them if the
// member has lost its partitions.
func (l *Link) CommitOffsets(p Producer, group string, by Member, next map[string]map[int32]Position) (code sarama.KError, err error) {
	topics := map[string][]*sarama.PartitionOffsetMetadata{}
	for topic, positions := range next {
		for partition, at := range positions {
			topics[topic] = append(topics[topic], &sarama.PartitionOffsetMetadata{Partition: partition, Offset: at.Offset, LeaderEpoch: -1, Metadata: &at.Note})
		}
	}
	err = l.do(func(b *sarama.Broker) error {
		request := &sarama.TxnOffsetCommitRequest{
			Version:         p.version(txnOffsetCommitVersion, txnOffsetCommitV2Version),
			TransactionalID: p.ID,
			GroupID:         group,
			ProducerID:      p.Identity.ID,
			ProducerEpoch:   p.Epoch,
			GenerationID:    by.Generation,
			MemberID:        by.ID,
			GroupInstanceID: by.Instance,
			Topics:          topics,
		}
		wanted := request.Version
		response, err := b.TxnOffsetCommit(request)
		if err != nil {
			return err
		}
		if request.Version < wanted { // sarama uses a lower version if the broker does not know this one
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

// EndTransaction commits or aborts the transaction. next is the producer's identity after it.
func (l *Link) EndTransaction(p Producer, commit bool) (next sequence.Identity, code sarama.KError, err error) {
	next = p.Identity
	err = l.do(func(b *sarama.Broker) error {
		request := &sarama.EndTxnRequest{
			Version:           p.version(endTxnVersion, endTxnV2Version),
			TransactionalID:   p.ID,
			ProducerID:        p.Identity.ID,
			ProducerEpoch:     p.Epoch,
			TransactionResult: commit,
		}
		response, err := b.EndTxn(request)
		if request.Version < endTxnV2Version { // the broker no longer knows version 2
			if err == nil {
				code = response.Err
			}
			return err
		}
		if err != nil && !undecodable(err) { // the tap may hold the answer to another request: a login
			return err
		}
		answer, whole := l.tap.answer()
		if !whole {
			return errors.Join(err, errors.New("read the answer to EndTxn: it is not whole"))
		}
		next, code, err = readEndTxnV2(answer) // sarama cannot read it
		return err
	})
	return next, code, err
}

// undecodable reports whether an answer came that sarama cannot decode.
func undecodable(err error) bool {
	return errors.As(err, new(sarama.PacketDecodingError)) || errors.Is(err, sarama.ErrInsufficientData)
}

// readEndTxnV2 reads an answer to EndTxn in version 5, from its correlation ID on: the header's tags (none), the throttle time, the code,
// the producer's next ID and epoch, and tags.
func readEndTxnV2(answer []byte) (next sequence.Identity, code sarama.KError, err error) {
	const codeAt, idAt, epochAt, tagsAt = 9, 11, 19, 21
	if len(answer) <= tagsAt {
		return next, 0, fmt.Errorf("read the answer to EndTxn: it has %d bytes: %w", len(answer), sarama.ErrInsufficientData)
	}
	next.ID = int64(binary.BigEndian.Uint64(answer[idAt:]))
	next.Epoch = int16(binary.BigEndian.Uint16(answer[epochAt:]))
	return next, sarama.KError(binary.BigEndian.Uint16(answer[codeAt:])), nil
}

// featuresVersion is the first version of ApiVersions whose answer contains the cluster's features.
const featuresVersion = 3

// HasV2 reports whether the brokers have agreed on transactions of version 2, according to the coordinator. All of them then support the
// requests.
func (l *Link) HasV2() (has bool, err error) {
	err = l.do(func(b *sarama.Broker) error {
		response, err := b.ApiVersions(&sarama.ApiVersionsRequest{Version: featuresVersion, ClientSoftwareName: "millrace", ClientSoftwareVersion: "1"})
		if err != nil {
			return err
		}
		if code := sarama.KError(response.ErrorCode); code != sarama.ErrNoError {
			return code
		}
		has = slices.ContainsFunc(response.FinalizedFeatures, func(f sarama.FinalizedFeatureKey) bool {
			return f.Name == "transaction.version" && f.MaxVersionLevel >= 2
		})
		return nil
	})
	if err != nil {
		return false, fmt.Errorf("ask for the version of transactions: %w", err)
	}
	return has, nil
}

// Offsets returns the group's offsets of the partitions, by topic, with their notes. If stable is set, no transaction can change them any
// more.
func (l *Link) Offsets(group string, partitions map[string][]int32, stable bool) (offsets map[string]map[int32]Position, code sarama.KError, err error) {
	err = l.do(func(b *sarama.Broker) error {
		request := sarama.NewOffsetFetchRequest(l.client.Config().Version, group, partitions)
		request.RequireStable = stable
		response, err := b.FetchOffset(request)
		if err != nil {
			return err
		}
		offsets, code = map[string]map[int32]Position{}, response.Err
		for topic, numbers := range partitions {
			offsets[topic] = map[int32]Position{}
			for _, partition := range numbers {
				block := response.GetBlock(topic, partition)
				switch {
				case code != sarama.ErrNoError:
				case block == nil:
					code = sarama.ErrUnknown
				case block.Err != sarama.ErrNoError:
					code = block.Err
				default:
					offsets[topic][partition] = Position{Offset: block.Offset, Note: block.Metadata}
				}
			}
		}
		return nil
	})
	return offsets, code, err
}
