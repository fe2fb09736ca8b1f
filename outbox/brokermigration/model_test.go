package brokermigration

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox/internal/term"
)

// fault leaves one safeguard of the migration out.
type fault string

const (
	none            fault = "none"
	ignoresUnread   fault = "a step does not wait for what is unread"
	ignoresEpochs   fault = "a step does not wait for processes that know only the one before"
	ignoresStranger fault = "a step does not wait for processes that take no part"
	admitsAnybody   fault = "a process starts whatever its configuration has"
	publishesLate   fault = "a process publishes although its registration is over"
	countsLate      fault = "what is acknowledged after the registration counts as published"
	forgetsTerms    fault = "a process that registers again counts what began before"
	strangersRenew  fault = "a relay that takes no part renews its lease whatever the record says"
	strangersLate   fault = "what a relay that takes no part publishes without a lease counts"
)

// world is a fleet, its database and its two brokers. Time passes in steps.
type world struct {
	fault   fault
	rand    *rand.Rand
	now     time.Time
	record  Record
	members []*member
	ghosts  []*flight                // of relays that were killed
	outbox  map[int][]int            // by key: the events that are not deleted, in order
	emitted map[int]int              // by key
	broker  map[string]map[int][]int // by name and key: what is not acked, in order
	handled map[int]map[int]bool
	leases  map[int]lease
	steps   map[Phase]int
	wrong   string
}

type lease struct {
	holder *member
	until  time.Time
}

// member is a process with a relay and a consumer. A stranger takes no part in the migration: the database knows it by its relay, as
// long as that renews its lease.
type member struct {
	stranger  string // the broker of one; "" for others
	term      term.Term
	ended     bool // the stranger's relay
	gate      gate
	expires   time.Time // as the database has it
	epoch     int64     // as the database has it
	suspended bool
	flights   []*flight
}

// flight is a batch of a key's events, from the relay to the deletion of its rows.
type flight struct {
	key     int
	events  []int
	broker  string
	token   token
	landed  bool
	settled bool // the relay deletes the rows, some time
}

const (
	modelKeys  = 3
	modelTTL   = 10 * time.Second
	modelLease = 5 * time.Second
)

func newWorld(seed uint64, f fault) *world {
	w := &world{
		fault: f, rand: rand.New(rand.NewPCG(seed, 1)), now: time.Unix(1_000_000, 0),
		outbox: map[int][]int{}, emitted: map[int]int{}, broker: map[string]map[int][]int{"old": {}, "new": {}},
		handled: map[int]map[int]bool{}, leases: map[int]lease{}, steps: map[Phase]int{},
	}
	for range 3 {
		w.start()
	}
	return w
}

// start adds a member whose configuration is one of those that a fleet meets on its way.
func (w *world) start() {
	m := &member{}
	if w.rand.IntN(6) == 0 {
		m.stranger = []string{"old", "new"}[w.rand.IntN(2)]
		if _, err := w.record.In(m.stranger, ""); err != nil && w.fault != admitsAnybody || w.record.Epoch == 0 && m.stranger == "new" {
			return
		}
	}
	w.beat(m)
	w.members = append(w.members, m)
}

func (w *world) beat(m *member) {
	if m.stranger != "" {
		w.renew(m)
		return
	}
	epoch := m.gate.epoch()
	view, wrong := w.record.In("old", "new")
	m.gate.seen(view, wrong, w.now.Add(modelTTL), w.now)
	m.epoch, m.expires = epoch, w.now.Add(modelTTL)
}

// renew renews the lease of a stranger's relay, which ends where events are published elsewhere.
func (w *world) renew(m *member) {
	if m.ended {
		return
	}
	m.expires = w.now.Add(modelLease)
	m.term.Renew(m.expires, w.now)
	m.ended = w.record.Epoch > 0 && w.record.publishesTo() != m.stranger && w.fault != strangersRenew && w.fault != admitsAnybody
}

