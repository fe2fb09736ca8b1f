// Package entry encodes events as the contents of logical messages in the write-ahead log (WAL).
package entry

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Version is the first byte of an encoded event.
const Version = 1

// Prefix is the prefix of the schema's messages.
func Prefix(schema string) string { return schema + "_outbox" }

// Entry is an event that Encode and Decode convert.
type Entry struct {
	ID, Topic, Key   string
	Headers, Payload []byte // headers are JSON, as in the outbox's rows
}

// Encode returns the content: the version, then each field with its length before it.
func (e Entry) Encode() []byte {
	size := 1 + 5*binary.MaxVarintLen32 + len(e.ID) + len(e.Topic) + len(e.Key) + len(e.Headers) + len(e.Payload)
	b := append(make([]byte, 0, size), Version)
	b = add(b, e.ID)
	b = add(b, e.Topic)
	b = add(b, e.Key)
	b = add(b, e.Headers)
	return add(b, e.Payload)
}

func add[T string | []byte](b []byte, field T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(field))), field...)
}

var errShort = errors.New("the message is cut off")

// Decode decodes an event. Its Headers and Payload share memory with b and are never nil.
func Decode(b []byte) (Entry, error) {
	switch {
	case len(b) == 0:
		return Entry{}, errShort
	case b[0] != Version:
		return Entry{}, fmt.Errorf("the message has version %d, and this program knows version %d", b[0], Version)
	}
	b = b[1:]
	var fields [5][]byte
	for i := range fields {
		n, used := binary.Uvarint(b)
		if used <= 0 || n > uint64(len(b)-used) {
			return Entry{}, errShort
		}
		end := used + int(n)
		fields[i], b = b[used:end:end], b[end:]
	}
	if len(b) > 0 {
		return Entry{}, fmt.Errorf("the message has %d bytes too many", len(b))
	}
	return Entry{ID: string(fields[0]), Topic: string(fields[1]), Key: string(fields[2]), Headers: fields[3], Payload: fields[4]}, nil
}
