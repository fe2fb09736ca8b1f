// Package placeid makes the ID of an event of the place where a broker keeps it, for messages that carry none.
package placeid

import (
	"crypto/sha256"
	"time"

	"github.com/google/uuid"
)

// The bounds of a time that can be when a message was published: before the first no broker that we know was there, and
// what is far ahead was counted in other units, or stands for never. They never move, because an event's ID must not.
var (
	first = time.Date(2011, 1, 1, 0, 0, 0, 0, time.UTC)
	last  = time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)
)

// Plausible tells whether a message can have been published then.
func Plausible(at time.Time) bool { return !at.Before(first) && at.Before(last) }

// Of returns the ID of what was published in a place: a UUIDv7 with that time, by which a claim keeps its record. Without a
// plausible time it is the place itself, which a claim keeps by the time when it was processed.
func Of(place string, at time.Time) string {
	if !Plausible(at) {
		return place
	}
	h := sha256.Sum256([]byte(place))
	id := uuid.UUID(h[:16])
	for i := range 6 {
		id[i] = byte(at.UnixMilli() >> (8 * (5 - i)))
	}
	id[6] = id[6]&0x0f | 0x70 // version 7
	id[8] = id[8]&0x3f | 0x80 // the variant of RFC 9562
	return id.String()
}
