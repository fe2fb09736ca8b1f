// Package inbox defines how the claim's tables name events and keep messages. The claim and the operators' functions of dead
// letters share it.
package inbox

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
)

// maxID is the maximum length of an event ID, in bytes. IDs are indexed, in the effect ledger too, and an index entry of PostgreSQL has at
// most 2,704 bytes.
const maxID = 2000

// CheckID returns an error if the ID of an event cannot be stored.
func CheckID(id string) error {
	switch {
	case !IsText(id):
		return fmt.Errorf("the event ID %.40q is not UTF-8 without NUL bytes", id)
	case len(id) > maxID:
		return fmt.Errorf("the event ID %.40q… has %d bytes: want at most %d; have its producer send a shorter one, or set claim.Config.EventID in Go to a hash of it; then replay the event",
			id, len(id), maxID)
	}
	return nil
}

// Canonical returns the standard spelling of an event ID: a UUID in lower case.
func Canonical(id string) string {
	if u, err := uuid.Parse(id); err == nil && len(id) == 36 {
		return u.String()
	}
	return id
}

// Record returns the event's uuid in the tables, which determines the day of its record. A UUIDv7 is used as it is, and its record
// belongs to the day when it was minted. The uuid of a delayed event starts with the time when it was due instead, because the
// broker gets the event only then. For any other ID, the uuid is a hash that starts with ff, as no UUIDv7 does for the next eight
// thousand years. Record depends only on the message: every process must compute the same uuid at every delivery.
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

// Hash returns the uuid of an event without a day: the ID has no time, or its day was dropped or does not exist yet.
func Hash(eventID string) pgtype.UUID {
	h := sha256.Sum256([]byte(eventID))
	h[0] = 0xff
	return Stored([16]byte(h[:16]))
}

// Time returns when the event of a record was minted, or was due. It is unknown if the ID is not a UUIDv7.
func Time(record pgtype.UUID) (time.Time, bool) {
	return time.UnixMilli(millis(record.Bytes)), record.Bytes[0] != 0xff
}

func millis(id [16]byte) (ms int64) {
	for _, b := range id[:6] {
		ms = ms<<8 | int64(b)
	}
	return ms
}

// Stored returns an ID in the form that pgx sends fastest. It would send a uuid.UUID as text, which costs a tenth of a claim.
func Stored(id [16]byte) pgtype.UUID { return pgtype.UUID{Bytes: id, Valid: true} }

// Lock returns the advisory lock of a claim: the first 8 bytes of SHA-256 over event ID, consumer and schema. It has 64 bits,
// because 32-bit numbers collide among a few thousand claims. It includes the schema, because advisory locks belong to the whole
// database, and another service's consumer may have the same name. It must be the same in every process and in every language.
func Lock(schema, consumer, eventID string) int64 {
	h := sha256.Sum256([]byte(eventID + "\x00" + consumer + "\x00" + schema))
	return int64(binary.BigEndian.Uint64(h[:8]))
}

// maxOrderKey is the maximum length of a key that is stored unchanged, because keys are indexed.
const maxOrderKey = 500

// OrderKey returns a message's key as stored in the tables. A broker's keys may be any bytes of any length.
func OrderKey(key string) string {
	if IsText(key) && len(key) <= maxOrderKey {
		return key
	}
	h := sha256.Sum256([]byte(key))
	return "sha256:" + hex.EncodeToString(h[:])
}

// Silent is how long a process may be without a heartbeat before it counts as killed.
const Silent = 10 * time.Second