// publish sends some events of a key whose lease is free, expired or the member's own, in order.
func (w *world) publish(m *member) {
	key := w.rand.IntN(modelKeys)
	held := w.leases[key]
	if len(w.outbox[key]) == 0 || held.holder != nil && held.holder != m && w.now.Before(held.until) ||
		slices.ContainsFunc(m.flights, func(f *flight) bool { return f.key == key }) {
		return
	}
	f := &flight{key: key, broker: m.stranger, token: token{term: m.term.Number()}}
	switch {
	case m.stranger != "" && (m.ended || m.term.Over(w.now) && w.fault != strangersLate):
		return
	case m.stranger == "":
		if w.fault == publishesLate {
			m.gate.term.Renew(w.now, w.now)
		}
		var err error
		if f.broker, f.token, err = m.gate.begin(w.now); err != nil {
			return
		}
	}
	w.leases[key] = lease{m, w.now.Add(modelLease)}
	f.events = slices.Clone(w.outbox[key][:1+w.rand.IntN(len(w.outbox[key]))])
	m.flights = append(m.flights, f)
}

// fly moves a batch on: it lands, its relay hears of it, its rows are deleted. A batch lands whatever became of its relay.
func (w *world) fly(m *member) {
	if len(m.flights) == 0 {
		return
	}
	i := w.rand.IntN(len(m.flights))
	f := m.flights[i]
	switch {
	case !f.landed:
		w.land(f)
	case m.suspended:
	case !f.settled:
		f.settled = w.counts(m, f.token)
		if !f.settled {
			m.flights = slices.Delete(m.flights, i, i+1)
		}
	default:
		w.outbox[f.key] = slices.DeleteFunc(w.outbox[f.key], func(n int) bool { return slices.Contains(f.events, n) })
		m.flights = slices.Delete(m.flights, i, i+1)
	}
}

func (w *world) land(f *flight) {
	f.landed = true
	w.broker[f.broker][f.key] = append(w.broker[f.broker][f.key], f.events...)
}

func (w *world) counts(m *member, t token) bool {
	if m.stranger != "" {
		return m.term.Lasts(t.term, w.now) || w.fault == strangersLate
	}
	if w.fault == forgetsTerms {
		t.term = m.gate.term.Number()
	}
	return m.gate.end(t, w.now) || w.fault == countsLate
}

// consume handles the first event of a key at a broker, if somebody reads that one. It may be delivered again.
func (w *world) consume() {
	name, key := []string{"old", "new"}[w.rand.IntN(2)], w.rand.IntN(modelKeys)
	queue := w.broker[name][key]
	if len(queue) == 0 || !slices.ContainsFunc(w.members, func(m *member) bool { return !m.suspended && (m.stranger == "" || m.stranger == name) }) {
		return
	}
	w.handle(name, key, queue[0])
	if w.rand.IntN(4) > 0 {
		w.broker[name][key] = queue[1:]
	}
}

// handle is the claim: an event that was handled has no second effect.
func (w *world) handle(name string, key, n int) {
	if w.handled[key] == nil {
		w.handled[key] = map[int]bool{}
	}
	for earlier := range n {
		if !w.handled[key][n] && !w.handled[key][earlier] && w.wrong == "" {
			w.wrong = fmt.Sprintf("event %d of key %d came from %s before event %d", n, key, name, earlier)
		}
	}
	w.handled[key][n] = true
}

// step makes a step if the same function allows it that the command asks. The processes are looked at before the brokers.
func (w *world) step() {
	ways := forward
	if w.rand.IntN(4) == 0 {
		ways = back
	}
	r, err := w.record.In("old", "new")
	if err != nil {
		return
	}
	to, ok := ways[r.Phase]
	if !ok {
		return
	}
	f := Facts{Unread: map[string][]string{}}
	for _, m := range w.members {
		p := Process{Epoch: m.epoch}
		if w.fault == ignoresEpochs {
			p.Epoch = r.Epoch
		}
		switch {
		case w.now.After(m.expires):
		case m.stranger == "":
			f.Processes = append(f.Processes, p)
		case w.fault != ignoresStranger:
			f.Strangers = append(f.Strangers, m.stranger)
		}
	}
	for name, keys := range w.broker {
		for key, queue := range keys {
			if len(queue) > 0 && w.fault != ignoresUnread {
				f.Unread[name] = append(f.Unread[name], fmt.Sprint("key ", key))
			}
		}
	}
	if len(blocked(r, to, f)) == 0 {
		w.record = Record{Epoch: r.Epoch + 1, From: "old", To: "new", Phase: to}
		w.steps[to]++
	}
}

