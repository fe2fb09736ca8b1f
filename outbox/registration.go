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

// errUnregistered is the result for events that this relay sent while it may not have been registered, so that a migration to
// another broker may have taken a step without it. It does not count against the events.
var errUnregistered = fmt.Errorf("%w: the relay was not registered all the time: the fleet may have gone to another broker meanwhile", transport.ErrUnavailable)

// registration says whether what the relay publishes counts. A migration to another broker waits only for registered relays, and
// a relay that was suspended may have lost its registration. It is safe for concurrent use.
type registration struct {
	broker string // RelayConfig.Broker; if "", everything counts

	mu        sync.Mutex
	term      term.Term
	elsewhere bool // the fleet publishes to another broker
}

// renewed handles the answer to a renewal, which registers the relay for ttl. It returns an error if the relay must end.
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

// begin reports whether a batch may be sent now. It returns the term for counts.
func (g *registration) begin(now time.Time) (term int, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.term.Number(), g.broker == "" || !g.elsewhere && !g.term.Over(now)
}

// counts reports whether events sent in this term count as published.
func (g *registration) counts(term int, now time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.broker == "" || g.term.Lasts(term, now)
}
