// Package registration decides whether what a relay publishes counts while the fleet may change its broker.
package registration

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

// ErrUnregistered is the result for events that this relay sent while it may not have been registered, so that a migration to
// another broker may have taken a step without it. It does not count against the events.
var ErrUnregistered = fmt.Errorf("%w: the relay was not registered all the time: the fleet may have gone to another broker meanwhile", transport.ErrUnavailable)

// Registration says whether what the relay publishes counts. A migration to another broker waits only for registered relays, and
// a relay that was suspended may have lost its registration. It is safe for concurrent use.
type Registration struct {
	Broker string // the configured name of the broker; if "", everything counts

	mu        sync.Mutex
	term      term.Term
	elsewhere bool // the fleet publishes to another broker
}

// Renewed handles the answer to a renewal, which registers the relay for ttl. It returns an error if the relay must end.
func (g *Registration) Renewed(in step.Renewed, ttl time.Duration, now time.Time) error {
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

// Begin reports whether a batch may be sent now. It returns the term for Counts.
func (g *Registration) Begin(now time.Time) (term int, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.term.Number(), g.Broker == "" || !g.elsewhere && !g.term.Over(now)
}

// Counts reports whether events sent in this term count as published.
func (g *Registration) Counts(term int, now time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.Broker == "" || g.term.Lasts(term, now)
}
