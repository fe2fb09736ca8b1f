package outbox

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/millrace-go/millrace/outbox/internal/step"
	"github.com/millrace-go/millrace/outbox/internal/store"
	"github.com/millrace-go/millrace/outbox/internal/term"
	"github.com/millrace-go/millrace/transport"
)

// errUnregistered is the result of events that were sent when a step of a migration to another broker may have been made without
// this relay. They say nothing against the events.
var errUnregistered = fmt.Errorf("%w: the relay was not registered all the time: the fleet may have gone to another broker meanwhile", transport.ErrUnavailable)

// registration tells whether what the relay publishes counts. A step of a migration to another broker waits for relays that are
// registered, and one that was suspended is not. It is safe for concurrent use.
type registration struct {
	broker string // RelayConfig.Broker; "": all counts

	mu        sync.Mutex
	term      term.Term
	elsewhere bool // the fleet publishes to another broker
}

// renewed takes the answer to a renewal, which registers the relay for so long. It returns an error where the relay has to end.
func (g *registration) renewed(in step.Renewed, ttl time.Duration, now time.Time) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case errors.Is(in.Err, store.ErrElsewhere):
		g.elsewhere = true
		return in.Err
	case in.Err == nil:
		g.term.Renew(in.Began.Add(ttl), now)
	}
	return nil
}

// begin reports whether a batch may be sent, and the term in which.
func (g *registration) begin(now time.Time) (term int, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.term.Number(), g.broker == "" || !g.elsewhere && !g.term.Over(now)
}

// counts reports whether what was sent in that term counts as published.
func (g *registration) counts(term int, now time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.broker == "" || g.term.Lasts(term, now)
}
