package fleet

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/millrace-go/millrace/retry"
)

// state is what is done about a database.
type state int

const (
	idle     state = iota // it is asked again when it is due
	probing               // it is being asked whether there is work
	waiting               // it has work, and waits for its turn
	active                // a relay runs
	stopping              // its relay ends
)

var stateNames = [...]string{"idle", "probing", "waiting", "active", "stopping"}

func (s state) String() string { return stateNames[s] }

const (
	// probeSlots is how many databases are asked at once, beside those that are slow to answer.
	probeSlots = 8
	// slowSlots is how many of those there may be beside them: databases that failed, or have not answered for slowAfter.
	slowSlots = 4
	slowAfter = 500 * time.Millisecond

	// relayConnections are what a relay uses: two for its work, and one for its leases.
	relayConnections = 3
	// minConnections lets one relay run beside the watch and the probes.
	minConnections = 1 + probeSlots + slowSlots + relayConnections

	lookInterval = 250 * time.Millisecond // of a watch
	lookTimeout  = 5 * time.Second        // of one look
	lookExpires  = 10 * time.Second       // after which a watch counts no longer
	sweep        = 10 * time.Minute       // a database that a watch tells nothing of is asked once in this time nevertheless

	linger    = 3 * time.Second        // a relay without work stays for so long, unless others wait
	turn      = 5 * time.Second        // a relay with work stays for so long, where others wait
	shortTurn = time.Second            // the same for one that had a turn before and starts well, where others wait for their first
	maxFails  = 2                      // looks in a row that an active database may fail
	workEvery = 300 * time.Millisecond // an active database is asked whether there is work
)

// backoff is how long a database is left alone that does not answer, or whose relay does not start.
var backoff = retry.Rule{Backoff: time.Second, MaxBackoff: 30 * time.Second}

// probe is what a database answered.
type probe struct {
	work, others bool
	next         *time.Duration
	dead         int64
	database     string
	server       time.Time
	err          error
}

// entry is a database of a server.
type entry struct {
	db    Database
	state state
	since time.Time // when the state began

	gone     bool      // the provider does not name it any more
	left     bool      // its relay was told to end because it was gone
	hinted   bool      // something may have been committed
	next     time.Time // when it is asked unless there is a hint
	asked    time.Time // when it was last asked
	failures int       // to answer, in a row
	starts   int       // of its relay that failed, in a row
	hold     time.Time // until when no relay is started, because the last start failed
	err      error     // of the last failure
	turns    int       // in a row, which ended although there was work
	quiet    time.Time // since when an active one has no work; zero: it has
	relayed  time.Time // when a relay last began
	answer   probe     // the last one
}

// core decides about the databases of one server. It does no I/O and has no clock.
type core struct {
	poll    time.Duration // how often a database that may have changed is asked
	every   time.Duration // how often each has a relay in any case; 0: never
	relays  int           // that may run at once
	jitter  func(time.Duration) time.Duration
	entries map[Database]*entry

	passed  bool      // the relay that began last passed over the database that had waited longest
	watched time.Time // when the watch last answered
	server  time.Time // when its server started
}

// action is what the core wants done.
type action struct {
	kind actionKind
	db   Database
}

type actionKind int

const (
	ask   actionKind = iota // answered by probed
	start                   // a relay: answered by looked, again and again, and by ended
	stop                    // its relay
)

func newCore(connections int, poll, every time.Duration, jitter func(time.Duration) time.Duration) *core {
	return &core{
		poll: poll, every: every, jitter: jitter, entries: map[Database]*entry{},
		relays: (connections - minConnections + relayConnections) / relayConnections,
	}
}

// set says which databases there are.
func (c *core) set(now time.Time, all []Database) {
	for db, e := range c.entries {
		e.gone = !slices.Contains(all, db)
	}
	for _, db := range all {
		if c.entries[db] == nil {
			c.entries[db] = &entry{db: db, next: now, since: now}
		}
	}
}

