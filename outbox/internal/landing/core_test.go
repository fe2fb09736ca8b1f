package landing

import (
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"

	"github.com/millrace-go/millrace/outbox/internal/store"
)

// world is a server with a log, a slot, the outbox and its marker, a standby that has what it needs of the WAL, and relays, as data
// structures. Everything happens at a place in the WAL.
type world struct {
	rules     rules
	unfenced  bool   // a landing does not look whether another relay has landed meanwhile
	wal       uint64 // the end of the WAL
	committed []transaction
	landings  []committedLanding // in the WAL
	confirmed uint64             // of the slot
	relays    [2]*reader

	replicated       uint64 // what the standby has; the stream shows no more
	standbyConfirmed uint64 // what its slot has
	wrong            string
}

type transaction struct {
	commit, end uint64
	messages    []string
}

// committedLanding is the state of the marker, and what became rows with it.
type committedLanding struct {
	commit uint64
	marker Position
	rows   []string
}

// reader is a relay that lands, or one that believes that it does.
type reader struct {
	core *core
	next int // of the committed transactions
	sent int // messages of it; -1: it has not begun
	live bool
}

func (w *world) record() uint64 { w.wal += 10; return w.wal }

func (w *world) marker() (p Position) {
	if n := len(w.landings); n > 0 {
		p = w.landings[n-1].marker
	}
	return p
}

func (w *world) rows() (all []string) {
	for _, l := range w.landings {
		all = append(all, l.rows...)
	}
	return all
}

// start makes a relay the one that reads the slot.
func (w *world) start(i int) {
	for _, r := range w.relays {
		if r != nil {
			r.live = false // its connection has ended, and it may not know
		}
	}
	marker := w.marker()
	switch p := planFor(slot{exists: true, fits: true, confirmed: w.confirmed, end: w.wal}, marker.Landed > 0, false, marker.Landed); {
	case p.cut != "" || p.refuse != "":
		w.wrong = p.cut + p.refuse
	case marker.Landed == 0:
		marker = Position{Landed: w.confirmed}
		w.landings = append(w.landings, committedLanding{commit: w.record(), marker: marker})
	}
	c := newCore(marker, w.confirmed, w.wal)
	c.rules, c.events, c.idle = w.rules, 4, 30
	r := &reader{core: c, sent: -1, live: true}
	for r.next < len(w.committed) && w.committed[r.next].commit < w.confirmed {
		r.next++
	}
	w.relays[i] = r
}

// stream shows the relay one thing more.
func (w *world) stream(r *reader) {
	switch {
	case !r.live || r.core.full():
	case r.next == len(w.committed) || w.committed[r.next].end > w.replicated:
		last := w.replicated
		if r.next < len(w.committed) {
			last = min(last, w.committed[r.next].commit)
		}
		r.core.pass(last)
	case r.sent < 0:
		r.core.begin(w.committed[r.next].commit, time.Time{})
		r.sent = 0
	case r.sent < len(w.committed[r.next].messages):
		r.core.add(w.committed[r.next].commit, []byte(w.committed[r.next].messages[r.sent]))
		r.sent++
	default:
		r.core.complete(w.committed[r.next].end)
		r.next, r.sent = r.next+1, -1
	}
}

// land makes a relay land a part. The answer may be lost, and the relay then ends.
func (w *world) land(r *reader, due, answered bool) {
	messages, to, ok := r.core.part(due)
	if !ok {
		return
	}
	if !w.unfenced && w.marker() != r.core.landed { // another relay has landed meanwhile
		r.live, r.core = false, newCore(w.marker(), w.confirmed, w.wal)
		return
	}
	l := committedLanding{marker: to, commit: w.record()}
	for _, m := range messages {
		l.rows = append(l.rows, string(m.content))
	}
	w.landings = append(w.landings, l)
	if !answered {
		r.live = false
		return
	}
	r.core.land(len(messages), to, w.wal)
}

func (w *world) confirm(r *reader) {
	if r.live {
		w.confirmed = max(w.confirmed, r.core.confirmed)
	}
}

// failover makes the standby the server. What it does not have is lost.
func (w *world) failover() {
	for _, r := range w.relays {
		if r != nil {
			r.live = false
		}
	}
	for n := len(w.committed); n > 0 && w.committed[n-1].end > w.replicated; n-- {
		w.committed = w.committed[:n-1]
	}
	for n := len(w.landings); n > 0 && w.landings[n-1].commit > w.replicated; n-- {
		w.landings = w.landings[:n-1]
	}
	w.wal, w.confirmed = w.replicated, w.standbyConfirmed
	w.relays = [2]*reader{}
	w.start(0)
}

func (w *world) want() (all []string) {
	for _, c := range w.committed {
		all = append(all, c.messages...)
	}
	return all
}

