// Package placeid makes an event ID from a message's position in a broker, for messages without one.
package placeid

import (
	"crypto/sha256"
	"time"

	"github.com/google/uuid"
)

// The bounds of a plausible publish time. No supported broker existed before the first. Times far in the future are in another unit, or
// mean "never". The bounds must never change, because event IDs depend on them.
var (
	first = time.Date(2011, 1, 1, 0, 0, 0, 0, time.UTC)
	last  = time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)
)

// Plausible reports whether a message can have been published then.
func Plausible(at time.Time) bool { return !at.Before(first) && at.Before(last) }

// Of returns the ID of a message published at a place: a UUIDv7 with that time, by which a claim partitions its records. If the time is
// not plausible, it returns the place, for which a claim uses the time of processing.
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