// act does one thing that can happen to a fleet.
func (w *world) act() {
	var m *member
	if len(w.members) > 0 {
		m = w.members[w.rand.IntN(len(w.members))]
	}
	switch n := w.rand.IntN(100); {
	case n < 10:
		key := w.rand.IntN(modelKeys)
		w.outbox[key] = append(w.outbox[key], w.emitted[key])
		w.emitted[key]++
	case n < 40:
		w.consume()
	case n < 50:
		w.step()
	case n < 60:
		w.now = w.now.Add(time.Duration(w.rand.IntN(2500)) * time.Millisecond)
		for _, m := range w.members {
			if !m.suspended && w.rand.IntN(4) > 0 {
				w.beat(m)
			}
		}
	case n < 62 && len(w.members) < 5 || m == nil:
		w.start()
	case n < 64: // killed: what it has sent may land later
		w.members = slices.DeleteFunc(w.members, func(other *member) bool { return other == m })
		w.ghosts = append(w.ghosts, slices.DeleteFunc(m.flights, func(f *flight) bool { return f.landed })...)
	case n < 66:
		m.suspended = true
		w.now = w.now.Add(time.Duration(w.rand.IntN(12)) * time.Second)
	case n < 70:
		m.suspended = false
		if w.rand.IntN(2) == 0 {
			w.beat(m)
		}
	case n < 84 && !m.suspended:
		w.publish(m)
	case n < 86 && len(w.ghosts) > 0:
		w.land(w.ghosts[0])
		w.ghosts = w.ghosts[1:]
	default:
		w.fly(m)
	}
}

// settle lets everything be read, by a fleet that both brokers are open to, and looks for events that are nowhere.
func (w *world) settle() {
	for name, keys := range w.broker {
		for key, queue := range keys {
			if w.record.Phase == Cut && name == "old" {
				continue // nobody reads it any more
			}
			for _, n := range queue {
				w.handle(name, key, n)
			}
		}
	}
	for key, emitted := range w.emitted {
		for n := range emitted {
			if !w.handled[key][n] && !slices.Contains(w.outbox[key], n) && w.wrong == "" {
				w.wrong = fmt.Sprintf("event %d of key %d is lost", n, key)
			}
		}
	}
}

// play lets a fleet live for a while.
func play(seed uint64, f fault) *world {
	w := newWorld(seed, f)
	for range 600 {
		w.act()
		if w.wrong != "" {
			return w
		}
	}
	if f == none {
		w.settle()
	}
	return w
}

// A fleet goes forward and back while its processes are killed, suspended and started, also with other configurations: no event
// overtakes an earlier one of its key, and none is lost.
func TestModelKeepsOrder(t *testing.T) {
	t.Parallel()
	steps, handled := map[Phase]int{}, 0
	for seed := range uint64(4000) {
		w := play(seed, none)
		require.Empty(t, w.wrong, "seed %d", seed)
		for phase, n := range w.steps {
			steps[phase] += n
		}
		for _, events := range w.handled {
			handled += len(events)
		}
	}
	t.Log(steps, handled)
	for _, phase := range []Phase{Consume, Drain, Publish, Cut, Return} {
		assert.Greater(t, steps[phase], 100, "steps to %s", phase)
	}
	assert.Greater(t, handled, 10_000)
}

// Without any one of the safeguards a fleet breaks the order.
func TestModelControls(t *testing.T) {
	t.Parallel()
	for _, f := range []fault{ignoresUnread, ignoresEpochs, ignoresStranger, admitsAnybody, publishesLate, countsLate, forgetsTerms, strangersRenew, strangersLate} {
		t.Run(string(f), func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(200_000) {
				if w := play(seed, f); w.wrong != "" {
					t.Log("seed ", seed, ": ", w.wrong)
					return
				}
			}
			t.Error("nothing went wrong")
		})
	}
}
