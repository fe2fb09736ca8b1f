package claim

import (
	"crypto/sha256"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/millrace-go/millrace/outbox"
)

// dueTime is when a delayed event was due, as the outbox wrote it; zero for any other.
func dueTime(msg *message.Message) time.Time {
	const layout = "2006-01-02T15:04:05.000000Z"
	text := msg.Metadata.Get(outbox.DueMetadata)
	due, err := time.Parse(layout, text)
	if err != nil || due.Format(layout) != text { // Parse forgives
		return time.Time{}
	}
	return due
}

// canonical is the one spelling of an event's ID: a UUID in lower case.
func canonical(id string) string {
	if u, err := uuid.Parse(id); err == nil && len(id) == 36 {
		return u.String()
	}
	return id
}

func canonicals(ids []string) []string {
	all := make([]string, len(ids))
	for i, id := range ids {
		all[i] = canonical(id)
	}
	return all
}

// recordID is the event as a uuid, which tells the day of its record: a UUIDv7 is its own, whose record lies in the day
// in which it was minted. A delayed event's begins with the time when it was due instead, because the broker gets it only
// then. For any other ID it is a hash that begins with ff, which no UUIDv7 of the next eight thousand years does. It is a
// function of nothing but what travels in the message: every process must compute the same at every delivery.
func recordID(k Key) pgtype.UUID {
	id, err := uuid.Parse(k.EventID)
	if err != nil || len(k.EventID) != 36 || id.Version() != 7 || id.Variant() != uuid.RFC4122 || id[0] == 0xff {
		return hashedID(k)
	}
	due := k.Due.UnixMilli()
	if k.Due.IsZero() || due <= uuidMillis(id) || due >= 0xff<<40 {
		return stored(id)
	}
	h := sha256.Sum256([]byte(k.EventID))
	for i := range 6 {
		h[i] = byte(due >> (8 * (5 - i)))
	}
	return stored([16]byte(h[:16]))
}

// hashedID is the record of an event that has no day: its ID tells none, or that day is gone, or too far away.
func hashedID(k Key) pgtype.UUID {
	h := sha256.Sum256([]byte(k.EventID))
	h[0] = 0xff
	return stored([16]byte(h[:16]))
}

// recordTime is when the event was minted, or due. It is unknown where the ID is no UUIDv7.
func recordTime(k Key) (time.Time, bool) { return timeOf(recordID(k)) }

func timeOf(id pgtype.UUID) (time.Time, bool) {
	return time.UnixMilli(uuidMillis(id.Bytes)), id.Bytes[0] != 0xff
}

func uuidMillis(id [16]byte) (ms int64) {
	for _, b := range id[:6] {
		ms = ms<<8 | int64(b)
	}
	return ms
}

// stored is an ID as pgx sends it without a detour: a uuid.UUID goes through its text, which costs a tenth of a claim.
func stored(id [16]byte) pgtype.UUID { return pgtype.UUID{Bytes: id, Valid: true} }