// look says what the watch has found.
func (c *core) look(now time.Time, all bool, changed []string, server time.Time) {
	c.watched, c.server = now, server
	for _, e := range c.entries {
		if e.answer.server.Equal(server) {
			e.hinted = e.hinted || all || slices.Contains(changed, e.answer.database)
		} else { // that it is there will be known when it has answered, and its answer may be older than this look
			e.hinted = e.hinted || e.state == probing
		}
	}
}

// probed takes the answer of a database.
func (c *core) probed(now time.Time, db Database, p probe) {
	e := c.entries[db]
	c.to(e, now, idle)
	if p.err != nil {
		c.failed(e, now, p.err)
		return
	}
	e.answer, e.failures = p, 0
	e.next = now.Add(c.jitter(sweep))
	if p.next != nil {
		e.next = earlier(e.next, now.Add(*p.next))
	}
	due := c.every > 0 && now.Sub(e.relayed) >= c.every || e.starts > 0 // a start tells whether the next one fails, too
	switch {
	case p.others:
		if p.work {
			e.next = now.Add(c.jitter(c.poll)) // the other relay may end
		}
		if now.Sub(e.hold) > sweep {
			e.starts = 0 // its failures are of the past
		}
	case (p.work || due) && now.Before(e.hold):
		e.next = e.hold
	case p.work || due:
		c.to(e, now, waiting)
	default:
		e.turns = 0
	}
}

// looked takes what an active database answered.
func (c *core) looked(now time.Time, db Database, p probe) {
	e := c.entries[db]
	switch {
	case p.err != nil:
		e.failures++
		e.err = p.err
		return
	case !p.work && e.quiet.IsZero():
		e.quiet = now
	case p.work:
		e.quiet = time.Time{}
	}
	e.answer, e.failures = p, 0
	if now.Sub(e.since) >= turn {
		e.starts = 0
	}
}

// ended says that a relay has ended; err says why it could not begin, or went on no longer.
func (c *core) ended(now time.Time, db Database, err error) {
	e := c.entries[db]
	c.to(e, now, idle)
	if e.gone || e.left { // a start that was cut short is no failure
		err, e.left = nil, false
	}
	switch {
	case err != nil:
		e.starts++
		e.err, e.hold = err, now.Add(c.jitter(backoff.Wait(e.starts)))
		e.next = e.hold
		return
	case e.failures > maxFails: // its database does not answer
		c.failed(e, now, e.err)
		return
	case e.quiet.IsZero():
		e.turns++
	default:
		e.turns = 0
	}
	e.starts = 0
	e.next = now // for what was committed meanwhile
}

func (c *core) failed(e *entry, now time.Time, err error) {
	e.failures++
	e.err = err
	e.next = now.Add(c.jitter(backoff.Wait(e.failures)))
}

// failing is how often the database has failed since it was last all right, and the last failure.
func (e *entry) failing() (int, error) {
	if n := e.failures + e.starts; n > 0 {
		return n, e.err
	}
	return 0, nil
}

func (c *core) to(e *entry, now time.Time, s state) {
	e.state, e.since = s, now
}

// due is when a database is to be asked.
func (c *core) due(e *entry, now time.Time) time.Time {
	poll := e.asked.Add(c.poll)
	switch {
	case e.failures > 0:
		return e.next
	case e.hinted:
		return poll
	case e.answer.server.Equal(c.server) && now.Sub(c.watched) < lookExpires:
		return e.next
	}
	return earlier(e.next, poll) // nobody would tell
}

