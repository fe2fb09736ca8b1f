// Package crashguard finds events that end the relay that sends them. It decides which event a relay sends alone and which one it stops
// sending. It does no I/O, has no clock and starts no goroutine.
//
// An event may end the process that sends it: the publisher may crash or run out of memory over it. The next relay would end too, and so
// on. After two relays have ended while they held a shard, and no row was deleted in between, the shard's events are sent one by one,
// only one at a time in the whole relay. Each is recorded durably before it is sent. An event that three relays had recorded and were
// sending when they ended is set aside for a while. If another relay ends while it sends the event after that pause, the event is dead.
// The pause separates it from an event that was in flight by chance when something else ended the relays.
package crashguard

import "github.com/millrace-go/millrace/outbox/internal/step"

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

// Suspect returns the event that must be sent before all others, or "". If another event were recorded first, the record of how many
// relays ended while they sent this one would be lost.
func (g *Guard) Suspect() string {
	if g.suspectDeaths == 0 || g.careful == 0 {
		return ""
	}
	return g.suspect
}

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

// Passed reports whether the recorded deaths should be cleared after a delete: all events that had to be sent alone are gone.
func (g *Guard) Passed() bool { return g.deaths > 0 && g.careful == 0 }

// Clear forgets everything, because no event of the shard ends its relay.
func (g *Guard) Clear() { *g = Guard{} }

func (g *Guard) forget() { g.suspect, g.suspectDeaths = "", 0 }
