package outbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
)

// ErrNoTransaction is returned by Publish for a message whose context carries no transaction. An event published
// without one would be lost, or sent although the business change was rolled back.
var ErrNoTransaction = errors.New("no transaction in the message's context: publish inside " +
	"pgtx.Run(ctx, pool, func(ctx context.Context, tx pgx.Tx) error { … }) and build the message with " +
	"message.NewMessageWithContext(ctx, outbox.NewID(), payload), or put a transaction of your own there with pgtx.With")

// ErrInvalidMessage is wrapped by Publish's error for a message that no relay could forward. The transaction is still
// usable; nothing of the call was written.
var ErrInvalidMessage = errors.New("invalid message")

// maxIDBytes keeps an event ID shorter than what every broker and index takes.
const maxIDBytes = 255

// PublisherConfig configures a Publisher. Its zero value is ready for use.
type PublisherConfig struct {
	// Schema of the outbox's tables. Default: "millrace".
	Schema string

	// Limits of the broker that the relay publishes to; transports export theirs. A message beyond them is refused,
	// where the business transaction can still react. Default: transport.DefaultLimits.
	Limits transport.Limits
}

// Publisher writes events in the transaction that the message's context carries. It implements message.Publisher and is
// safe for concurrent use, as far as the transactions are.
type Publisher struct {
	schema string
	limits transport.Limits
	insert string
}

// NewPublisher returns a publisher. It needs no connection of its own.
func NewPublisher(cfg PublisherConfig) (*Publisher, error) {
	schema, err := pgschema.Validate(cfg.Schema)
	if err != nil {
		return nil, fmt.Errorf("outbox publisher: PublisherConfig.%w", err)
	}
	if cfg.Limits.IsZero() {
		cfg.Limits = transport.DefaultLimits
	}
	return &Publisher{schema: schema, limits: cfg.Limits, insert: pgschema.Query(files, "insert", schema)}, nil
}

// Publish writes the messages, in their order, with one statement; zero messages are no statement. All of them must
// carry the same transaction. The relay forwards them once it has been committed. When the transaction was begun by
// pgtx.Run, relays are woken right after its commit.
func (p *Publisher) Publish(topic string, msgs ...*message.Message) error {
	if len(msgs) == 0 {
		return nil
	}
	tx, err := p.transaction(topic, msgs)
	if err != nil {
		return fmt.Errorf("publish to the outbox: %w", err)
	}
	n := len(msgs)
	hash, ids, topics, keys := make([]int64, n), make([]string, n), make([]string, n), make([]string, n)
	headers, payloads := make([][]byte, n), make([][]byte, n)
	for i, m := range msgs {
		key := transport.Key(m)
		hash[i], ids[i], topics[i], keys[i] = hashOf(key, m.UUID), m.UUID, topic, key
		if headers[i], err = encodeHeaders(m.Metadata); err != nil {
			return fmt.Errorf("publish to the outbox: %w", err)
		}
		if payloads[i] = m.Payload; m.Payload == nil {
			payloads[i] = []byte{} // nil would be NULL
		}
	}
	ctx := msgs[0].Context()
	if _, err := tx.Exec(ctx, p.insert, hash, ids, topics, keys, headers, payloads); err != nil {
		return fmt.Errorf("publish to the outbox: %w", migrationHint(err))
	}
	pgtx.AfterCommit(ctx, func() { wakeUp(p.schema) })
	return nil
}

// Close does nothing: the transactions are their owners'.
func (p *Publisher) Close() error { return nil }

// transaction checks all messages and returns the transaction that they share.
func (p *Publisher) transaction(topic string, msgs []*message.Message) (pgx.Tx, error) {
	var (
		tx   pgx.Tx
		errs []error
	)
	for i, m := range msgs {
		if m == nil {
			return nil, fmt.Errorf("message %d of %d is nil", i+1, len(msgs))
		}
		t, ok := pgtx.From(m.Context())
		switch {
		case !ok:
			return nil, fmt.Errorf("message %d of %d (ID %q): %w", i+1, len(msgs), m.UUID, ErrNoTransaction)
		case i > 0 && t != tx:
			return nil, fmt.Errorf("message %d of %d (ID %q) carries another transaction than the first: publish them in calls of their own", i+1, len(msgs), m.UUID)
		}
		tx = t
		if err := p.check(topic, m); err != nil {
			errs = append(errs, fmt.Errorf("message %d of %d (ID %.40q): %w: %w", i+1, len(msgs), m.UUID, ErrInvalidMessage, err))
		}
	}
	return tx, errors.Join(errs...)
}

func (p *Publisher) check(topic string, m *message.Message) error {
	var errs []error
	if topic == "" || !utf8.ValidString(topic) || strings.ContainsRune(topic, 0) { // whatever the limits say
		errs = append(errs, fmt.Errorf("topic %q is empty or not UTF-8 without NUL bytes", topic))
	}
	switch {
	case m.UUID == "":
		errs = append(errs, errors.New("the message has no ID: build it with message.NewMessage(outbox.NewID(), payload)"))
	case len(m.UUID) > maxIDBytes:
		errs = append(errs, fmt.Errorf("the ID is %d bytes long, the limit is %d", len(m.UUID), maxIDBytes))
	}
	return errors.Join(append(errs, transport.CheckText(m), p.limits.Check(topic, m))...)
}

func encodeHeaders(md message.Metadata) ([]byte, error) {
	h := make(map[string]string, len(md))
	for k, v := range md {
		if k != transport.KeyMetadata { // it has a column of its own
			h[k] = v
		}
	}
	return json.Marshal(h)
}

// migrationHint says what to do where PostgreSQL only says that a relation does not exist.
func migrationHint(err error) error {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && (pgErr.Code == "42P01" || pgErr.Code == "3F000") {
		return fmt.Errorf("the outbox's tables are missing: run outbox.Migrate first: %w", err)
	}
	return err
}