// steps returns what is to be done now, and for how long nothing else is unless something happens.
func (c *core) steps(now time.Time) (actions []action, wait time.Duration) {
	var ready []*entry
	fresh, slow, running, leaving := 0, 0, 0, 0
	wait = time.Second
	for db, e := range c.entries {
		switch e.state {
		case idle:
			if e.gone {
				delete(c.entries, db)
			} else if due := c.due(e, now); due.After(now) {
				wait = min(wait, due.Sub(now))
			} else {
				ready = append(ready, e)
			}
		case probing:
			if e.failures > 0 || now.Sub(e.since) >= slowAfter {
				slow++
			} else {
				fresh++
				wait = min(wait, slowAfter-now.Sub(e.since))
			}
		case active:
			running++
		case stopping:
			running++
			leaving++
		case waiting:
			if e.gone {
				delete(c.entries, db)
			}
		}
	}
	fresh += max(slow-slowSlots, 0)

	slices.SortFunc(ready, func(a, b *entry) int {
		return cmp.Or(cmp.Compare(rank(a.failures > 0), rank(b.failures > 0)), c.due(a, now).Compare(c.due(b, now)))
	})
	for _, e := range ready {
		switch {
		case e.failures > 0 && slow < slowSlots:
			slow++
		case e.failures == 0 && fresh < probeSlots:
			fresh++
			wait = min(wait, slowAfter)
		default:
			continue // until another has answered
		}
		c.to(e, now, probing)
		e.asked, e.hinted = now, false
		actions = append(actions, action{ask, e.db})
	}

	queue := c.in(waiting, func(a, b *entry) int {
		return cmp.Or(cmp.Compare(rank(!a.answer.work), rank(!b.answer.work)), cmp.Compare(rank(a.turns > 0), rank(b.turns > 0)), a.since.Compare(b.since))
	})
	for len(queue) > 0 && running < c.relays {
		n := c.choose(queue)
		e := queue[n]
		queue, running = slices.Delete(queue, n, n+1), running+1
		c.to(e, now, active)
		e.quiet, e.relayed, e.failures = time.Time{}, now, 0
		actions = append(actions, action{start, e.db})
	}

	waits := len(queue) - leaving
	first := len(queue) > 0 && queue[0].turns == 0
	for _, e := range c.in(active, func(a, b *entry) int {
		return cmp.Or(cmp.Compare(rank(a.quiet.IsZero()), rank(b.quiet.IsZero())), a.quiet.Compare(b.quiet), a.since.Compare(b.since))
	}) {
		stays, ends := c.stays(e, waits > 0, first)
		if left := stays - now.Sub(e.since); !ends && left > 0 {
			wait = min(wait, left)
			continue
		}
		waits--
		c.to(e, now, stopping)
		e.left = e.gone
		actions = append(actions, action{stop, e.db})
	}
	return actions, max(wait, time.Millisecond)
}

// choose returns which of the queue has a relay next. That is the first one, unless the relay before was begun while another database
// had waited longer: then it is the database that has waited longest. So databases that write on and on hold up no backlog for ever.
func (c *core) choose(queue []*entry) (n int) {
	longest := 0
	for i, e := range queue {
		if e.since.Before(queue[longest].since) {
			longest = i
		}
	}
	if c.passed {
		n = longest
	}
	c.passed = n != longest
	return n
}

// stays is for how long an active database stays so, from the beginning, or that its time is over.
func (c *core) stays(e *entry, othersWait, first bool) (stays time.Duration, ends bool) {
	switch {
	case e.gone, e.failures > maxFails:
		return 0, true
	case !e.quiet.IsZero() && othersWait:
		return 0, true
	case !e.quiet.IsZero():
		return e.quiet.Sub(e.since) + linger, false
	case othersWait && first && e.turns > 0 && e.starts == 0:
		return shortTurn, false
	case othersWait:
		return turn, false
	}
	return math.MaxInt64, false
}

// rank puts what is false before what is true.
func rank(last bool) int {
	if last {
		return 1
	}
	return 0
}

// in returns the databases in a state, in order.
func (c *core) in(s state, order func(a, b *entry) int) (found []*entry) {
	for _, e := range c.entries {
		if e.state == s {
			found = append(found, e)
		}
	}
	slices.SortFunc(found, order)
	return found
}

// used is how many connections the actions under way may have, beside the watch's.
func (c *core) used() (n int) {
	for _, e := range c.entries {
		switch e.state {
		case probing:
			n++
		case active, stopping:
			n += relayConnections
		case idle, waiting:
		}
	}
	return n
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
