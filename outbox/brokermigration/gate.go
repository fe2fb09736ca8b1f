package brokermigration

import (
	"errors"
	"time"

	"github.com/millrace-go/millrace/outbox/internal/term"
)

// errStale means that a process has not heard from the database for so long that a step may have been made without it.
var errStale = errors.New("the phase of the broker migration is not known: the database has not answered")

// errHeld means that nothing is published in this phase.
var errHeld = errors.New("a broker migration holds events back until consumers have read the broker to its end: \"millrace migration status\" shows what is unread")

// gate decides what a process may publish, and where. It does no I/O and has no clock. It is not safe for concurrent use.
//
// A process registers for a while with each beat, and a step waits for processes that are registered. So the gate counts what is
// acknowledged after that while as not published: the step may have been made, and the broker's end have been looked for before. The
// row stays in the outbox then, and is published again where the fleet publishes.
type gate struct {
	record Record
	wrong  error         // why nothing may be published; nil: the record decides
	term   term.Term     // of the registration
	flying map[int64]int // what is in flight, by the epoch in which it began
}

// token stands for a batch in flight.
type token struct {
	term  int
	epoch int64
}

// seen takes what a beat has found, whose registration lasts until a time. The beat's answer came now.
func (g *gate) seen(r Record, wrong error, until, now time.Time) {
	if g.term.Renew(until, now); r.Epoch < g.record.Epoch { // a database that was restored: steps may have been made that it does not know
		g.term.Break()
	}
	g.record, g.wrong = r, wrong
}

// begin returns the broker that a batch goes to.
func (g *gate) begin(now time.Time) (broker string, t token, err error) {
	switch {
	case g.term.Over(now):
		return "", t, errStale
	case g.wrong != nil:
		return "", t, g.wrong
	}
	if broker = g.record.publishesTo(); broker == "" {
		return "", t, errHeld
	}
	if g.flying == nil {
		g.flying = map[int64]int{}
	}
	g.flying[g.record.Epoch]++
	return broker, token{g.term.Number(), g.record.Epoch}, nil
}

// end takes what begin returned, and tells whether what the broker has acknowledged counts as published.
func (g *gate) end(t token, now time.Time) bool {
	if g.flying[t.epoch]--; g.flying[t.epoch] == 0 {
		delete(g.flying, t.epoch)
	}
	return g.term.Lasts(t.term, now)
}

// epoch is the epoch of the latest step before which nothing is in flight.
func (g *gate) epoch() int64 {
	e := g.record.Epoch
	for began := range g.flying {
		e = min(e, began)
	}
	return e
}
