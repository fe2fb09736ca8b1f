// Package crashguard finds events that end the relay that sends them. It decides which event a relay sends alone and which one it stops
// sending. It does no I/O, has no clock and starts no goroutine.
//
// An event may end the process that sends it: the publisher may crash or run out of memory over it. The next relay would end too, and so
// on. After two relays have ended while they held a shard, and none in between has passed (see [Guard.Passed]), the shard's events are sent
// one by one, only one at a time in the whole relay. Each is noted durably before it is sent. Over which event relays have ended is known
// until one of them survives it, whatever others they note before. An event that three relays had noted and were
// sending when they ended is set aside for a while. If another relay ends while it sends the event after that pause, the event is dead.
// The pause separates it from an event that was in flight by chance when something else ended the relays.
package crashguard

import (
	"time"

	"github.com/millrace-go/millrace/outbox/internal/step"
)

const (
	carefulDeaths = 2
	accusedDeaths = 3
)

// Guard holds what is known of the relays that ended while they held a shard. It is not safe for concurrent use.
type Guard struct {
	deaths        int
	careful       int // the number of events that are still sent one by one
	suspect       string
	suspectDeaths int
	deleted       time.Time // the first delete after the events that had to be sent alone; zero: none yet
}

// New returns the Guard of a shard that was taken. If enough relays ended while they held it, the next inFlight events are sent one by
// one.
func New(l step.Lease, inFlight int) Guard {
	g := Guard{deaths: l.Deaths, suspect: l.Suspect, suspectDeaths: l.SuspectDeaths}
	if g.deaths >= carefulDeaths || g.suspectDeaths > 0 {
		g.careful = inFlight
	}
	return g
}

// Deaths returns how many relays ended while they held the shard, according to its lease.
func (g *Guard) Deaths() int { return g.deaths }

// Careful reports whether events are sent one by one.
func (g *Guard) Careful() bool { return g.careful > 0 }

// Sends records that an event is about to be sent alone.
func (g *Guard) Sends() { g.careful = max(g.careful-1, 0) }

// Accuses reports whether an event must not be sent, because too many relays ended while they sent it: three, or one after its pause.
// paused says that the event has had its pause. If it is accused, Accuses forgets the deaths.
func (g *Guard) Accuses(eventID string, paused bool) (deaths int, accused bool) {
	deaths = g.suspectDeaths
	if eventID != g.suspect || deaths < accusedDeaths && (!paused || deaths == 0) {
		return 0, false
	}
	g.forget()
	return deaths, true
}

// Survived records that the relay still runs after it has sent an event alone.
func (g *Guard) Survived(eventID string) {
	if g.suspect == eventID {
		g.forget()
	}
}

// Deleted records that rows of published events were deleted.
func (g *Guard) Deleted(now time.Time) {
	if g.deaths > 0 && g.careful == 0 && g.deleted.IsZero() {
		g.deleted = now
	}
}

// Passed reports whether the recorded deaths should be cleared: all events that had to be sent alone are gone, others were deleted, and
// every batch that was in flight then has been answered. An event may end the relay some time after it was sent. oldest is when the oldest
// batch in flight was sent; zero: none is in flight.
func (g *Guard) Passed(oldest time.Time) bool {
	return !g.deleted.IsZero() && (oldest.IsZero() || oldest.After(g.deleted))
}

// Clear forgets everything, because no event of the shard ends its relay.
func (g *Guard) Clear() { *g = Guard{} }

func (g *Guard) forget() { g.suspect, g.suspectDeaths = "", 0 }
