package kafka

import (
	"log/slog"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka/internal/produce"
	"github.com/millrace-go/millrace/transport/kafka/internal/txn"
)

// progressTopic is the beginning of the names of topics that hold notes.
const progressTopic = "millrace.progress."

// plainPublisher is what PlainPublisher returns.
type plainPublisher struct {
	*produce.Publisher
	transport *Transport
}

var (
	_ transport.BatchPublisher         = plainPublisher{}
	_ transport.TransactionalPublisher = plainPublisher{}
)

// Transactions implements transport.TransactionalPublisher. Their transactional ID is "<Transaction.IDPrefix>-<name>-<number>",
// and the brokers abort after Transaction.Timeout what a dead process has begun. The notes are in the compacted topic
// "millrace.progress.<name>", one key for each number; it is created as Config.Topics.Missing says, with 16 partitions. Each of
// them has connections of its own.
func (p plainPublisher) Transactions(name string, number int) transport.Transactions {
	t := p.transport
	c := t.config.transactions()
	c.Topic = progressTopic + name
	c.Log = t.log.With(slog.String("transactions", name), slog.Int("number", number))
	return txn.NewNoted(t.life, t.cluster, t.topics, t.notes, t.publisher, c, name, number)
}
