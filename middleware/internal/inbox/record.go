// Package inbox knows how the claim's tables name events and keep messages: what the claim and the operators' functions of dead
// letters have in common.
package inbox

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
)

// Canonical is the one spelling of an event's ID: a UUID in lower case.
func Canonical(id string) string {
	if u, err := uuid.Parse(id); err == nil && len(id) == 36 {
		return u.String()
	}
	return id
}

// Record is the event as a uuid, which tells the day of its record: a UUIDv7 is its own, whose record lies in the day
// in which it was minted. A delayed event's begins with the time when it was due instead, because the broker gets it only
// then. For any other ID it is a hash that begins with ff, which no UUIDv7 of the next eight thousand years does. It is a
// function of nothing but what travels in the message: every process must compute the same at every delivery.
func Record(eventID string, due time.Time) pgtype.UUID {
	id, err := uuid.Parse(eventID)
	if err != nil || len(eventID) != 36 || id.Version() != 7 || id.Variant() != uuid.RFC4122 || id[0] == 0xff {
		return Hash(eventID)
	}
	ms := due.UnixMilli()
	if due.IsZero() || ms <= millis(id) || ms >= 0xff<<40 {
		return Stored(id)
	}
	h := sha256.Sum256([]byte(eventID))
	for i := range 6 {
		h[i] = byte(ms >> (8 * (5 - i)))
	}
	return Stored([16]byte(h[:16]))
}

// Hash is the record of an event that has no day: its ID tells none, or that day is gone, or too far away.
func Hash(eventID string) pgtype.UUID {
	h := sha256.Sum256([]byte(eventID))
	h[0] = 0xff
	return Stored([16]byte(h[:16]))
}

// Time is when the event of a record was minted, or due. It is unknown where the ID is no UUIDv7.
func Time(record pgtype.UUID) (time.Time, bool) {
	return time.UnixMilli(millis(record.Bytes)), record.Bytes[0] != 0xff
}

func millis(id [16]byte) (ms int64) {
	for _, b := range id[:6] {
		ms = ms<<8 | int64(b)
	}
	return ms
}

// Stored is an ID as pgx sends it without a detour: a uuid.UUID goes through its text, which costs a tenth of a claim.
func Stored(id [16]byte) pgtype.UUID { return pgtype.UUID{Bytes: id, Valid: true} }

// Lock is the advisory lock of a claim: the first 8 bytes of SHA-256 over event ID, consumer and schema: 64 bits, because 32
// collide among a few thousand claims; the schema, because advisory locks belong to the whole database and another service's
// consumer may have the same name. It must be the same in every process, whatever it is written in.
func Lock(schema, consumer, eventID string) int64 {
	h := sha256.Sum256([]byte(eventID + "\x00" + consumer + "\x00" + schema))
	return int64(binary.BigEndian.Uint64(h[:8]))
}

// maxOrderKey is how long a key may be that stands in an index as it is.
const maxOrderKey = 500

// OrderKey is a message's key as it stands in the tables. Keys of a broker may be any bytes, of any length.
func OrderKey(key string) string {
	if IsText(key) && len(key) <= maxOrderKey {
		return key
	}
	h := sha256.Sum256([]byte(key))
	return "sha256:" + hex.EncodeToString(h[:])
}

// Silent is after which time without a heartbeat a process counts as killed.
const Silent = 10 * time.Second
