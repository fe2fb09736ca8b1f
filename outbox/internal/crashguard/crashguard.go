// Package crashguard decides which event a relay sends alone, and which one it sends no more because its relays end. It does no I/O, has
// no clock and starts no goroutine.
//
// An event may end the process that sends it: a publisher that crashes or runs out of memory over it. Its successor would end too, and
// so on. After two relays ended while they held a shard, and nothing was deleted between, its events are sent one by one, in the whole
// relay one at a time. Each is noted durably before it is sent. An event that three relays had noted and were sending when they ended is
// set aside for a while, and is dead if one more relay ends while it sends it then. The pause tells it from an event that was being sent
// by chance when something else ended the relays.
package crashguard

import "github.com/millrace-go/millrace/outbox/internal/step"

const (
	carefulDeaths = 2
	accusedDeaths = 3
)

// Guard is what is known of the relays that ended over a shard. One goroutine uses it.
type Guard struct {
	deaths        int
	careful       int // so many events are still sent one by one
	suspect       string
	suspectDeaths int
}

// New returns the Guard of a shard that was taken. If relays ended over the shard, as many events as may be in flight are sent one by
// one.
func New(l step.Lease, inFlight int) Guard {
	g := Guard{deaths: l.Deaths, suspect: l.Suspect, suspectDeaths: l.SuspectDeaths}
	if g.deaths >= carefulDeaths || g.suspectDeaths > 0 {
		g.careful = inFlight
	}
	return g
}

// Deaths is how many relays ended over the shard, as its lease says.
func (g *Guard) Deaths() int { return g.deaths }

// Careful reports whether events are sent one by one.
func (g *Guard) Careful() bool { return g.careful > 0 }

// Suspect is the event that is sent before all others; "": there is none. The note of another event would wipe out how many relays
// ended over it.
func (g *Guard) Suspect() string {
	if g.suspectDeaths == 0 || g.careful == 0 {
		return ""
	}
	return g.suspect
}

// Sends notes that an event's turn has come to be sent alone.
func (g *Guard) Sends() { g.careful = max(g.careful-1, 0) }

// Accuses reports whether an event is not sent, because so many relays ended while they sent it: three, or one after its pause, which
// paused says. It forgets them then.
func (g *Guard) Accuses(eventID string, paused bool) (deaths int, accused bool) {
	deaths = g.suspectDeaths
	if eventID != g.suspect || deaths < accusedDeaths && (!paused || deaths == 0) {
		return 0, false
	}
	g.forget()
	return deaths, true
}

// Survived notes that the relay is still there after it sent an event alone.
func (g *Guard) Survived(eventID string) {
	if g.suspect == eventID {
		g.forget()
	}
}

// Passed reports whether what is recorded of the relays that ended is to be cleared after a delete: all that was sent alone is gone.
func (g *Guard) Passed() bool { return g.deaths > 0 && g.careful == 0 }

// Clear forgets everything, because nothing in the shard ends its relay.
func (g *Guard) Clear() { *g = Guard{} }

func (g *Guard) forget() { g.suspect, g.suspectDeaths = "", 0 }
