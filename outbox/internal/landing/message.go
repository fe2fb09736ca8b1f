package landing

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pglogrepl"

	"github.com/millrace-go/millrace/outbox/internal/entry"
	"github.com/millrace-go/millrace/outbox/internal/store"
)

const (
	// maxID is the longest ID that the indexes take in each of the outbox's tables; publishers allow no longer one.
	maxID = 255
	// maxTopic is the longest topic that they take.
	maxTopic = 2000
)

// landedOf returns the row of a message: its event, or a dead event if the message is not a valid event.
func landedOf(m message) store.LandedMessage {
	e, err := entry.Decode(m.content)
	if err == nil {
		err = check(e)
	}
	if err != nil {
		return badOf(m, e, err)
	}
	if len(e.Headers) == 0 {
		e.Headers = []byte("{}")
	}
	return store.LandedMessage{Hash: store.Hash(e.Key, e.ID), ID: e.ID, Topic: e.Topic, Key: e.Key, Headers: e.Headers, Payload: e.Payload, Committed: m.committed}
}

// badOf returns the dead event for a message that is no event. It has no topic, so a retry does not send it anywhere.
func badOf(m message, known entry.Entry, reason error) store.LandedMessage {
	id, topic := known.ID, ""
	if storable("ID", id, 1, maxID) != nil {
		id = "log-" + strings.ReplaceAll(pglogrepl.LSN(m.place).String(), "/", "-")
	}
	if storable("topic", known.Topic, 1, maxTopic) == nil {
		topic = " (topic " + known.Topic + ")"
	}
	return store.LandedMessage{
		Hash: store.Hash("", id), ID: id, Payload: m.content, Committed: m.committed,
		Bad: "a message in the WAL" + topic + " is not a valid event: " + strings.ToValidUTF8(strings.ReplaceAll(reason.Error(), "\x00", ""), ""),
	}
}

// check returns why the tables do not take the event.
func check(e entry.Entry) error {
	const unlimited = 1 << 30
	return errors.Join(storable("ID", e.ID, 1, maxID), storable("topic", e.Topic, 1, maxTopic), storable("key", e.Key, 0, unlimited))
}

func storable(what, s string, least, most int) error {
	switch {
	case len(s) < least || len(s) > most:
		return fmt.Errorf("the %s has %d bytes: want %d to %d", what, len(s), least, most)
	case !utf8.ValidString(s) || strings.ContainsRune(s, 0):
		return fmt.Errorf("the %s has a NUL byte or invalid UTF-8", what)
	}
	return nil
}

// show passes a message of pgoutput, version 1, to the core:
// https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html. Each transaction comes as a whole, after its commit.
func (c *core) show(prefix string, b []byte) error {
	if len(b) == 0 {
		return errFormat
	}
	switch kind, b := pglogrepl.MessageType(b[0]), b[1:]; kind {
	case pglogrepl.MessageTypeBegin: // the commit's place and time, and the transaction
		if len(b) < 16 {
			return errFormat
		}
		c.begin(binary.BigEndian.Uint64(b), epoch.Add(time.Duration(binary.BigEndian.Uint64(b[8:]))*time.Microsecond))
	case pglogrepl.MessageTypeCommit: // flags, the commit's place, its end, and its time
		if len(b) < 17 {
			return errFormat
		}
		c.complete(binary.BigEndian.Uint64(b[9:]))
	case pglogrepl.MessageTypeMessage: // flags, place, prefix, content
		if len(b) < 9 {
			return errFormat
		}
		name, rest, ok := bytes.Cut(b[9:], []byte{0})
		if !ok || len(rest) < 4 || uint64(len(rest)-4) < uint64(binary.BigEndian.Uint32(rest)) {
			return errFormat
		}
		if transactional := b[0]&1 != 0; transactional && string(name) == prefix {
			c.add(binary.BigEndian.Uint64(b[1:]), bytes.Clone(rest[4:4+binary.BigEndian.Uint32(rest)]))
		}
	default: // tables
	}
	return nil
}

var errFormat = errors.New("the stream has a message in an unknown format")

// epoch is when PostgreSQL's timestamps begin.
var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
