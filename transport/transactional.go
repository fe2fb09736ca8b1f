package transport

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"
)

// TransactionalPublisher is implemented by publishers whose broker commits messages to several topics together and refuses
// messages that an earlier publisher with the same name sends late. An outbox's relay builds exactly-once publishing on it.
type TransactionalPublisher interface {
	message.Publisher

	// Transactions returns the transactions with this name and number. The name has letters, digits, ".", "_" and "-". The call
	// sends no request to the broker. The caller closes the result.
	Transactions(name string, number int) Transactions
}

// MaxNote is the maximum size of a note in bytes.
const MaxNote = 1_000_000

// Transactions runs one transaction after another, each with messages and a note. Only one goroutine may use it at a time.
type Transactions interface {
	// Take fences other users of this name and number: after it returns, they can commit nothing. It returns the note of the last
	// committed transaction, or nil if there is none. Call Take first, and after each error of Publish.
	Take(ctx context.Context) (note []byte, err error)

	// Publish commits msgs, in order, and the note in one transaction. It returns one result for each message. If all results are
	// nil, the transaction has committed. Otherwise either everything or nothing was published; call Take and compare its note to
	// find out. A result that wraps ErrRejected or ErrLimit belongs to a message that the broker refuses because of the message
	// itself. If several results do so, a single message may be the cause of all. If the broker refuses the note, no message gets
	// such a result. If some results wrap ErrNotSent, nothing was sent because of the other messages, and the messages with
	// ErrNotSent can be published without them.
	Publish(ctx context.Context, topic string, msgs []*message.Message, note []byte) []error

	// Close releases the connections.
	Close() error
}

// JointTransactions are Transactions that commit messages to several topics together.
type JointTransactions interface {
	Transactions

	// PublishTo is Publish, with a topic for each message.
	PublishTo(ctx context.Context, topics []string, msgs []*message.Message, note []byte) []error
}
