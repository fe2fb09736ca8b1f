package outbox

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/outbox/internal/store"
	"github.com/millrace-go/millrace/transport"
)

// stored is an event as it is stored.
type stored struct {
	hash    int64
	id      string
	topic   string
	key     string
	headers []byte // JSON
	payload []byte // shared with the message, unless the event waits for the commit
	delay   int64  // in microseconds
}

func newStored(topic string, m *message.Message, delay int64) (stored, error) {
	metadata := m.Metadata
	key := transport.Key(m)
	delete(metadata, transport.KeyMetadata) // the key has its own column
	if delay > 0 {
		delete(metadata, DueMetadata) // added when the event is due
	}
	headers := []byte("{}")
	if len(metadata) > 0 {
		var err error
		if headers, err = json.Marshal(metadata); err != nil {
			return stored{}, err
		}
	}
	e := stored{hash: store.Hash(key, m.UUID), id: m.UUID, topic: topic, key: key, headers: headers, payload: m.Payload, delay: delay}
	if e.payload == nil {
		e.payload = []byte{} // nil would be NULL in SQL
	}
	return e, nil
}

// undelayed counts the events that enter the outbox without a delay.
func undelayed(events []stored) (n int64) {
	for _, e := range events {
		if e.delay == 0 {
			n++
		}
	}
	return n
}

// columns are the arguments of the insert.
type columns struct {
	hash             []int64
	id, topic, key   []string
	headers, payload [][]byte
	delay            []int64
	delayed          bool // at least one event is delayed
}

func columnsOf(events []stored) columns {
	n := len(events)
	c := columns{
		hash: make([]int64, n), id: make([]string, n), topic: make([]string, n), key: make([]string, n),
		headers: make([][]byte, n), payload: make([][]byte, n), delay: make([]int64, n),
	}
	for i, e := range events {
		c.hash[i], c.id[i], c.topic[i], c.key[i], c.headers[i], c.payload[i] = e.hash, e.id, e.topic, e.key, e.headers, e.payload
		c.delay[i], c.delayed = e.delay, c.delayed || e.delay > 0
	}
	return c
}

func (c columns) args() []any {
	if len(c.hash) == 1 && !c.delayed {
		return c.one()
	}
	args := []any{c.hash, c.id, c.topic, c.key, c.headers, c.payload}
	if c.delayed {
		args = append(args, c.delay)
	}
	return args
}

// literals returns the same arguments for database/sql drivers, which have no arrays.
func (c columns) literals() []any {
	if len(c.hash) == 1 && !c.delayed {
		return c.one()
	}
	literals := []any{
		arrayLiteral(c.hash, decimal), arrayLiteral(c.id, quote), arrayLiteral(c.topic, quote), arrayLiteral(c.key, quote),
		arrayLiteral(c.headers, quoteBytes), arrayLiteral(c.payload, quoteBytes),
	}
	if c.delayed {
		literals = append(literals, arrayLiteral(c.delay, decimal))
	}
	return literals
}

// one returns the arguments for a single event.
func (c columns) one() []any {
	return []any{c.hash[0], c.id[0], c.topic[0], c.key[0], c.headers[0], c.payload[0]}
}

// arrayLiteral returns PostgreSQL's text form of an array.
func arrayLiteral[T any](values []T, element func(T) string) string {
	var b strings.Builder
	b.WriteByte('{')
	for i, v := range values {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(element(v))
	}
	b.WriteByte('}')
	return b.String()
}

var arrayEscapes = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

func decimal(n int64) string { return strconv.FormatInt(n, 10) }

func quote(s string) string { return `"` + arrayEscapes.Replace(s) + `"` }

func quoteBytes(b []byte) string { return `"\\x` + hex.EncodeToString(b) + `"` }

// CauseMetadata is the metadata entry with the ID of the event whose handler published this event under a claim. Publish sets it and
// overwrites a value that the handler copied. Publish omits it if only this entry would exceed PublisherConfig.Limits, or if the
// ID is longer than 255 bytes.
const CauseMetadata = "millrace_cause"

type causeKey struct{}

// WithCause returns a context for handling the event with this ID: events that are published with the context get the ID as
// CauseMetadata. A claim.Claim calls it.
func WithCause(ctx context.Context, eventID string) context.Context {
	return context.WithValue(ctx, causeKey{}, eventID)
}

// CauseFrom returns the ID of the event that is handled in this context, or "" if there is none.
func CauseFrom(ctx context.Context) string {
	id, _ := ctx.Value(causeKey{}).(string)
	return id
}
