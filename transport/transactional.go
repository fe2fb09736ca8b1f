package transport

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"
)

// TransactionalPublisher is implemented by publishers whose broker commits messages to several topics together, and refuses
// what an earlier publisher of the same name still sends. An outbox's relay builds exactly-once publishing on it.
type TransactionalPublisher interface {
	message.Publisher

	// Transactions returns the transactions of that number under a name: letters, digits, ".", "_" and "-". It does not ask
	// the broker for anything. The caller closes them.
	Transactions(name string, number int) Transactions
}

// MaxNote is how many bytes a note may have.
const MaxNote = 1_000_000

// Transactions is one transaction after the other, each with messages and a note. One goroutine uses it at a time.
type Transactions interface {
	// Take ends what others of this name and number have begun: from its return on they commit nothing. It returns the note
	// of the last transaction that was committed, or nil where there was none. Call it first, and after each error of
	// Publish.
	Take(ctx context.Context) (note []byte, err error)

	// Publish commits msgs, in order, and the note in one transaction. It returns one result for each message. If all are nil,
	// it has committed. Otherwise it has published all or nothing, and Take and its note tell. A result that wraps ErrRejected
	// or ErrLimit is of a message that the broker refuses for what it is; if several have such a result, one of them may be
	// to blame for all. A note that the broker refuses is no message's fault. Where some results wrap
	// ErrNotSent, nothing was sent because of the others, and those messages can be published without them.
	Publish(ctx context.Context, topic string, msgs []*message.Message, note []byte) []error

	// Close releases connections.
	Close() error
}
