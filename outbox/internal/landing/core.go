package landing

import (
	"slices"
	"time"

	"github.com/millrace-go/millrace/outbox/internal/store"
)

// Position is how far the WAL has been landed.
type Position = store.Position

// message is one that has not been landed.
type message struct {
	content   []byte
	place     uint64 // in the WAL
	committed time.Time
	after     Position // when it has been landed, and all before it
}

// rules are decisions that tests replace, to show why they are needed.
type rules struct {
	skips  func(landed Position, commit uint64, n int) bool // the n-th message of the transaction was landed before
	passed func(stream, flushed uint64) bool                // the stream has passed a landing's own commit
}

var allRules = rules{
	skips: func(landed Position, commit uint64, n int) bool {
		return commit < landed.Landed || commit == landed.PartOf && n <= landed.Part
	},
	passed: func(stream, flushed uint64) bool { return stream >= flushed },
}

// core decides what of the stream is landed, in which parts, and what is confirmed to the server. It does no I/O and has no clock.
type core struct {
	rules
	events, bytes int    // the most that one part has
	idle          uint64 // bytes of WAL without messages, after which the marker advances

	landed  Position // everything up to here has been landed
	pending []message
	size    int // bytes of pending

	within    bool // a transaction is being received
	commit    uint64
	committed time.Time
	n         int      // messages that were received of it
	collected Position // everything up to here has been landed or is pending
	stream    uint64   // what the stream has passed

	confirmed   uint64 // what may be confirmed to the server
	unconfirmed []unconfirmedLanding
}

// unconfirmedLanding is a committed landing that the slot has not confirmed: the position that it landed, and where the WAL was flushed after
// its commit.
type unconfirmedLanding struct{ landed, flushed uint64 }

// newCore returns a core that begins at landed. confirmed is the slot's confirmed position; flushed is where the WAL is flushed now.
func newCore(landed Position, confirmed, flushed uint64) *core {
	return &core{
		rules: allRules, events: 5000, bytes: 16 << 20, idle: 1 << 20,
		landed: landed, collected: landed, confirmed: confirmed, unconfirmed: []unconfirmedLanding{{landed.Landed, flushed}},
	}
}

// begin begins a transaction, whose commit is at this place.
func (c *core) begin(commit uint64, at time.Time) {
	c.within, c.commit, c.committed, c.n = true, commit, at, 0
}

// add adds a message of the transaction. It keeps the content.
func (c *core) add(place uint64, content []byte) {
	c.n++
	if c.skips(c.landed, c.commit, c.n) {
		return
	}
	c.collected.PartOf, c.collected.Part = c.commit, c.n
	c.pending = append(c.pending, message{content: content, place: place, committed: c.committed, after: c.collected})
	c.size += len(content) + messageWeight
}

// complete ends the transaction.
func (c *core) complete(end uint64) {
	c.within = false
	c.pass(end)
	if c.commit < c.collected.Landed {
		return
	}
	c.collected = Position{Landed: end}
	if last := len(c.pending) - 1; last >= 0 && c.pending[last].after.PartOf == c.commit {
		c.pending[last].after = c.collected
	}
}

// pass records that the stream has shown everything before this position. It ignores positions inside a transaction.
func (c *core) pass(place uint64) {
	if !c.within {
		c.stream = max(c.stream, place)
	}
	c.confirm()
}

// confirm confirms the landings whose own commit the stream has passed.
func (c *core) confirm() {
	for len(c.unconfirmed) > 0 && c.passed(c.stream, c.unconfirmed[0].flushed) {
		c.confirmed, c.unconfirmed = c.unconfirmed[0].landed, c.unconfirmed[1:]
	}
}

// full reports whether nothing more should be received.
func (c *core) full() bool { return len(c.pending) >= 2*c.events || c.size >= 2*c.bytes }

// part returns what to land now, and the position afterwards. A transaction is landed as a whole if one part holds it. If no message is
// pending, it advances only the position, if that is due or the stream is at least idle bytes ahead.
func (c *core) part(due bool) (messages []message, to Position, ok bool) {
	n, size := 0, 0
	whole := 0 // up to the last complete transaction
	for n < len(c.pending) && n < c.events && (n == 0 || size < c.bytes) {
		size += len(c.pending[n].content) + messageWeight
		n++
		if c.pending[n-1].after.PartOf == 0 {
			whole = n
		}
	}
	switch {
	case whole > 0:
		n = whole
	case n == 0:
		to = Position{Landed: c.stream}
		return nil, to, !c.within && c.stream > max(c.landed.Landed, c.landed.PartOf) && (due || c.stream >= c.landed.Landed+c.idle)
	case n < c.events && size < c.bytes: // the rest of the transaction comes
		return nil, to, false
	}
	return slices.Clone(c.pending[:n]), c.pending[n-1].after, true
}

// land records that the first n messages were landed, and where the WAL was flushed afterwards.
func (c *core) land(n int, to Position, flushed uint64) {
	for _, m := range c.pending[:n] {
		c.size -= len(m.content) + messageWeight
	}
	c.pending = c.pending[n:]
	c.landed = to
	for i := range c.pending { // the marker may have advanced alone
		c.pending[i].after.Landed = max(c.pending[i].after.Landed, to.Landed)
	}
	c.collected.Landed = max(c.collected.Landed, to.Landed)
	if to.Landed > c.confirmed {
		c.unconfirmed = append(c.unconfirmed, unconfirmedLanding{to.Landed, flushed})
	}
	c.confirm()
}

// messageWeight is about what a message takes beside its content.
const messageWeight = 100

// slot is what the server says about the slot.
type slot struct {
	exists, fits, lost bool
	confirmed          uint64 // 0: it is being created
	end                uint64 // of the WAL
}

// plan is what to do before the slot is read.
type plan struct {
	refuse string // why it cannot be read
	cut    string // why events may be lost
	drop   bool
	create bool
	again  bool // events may have been landed that the slot shows again
}

// planFor decides what to do before the slot is read. known says that the marker is one of this server and database; landed is 0 if there was
// no slot. restarted means that the server has restarted since a relay created the slot or began to. In the second case publishers may have
// used the slot.
func planFor(s slot, known, restarted bool, landed uint64) (p plan) {
	was := known && landed > 0
	switch {
	case s.exists && !s.fits:
		p.refuse = "it is temporary, or of another plugin or database: drop it"
	case !s.exists:
		p.create = true
		switch {
		case was:
			p.cut = "the slot was dropped"
		case known && restarted:
			p.cut = "the server restarted while a relay created the slot"
		}
	case s.lost:
		p.drop, p.create = true, true
		if was || !known || s.confirmed > 0 { // 0: no publisher has used it
			p.cut = "the server has invalidated the slot"
		}
	case s.confirmed == 0:
		p.refuse = "somebody else is creating it: end that session, or wait"
	case !was:
		p.again = !known
	case landed > s.end:
		p.cut = "the marker is ahead of the WAL: the server was restored to an earlier time, or the marker is that of a copy of it"
	case s.confirmed > landed:
		p.cut = "the slot was advanced, or dropped and created again, by somebody else"
	}
	return p
}
