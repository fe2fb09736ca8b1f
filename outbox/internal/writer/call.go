package writer

import (
	"encoding/hex"
	"iter"
	"strconv"
	"strings"

	"github.com/millrace-go/millrace/outbox/internal/entry"
)

// Event is an event as it is written.
type Event struct {
	Hash           int64
	ID, Topic, Key string
	Headers        []byte // JSON
	Payload        []byte // shared with the message, unless the event waits for the commit
	Delay          int64  // in microseconds
}

// call is a statement with its arguments: those for pgx, and the same as literals for drivers of database/sql, which have no arrays.
type call struct {
	sql            string
	args, literals func() []any
}

// calls returns the statements that write the events.
func (w Writer) calls(events []Event) iter.Seq[call] {
	return func(yield func(call) bool) {
		for part := range parts(events) {
			rows, messages := part, contents(nil)
			if w.toWAL {
				rows, messages = split(part)
			}
			if len(messages) > 0 && !yield(w.emitCall(messages)) || len(rows) > 0 && !yield(w.insertCall(columnsOf(rows))) {
				return
			}
		}
	}
}

// split returns the events that are stored as rows, and the contents of the others' messages.
func split(events []Event) (rows []Event, messages contents) {
	for _, e := range events {
		if e.Delay > 0 {
			rows = append(rows, e)
		} else {
			messages = append(messages, entry.Entry{ID: e.ID, Topic: e.Topic, Key: e.Key, Headers: e.Headers, Payload: e.Payload}.Encode())
		}
	}
	return rows, messages
}

// contents are encoded events, one for each logical message.
type contents [][]byte

func (w Writer) emitCall(c contents) call {
	if len(c) == 1 {
		one := func() []any { return []any{c[0]} }
		return call{w.emitOne, one, one}
	}
	return call{w.emit, func() []any { return []any{[][]byte(c)} }, func() []any { return []any{arrayLiteral(c, quoteBytes)} }}
}

func (w Writer) insertCall(c columns) call {
	switch {
	case c.delayed:
		return call{w.insertDelayed, c.args, c.literals}
	case len(c.hash) == 1:
		return call{w.insertOne, c.one, c.one}
	}
	return call{w.insert, c.args, c.literals}
}

// maxStatementBytes keeps a statement far below PostgreSQL's limit of 1 GB, even when bytes are sent as hexadecimal.
const maxStatementBytes = 64 << 20

// parts splits the events into one part per statement. Only very large transactions need more than one.
func parts(events []Event) iter.Seq[[]Event] {
	return func(yield func([]Event) bool) {
		first, size := 0, 0
		for i, e := range events {
			n := len(e.Payload) + len(e.Headers)
			if size += n; size > maxStatementBytes && i > first {
				if !yield(events[first:i]) {
					return
				}
				first, size = i, n
			}
		}
		yield(events[first:])
	}
}

// columns are the arguments of the insert.
type columns struct {
	hash             []int64
	id, topic, key   []string
	headers, payload [][]byte
	delay            []int64
	delayed          bool // at least one event is delayed
}

func columnsOf(events []Event) columns {
	n := len(events)
	c := columns{
		hash: make([]int64, n), id: make([]string, n), topic: make([]string, n), key: make([]string, n),
		headers: make([][]byte, n), payload: make([][]byte, n), delay: make([]int64, n),
	}
	for i, e := range events {
		c.hash[i], c.id[i], c.topic[i], c.key[i], c.headers[i], c.payload[i] = e.Hash, e.ID, e.Topic, e.Key, e.Headers, e.Payload
		c.delay[i], c.delayed = e.Delay, c.delayed || e.Delay > 0
	}
	return c
}

func (c columns) args() []any {
	args := []any{c.hash, c.id, c.topic, c.key, c.headers, c.payload}
	if c.delayed {
		args = append(args, c.delay)
	}
	return args
}

func (c columns) literals() []any {
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

// Numbers returns PostgreSQL's text form of an array of numbers.
func Numbers(values []int64) string { return arrayLiteral(values, decimal) }

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
