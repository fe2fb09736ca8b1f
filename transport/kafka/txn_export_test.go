package kafka

import "github.com/millrace-go/millrace/transport/kafka/internal/txn"

// What a transaction can be left without.
const (
	WithoutMember = txn.WithoutMember
	WithoutStable = txn.WithoutStable
	WithoutEpoch  = txn.WithoutEpoch
	WithoutV2     = txn.WithoutV2
)

// NotePartitions is how many partitions a topic of notes has.
const NotePartitions = txn.NotePartitions

// Without leaves something out of transactions, to see that a test notices.
func Without(c Config, what txn.Omission) Config {
	c.Transaction.without |= what
	return c
}