// run lets things happen, and returns what is wrong in the end.
func (w *world) run(draw func(n int) int) string {
	w.wal, w.replicated, w.confirmed, w.standbyConfirmed = 100, 100, 50, 50
	w.start(0)
	w.replicated = w.wal // the standby has had the slot since its creation
	message := 0
	for range draw(150) {
		i := draw(2)
		r := w.relays[i]
		switch what := draw(12); {
		case what < 3:
			t := transaction{messages: make([]string, []int{0, 1, 1, 2, 7}[draw(5)])}
			for n := range t.messages {
				message++
				t.messages[n] = strconv.Itoa(message)
			}
			t.commit = w.record()
			t.end = w.record()
			w.committed = append(w.committed, t)
		case what == 3:
			w.replicated = max(w.replicated, w.wal-10*uint64(draw(4)))
		case what == 4 && draw(3) == 0:
			w.start(i)
		case what == 5 && draw(4) == 0:
			w.failover()
		case what == 6:
			if w.confirmed <= w.replicated {
				w.standbyConfirmed = w.confirmed
			}
		case r == nil:
		case what < 10:
			w.stream(r)
		case what == 10:
			w.land(r, draw(4) == 0, draw(6) > 0)
		default:
			w.confirm(r)
		}
		if w.wrong != "" {
			return w.wrong
		}
	}
	w.start(0)
	for range 1000 {
		w.replicated = w.wal
		w.stream(w.relays[0])
		w.land(w.relays[0], true, true)
		w.confirm(w.relays[0])
	}
	if w.wrong == "" && !assert.ObjectsAreEqual(w.want(), w.rows()) {
		w.wrong = "landed " + strings.Join(w.rows(), " ") + ", committed " + strings.Join(w.want(), " ")
	}
	if w.wrong == "" && w.wal-w.confirmed > 200 {
		w.wrong = "the slot keeps the WAL"
	}
	return w.wrong
}

// Relays end, are stopped and go on, lose answers, and are moved to a standby that has had what the slot needs. Each event of a committed
// transaction becomes one row, in the order of the commits, and the slot does not keep more and more of the WAL.
func TestLandsOnce(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := &world{rules: allRules}
		if wrong := w.run(func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "n") }); wrong != "" {
			t.Fatal(wrong)
		}
	})
}

// Without one of the rules, something goes wrong.
func TestRulesOfLandingAreNeeded(t *testing.T) {
	t.Parallel()
	for name, without := range map[string]func(w *world){
		"fences": func(w *world) { w.unfenced = true },
		"skips what was landed": func(w *world) {
			w.rules.skips = func(landed Position, commit uint64, _ int) bool { return commit < landed.Landed }
		},
		"skips transactions": func(w *world) { w.rules.skips = func(Position, uint64, int) bool { return false } },
		"confirms late":      func(w *world) { w.rules.passed = func(uint64, uint64) bool { return true } },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			harmed := false
			for seed := 0; seed < 20_000 && !harmed; seed++ {
				random := rand.New(rand.NewPCG(uint64(seed), 1))
				w := &world{rules: allRules}
				without(w)
				harmed = w.run(random.IntN) != ""
			}
			assert.True(t, harmed, "nothing goes wrong without the rule")
		})
	}
}

func TestPlan(t *testing.T) {
	t.Parallel()
	usable := slot{exists: true, fits: true, confirmed: 10, end: 20}
	lost := usable
	lost.lost = true
	for name, c := range map[string]struct {
		slot             slot
		known, restarted bool
		landed           uint64
		want             plan
	}{
		"nothing yet":                    {slot{}, false, false, 0, plan{create: true}},
		"the marker of a dump":           {slot{}, false, false, 0, plan{create: true}},
		"a slot that was just created":   {usable, true, false, 0, plan{}},
		"a slot without a marker":        {usable, false, false, 0, plan{again: true}},
		"as it should be":                {usable, true, false, 10, plan{}},
		"ahead of the WAL":               {usable, true, false, 21, plan{cut: "the marker is ahead of the WAL: the server was restored to an earlier time, or the marker is that of a copy of it"}},
		"not all was confirmed":          {usable, true, false, 11, plan{}},
		"dropped":                        {slot{}, true, false, 10, plan{cut: "the slot was dropped", create: true}},
		"restarted while it was created": {slot{}, true, true, 0, plan{cut: "the server restarted while a relay created the slot", create: true}},
		"cut before":                     {slot{}, true, false, 0, plan{create: true}},
		"invalidated":                    {lost, true, false, 10, plan{cut: "the server has invalidated the slot", drop: true, create: true}},
		"invalidated before a marker":    {lost, true, false, 0, plan{cut: "the server has invalidated the slot", drop: true, create: true}},
		"invalidated in its creation":    {slot{exists: true, fits: true, lost: true}, true, false, 0, plan{drop: true, create: true}},
		"advanced":                       {usable, true, false, 9, plan{cut: "the slot was advanced, or dropped and created again, by somebody else"}},
		"another one's":                  {slot{exists: true, confirmed: 10}, true, false, 10, plan{refuse: "it is temporary, or of another plugin or database: drop it"}},
		"being created":                  {slot{exists: true, fits: true}, true, false, 0, plan{refuse: "somebody else is creating it: end that session, or wait"}},
	} {
		assert.Equal(t, c.want, planFor(c.slot, c.known, c.restarted, c.landed), name)
	}
}

func TestLandedOf(t *testing.T) {
	t.Parallel()
	bad := landedOf(message{content: []byte("x"), place: 0x1_0000_00ff})
	assert.Equal(t, store.LandedMessage{
		Hash: store.Hash("", "log-1-FF"), ID: "log-1-FF", Payload: []byte("x"), Bad: "a message in the WAL is not a valid event: the message has version 120, and this program knows version 1",
	}, bad)
}
