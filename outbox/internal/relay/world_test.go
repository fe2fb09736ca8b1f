package relay

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
)

// world is a database, a broker and the relays between them, without any of them. Time passes when a test says so.
type world struct {
	t      require.TestingT
	now    time.Time
	shards int16
	rules  func(*rules)
	config func(*Config)

	sequences map[int16]int64
	open      []*transaction
	rows      []*worldRow // committed, and not deleted
	failed    []*worldFailed
	lastID    int64
	leases    map[int16]*worldLease
	nodes     []*node
	topics    map[string]*worldTopic

	written   map[string]int // events of each key that were committed
	names     int
	first     map[string]int // the highest event of each key that was published
	published map[string]int // how often, by event ID
	dead      map[string]string
	overtaken []string
	history   []string
	hung      bool // a topic did not answer
	sends     int  // rows given to the broker
}

type transaction struct {
	name string
	row  *worldRow
}

type worldRow struct {
	Row
	shard  int16
	n      int
	poison bool
}

type worldFailed struct {
	*worldRow
	id       int64
	state    string
	attempts int
	reason   string
	at       time.Time
	command  string
}

type worldLease struct {
	relay         int
	expires       time.Time
	deaths        map[int]bool
	suspect       string
	suspectBy     int
	suspectDeaths map[int]bool
}

// worldTopic is a topic as the broker has it.
type worldTopic struct {
	down   bool          // it answers with an outage
	takes  time.Duration // how long it takes for a batch
	wedged bool          // what is sent to it now is never answered
	took   int
	refuse map[string]error // by event ID
}

// node is a relay.
type node struct {
	world      *world
	id         int
	core       *Core
	pending    []*pending
	wait       time.Time
	expires    time.Time // its registration
	struggling bool
	shunned    int
	wedged     string // a topic of which its publisher does not return
	stopped    bool   // it gets no time
	down       bool   // its credentials have expired
	dead       bool
}

// pending is an action under way. answer is what it brought, when it was carried out.
type pending struct {
	action Action
	began  time.Time
	stuck  bool // the publisher never returns
	answer Input
}

var (
	errDown   = errors.New("down")
	errLost   = errors.New("the connection was lost")
	errRefuse = errors.New("refused")
	errOdd    = errors.New("odd")
)

const worldTTL = 5 * time.Second

func newWorld(t require.TestingT, shards int16) *world {
	w := &world{
		t: t, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), shards: shards,
		sequences: map[int16]int64{}, leases: map[int16]*worldLease{}, topics: map[string]*worldTopic{},
		written: map[string]int{}, first: map[string]int{}, published: map[string]int{}, dead: map[string]string{},
	}
	for s := range shards {
		w.leases[s] = &worldLease{relay: -1, suspectBy: -1, deaths: map[int]bool{}, suspectDeaths: map[int]bool{}}
	}
	return w
}

func (w *world) topic(name string) *worldTopic {
	if w.topics[name] == nil {
		w.topics[name] = &worldTopic{refuse: map[string]error{}}
	}
	return w.topics[name]
}

// start starts a relay.
func (w *world) start() *node {
	cfg := Config{
		BatchSize: 10, MaxInFlight: 20, MaxAttempts: 3, Batches: true,
		PollInterval: time.Second, LeaseTTL: worldTTL, StuckAfter: time.Minute, CrashPause: time.Minute,
		Fault: func(err error) Fault {
			switch {
			case errors.Is(err, errDown):
				return Outage
			case errors.Is(err, errRefuse):
				return Rejected
			}
			return Unknown
		},
		Gaps: NewGaps, Jitter: func(d time.Duration) time.Duration { return d },
	}
	if w.config != nil {
		w.config(&cfg)
	}
	n := &node{world: w, id: len(w.nodes), core: New(cfg, w.now)}
	if w.rules != nil {
		w.rules(&n.core.rules)
	}
	w.nodes = append(w.nodes, n)
	n.next()
	return n
}

// begin begins a transaction that writes an event, unless the key is locked by another.
func (w *world) begin(topic, key string, shard int16) *transaction {
	if key != "" && slices.ContainsFunc(w.open, func(t *transaction) bool { return t.row.Key == key }) {
		return nil
	}
	w.sequences[shard]++
	w.names++
	t := &transaction{name: fmt.Sprint("3/", w.names), row: &worldRow{shard: shard, Row: Row{
		Seq: w.sequences[shard], EventID: strconv.Itoa(w.names), Topic: topic, Key: key, Payload: []byte("p"), Size: 1, Written: w.now,
	}}}
	w.open = append(w.open, t)
	return t
}

func (w *world) end(t *transaction, commit bool) {
	w.open = slices.DeleteFunc(w.open, func(o *transaction) bool { return o == t })
	if commit {
		w.written[t.row.Key]++
		t.row.n = w.written[t.row.Key]
		w.rows = append(w.rows, t.row)
	}
}

// write commits an event.
func (w *world) write(topic, key string, shard int16) *worldRow {
	t := w.begin(topic, key, shard)
	w.end(t, true)
	return t.row
}

// next asks a relay what to do.
func (n *node) next() {
	if n.stopped || n.dead {
		return
	}
	actions, wait := n.core.Next(n.world.now)
	n.wait = n.world.now.Add(wait)
	for _, a := range actions {
		switch a := a.(type) {
		case EndLease:
		case Report:
			if a.Kind == ReportAside {
				for _, e := range a.Aside {
					if e.State == Dead {
						n.world.dead[e.EventID] = e.Reason
					}
				}
			}
		default:
			n.pending = append(n.pending, &pending{action: a, began: n.world.now})
		}
	}
}

// pass lets time pass.
func (w *world) pass(d time.Duration) {
	w.now = w.now.Add(d)
	for _, n := range w.nodes {
		n.next()
	}
}

// carryOut does what the relay asked for. It reports false when that takes for ever.
func (n *node) carryOut(p *pending) bool {
	w := n.world
	switch a := p.action.(type) {
	case Renew:
		p.answer = w.renew(n, a, p.began)
	case LoadBlocked:
		keys := map[int16][]string{}
		for _, f := range w.failed {
			if f.Key != "" {
				keys[f.shard] = append(keys[f.shard], f.Key)
			}
		}
		p.answer = BlockedLoaded{Shards: a.Shards, Keys: keys}
	case Read:
		p.answer = ReadDone{Answer: w.read(a)}
	case Rescan:
		var found [][]Identity
		for _, q := range a.Requests {
			var ids []Identity
			for _, r := range w.sorted(q.Shard) {
				if r.Seq <= q.UpTo && !slices.Contains(q.Skip, r.Topic) && len(ids) < q.Limit {
					ids = append(ids, r.identity())
				}
			}
			found = append(found, ids)
		}
		p.answer = Rescanned{Rows: found}
	case Publish:
		if p.stuck {
			return false
		}
		results, ok := w.publish(n, a)
		p.stuck = !ok
		if !ok {
			return false
		}
		p.answer = Published{Ref: a.Ref, Queue: a.Queue, Results: results}
	case Delete:
		for _, d := range a.Rows {
			w.delete(d.Shard, d.identity())
		}
		p.answer = Deleted{}
	case SetAside:
		p.answer = w.setAside(n, a)
	case FetchFailed:
		p.answer = w.fetch(a)
	case SettleFailed:
		p.answer = w.settle(a)
	case Poll:
		var due []int16
		for _, f := range w.failed {
			if f.state == Retrying && !f.at.After(w.now) || f.command != "" {
				due = append(due, f.shard)
			}
		}
		p.answer = Polled{Due: due}
	case MoveDelayed:
		p.answer = DelayedMoved{}
	case Release:
		for _, s := range a.Shards {
			if l := w.leases[s]; l.relay == n.id {
				l.relay, l.expires = -1, time.Time{}
			}
		}
		p.answer = Released{}
	case ClearSuspect:
		if l := w.leases[a.Shard]; l.relay == n.id {
			l.deaths, l.suspectDeaths, l.suspect, l.suspectBy = map[int]bool{}, map[int]bool{}, "", -1
		}
		p.answer = SuspectCleared{}
	default:
		panic(fmt.Sprintf("%T", a))
	}
	return true
}

// lost is the answer of an action whose connection was lost.
func lost(a Action, began time.Time) Input {
	switch a := a.(type) {
	case Renew:
		return Renewed{Began: began, Err: errLost}
	case LoadBlocked:
		return BlockedLoaded{Shards: a.Shards, Err: errLost}
	case Read:
		return ReadDone{Err: errLost}
	case Rescan:
		return Rescanned{Err: errLost}
	case Publish:
		results := make([]error, len(a.Rows))
		for i := range results {
			results[i] = errDown
		}
		return Published{Ref: a.Ref, Queue: a.Queue, Results: results}
	case Delete:
		return Deleted{Err: errLost}
	case SetAside:
		return WasSetAside{Ref: a.Ref, Err: errLost}
	case FetchFailed:
		return FailedFetched{Ref: a.Ref, Err: errLost}
	case SettleFailed:
		return FailedSettled{Ref: a.Ref, Err: errLost}
	case Poll:
		return Polled{Err: errLost}
	case MoveDelayed:
		return DelayedMoved{Err: errLost}
	case Release:
		return Released{Err: errLost}
	default:
		return SuspectCleared{Err: errLost}
	}
}

// answer hands the relay what an action brought.
func (n *node) answer(p *pending) {
	n.pending = slices.DeleteFunc(n.pending, func(o *pending) bool { return o == p })
	if r, ok := p.answer.(ReadDone); ok {
		for _, f := range r.Shards {
			n.world.history = append(n.world.history, fmt.Sprintf("%s relay %d read listed %v, above %v, drained %v", n.world.now.Format("05.000"), n.id, numbers(f.Listed), numbers(f.Above), numbers(f.Drained)))
		}
	}
	n.core.Apply(n.world.now, p.answer)
	n.next()
}

func (w *world) sorted(shard int16) []*worldRow {
	var rows []*worldRow
	for _, r := range w.rows {
		if r.shard == shard {
			rows = append(rows, r)
		}
	}
	slices.SortFunc(rows, func(a, b *worldRow) int { return cmp.Compare(a.Seq, b.Seq) })
	return rows
}

func (w *world) read(a Read) (answer Answer) {
	answer.Now = w.now
	if a.Writers {
		answer.Writers = Writers{}
		for _, t := range w.open {
			answer.Writers[t.name] = struct{}{}
		}
	}
	for _, q := range a.Requests {
		f := Found{Last: w.sequences[q.Shard]}
		bytes := 0
		row := func(r *worldRow, hide bool) Row {
			copied := r.Row
			bytes += r.Size
			if hide || bytes > q.Bytes && bytes > r.Size {
				copied.Payload = nil
			}
			return copied
		}
		for _, r := range w.sorted(q.Shard) {
			if slices.Contains(q.List, r.Seq) {
				f.Listed = append(f.Listed, row(r, false))
			}
			if r.Seq > q.From && len(f.Above) < q.Limit {
				f.Above = append(f.Above, row(r, slices.Contains(q.Hide, r.Topic)))
			}
			if r.Topic == q.Drain && r.Seq >= q.DrainFrom && r.Seq <= q.From && len(f.Drained) < q.DrainLimit {
				f.Drained = append(f.Drained, row(r, false))
			}
		}
		answer.Shards = append(answer.Shards, f)
	}
	return answer
}

func (w *world) delete(shard int16, id Identity) (found *worldRow) {
	w.rows = slices.DeleteFunc(w.rows, func(r *worldRow) bool {
		if r.shard == shard && r.identity() == id {
			found = r
			return true
		}
		return false
	})
	return found
}

func (w *world) rowOf(id string) *worldRow {
	for _, r := range w.rows {
		if r.EventID == id {
			return r
		}
	}
	for _, f := range w.failed {
		if f.EventID == id {
			return f.worldRow
		}
	}
	return nil
}

// publish is the broker. A poison message ends the relay.
func (w *world) publish(n *node, a Publish) (results []error, ok bool) {
	t := w.topic(a.Queue)
	results = make([]error, len(a.Rows))
	if !n.core.rules.sends(a, w.now) {
		for i := range results {
			results[i] = ErrLeaseOver
		}
		return results, true
	}
	if l := w.leases[a.Shard]; a.Noted && l.relay == n.id {
		if l.suspect != a.Rows[0].EventID {
			l.suspectDeaths = map[int]bool{}
		}
		l.suspect, l.suspectBy = a.Rows[0].EventID, n.id
	}
	if t.wedged || n.wedged == a.Queue {
		return nil, false
	}
	bad := map[string]bool{}
	for i, r := range a.Rows {
		w.sends++
		row := w.rowOf(r.EventID)
		switch {
		case row != nil && row.poison:
			n.dead = true
			return nil, false
		case t.down || n.down:
			results[i] = errDown
		case r.Key != "" && bad[r.Key]:
			results[i] = errDown // as ErrNotSent
		case t.refuse[r.EventID] != nil:
			results[i] = t.refuse[r.EventID]
			bad[r.Key] = true
		default:
			t.took++
			w.took(n, r, row)
		}
	}
	if l := w.leases[a.Shard]; a.Noted && results[0] != nil && l.relay == n.id {
		l.suspect, l.suspectBy, l.suspectDeaths = "", -1, map[int]bool{}
	}
	return results, true
}

func (w *world) took(n *node, r *Row, row *worldRow) {
	w.published[r.EventID]++
	w.history = append(w.history, fmt.Sprintf("%s relay %d sends %s: key %s, topic %s, number %d", w.now.Format("05.000"), n.id, r.EventID, r.Key, r.Topic, r.Seq))
	if row == nil || r.Key == "" || w.published[r.EventID] > 1 {
		return
	}
	if w.first[r.Key] > row.n {
		w.overtaken = append(w.overtaken, fmt.Sprintf("event %d of key %s after event %d", row.n, r.Key, w.first[r.Key]))
	}
	w.first[r.Key] = max(w.first[r.Key], row.n)
}

func (w *world) setAside(n *node, a SetAside) WasSetAside {
	l := w.leases[a.Shard]
	if l.relay != n.id {
		return WasSetAside{Ref: a.Ref}
	}
	moved := 0
	for _, e := range a.Events {
		r := w.delete(a.Shard, e.identity())
		if r == nil {
			continue
		}
		moved++
		w.lastID++
		w.failed = append(w.failed, &worldFailed{worldRow: r, id: w.lastID, state: e.State, attempts: e.Attempts, reason: e.Reason, at: w.now.Add(e.RetryIn)})
		if e.State == Dead {
			w.dead[e.EventID] = e.Reason
		}
	}
	return WasSetAside{Ref: a.Ref, Leased: true, Moved: moved}
}

// firstOf reports whether a failed event has none of its key before it.
func (w *world) firstOf(f *worldFailed) bool {
	return f.Key == "" || !slices.ContainsFunc(w.failed, func(o *worldFailed) bool { return o.Key == f.Key && o.id < f.id })
}

func (w *world) promote(shard int16, all bool, keys []string) {
	for _, f := range w.failed {
		if f.shard == shard && f.state == Blocked && (all || slices.Contains(keys, f.Key)) && w.firstOf(f) {
			f.state, f.at = Retrying, w.now
		}
	}
}

func (w *world) fetch(a FetchFailed) FailedFetched {
	var groups [][]FailedRow
	var touched []string
	w.failed = slices.DeleteFunc(w.failed, func(f *worldFailed) bool {
		if f.shard != a.Shard || f.command == "" {
			return false
		}
		touched = append(touched, f.Key)
		if f.command == "discard" {
			w.dead[f.EventID] = "discarded"
			return true
		}
		f.command = ""
		if f.state != Blocked {
			f.state, f.attempts, f.at = Retrying, 0, w.now
		}
		return false
	})
	w.promote(a.Shard, a.PromoteAll, slices.Concat(a.Promote, touched))
	for _, f := range w.failed {
		if f.shard != a.Shard || f.state != Retrying || f.at.After(w.now) || !w.firstOf(f) || slices.Contains(a.SkipIDs, f.id) ||
			slices.Contains(a.SkipTopics, f.Topic) || len(groups) == a.Heads {
			continue
		}
		var group []FailedRow
		for _, o := range w.failed {
			if o == f || f.Key != "" && o.Key == f.Key && o.id > f.id && len(group) < a.PerKey {
				group = append(group, FailedRow{Row: o.Row, ID: o.id, State: o.state, Attempts: o.attempts, Crash: o.reason == ReasonCrash})
			}
		}
		groups = append(groups, group)
	}
	answer := FailedFetched{Ref: a.Ref, Groups: groups}
	for _, k := range slices.Concat(a.Promote, touched) {
		if !slices.ContainsFunc(w.failed, func(f *worldFailed) bool { return f.Key == k }) {
			answer.Freed = append(answer.Freed, k)
		}
	}
	return answer
}

func (w *world) settle(a SettleFailed) FailedSettled {
	w.failed = slices.DeleteFunc(w.failed, func(f *worldFailed) bool { return slices.Contains(a.Done, f.id) })
	for _, g := range a.Again {
		for _, f := range w.failed {
			if f.id == g.ID {
				f.state, f.reason, f.attempts, f.at = g.State, g.Reason, g.Attempts, w.now.Add(g.RetryIn)
				if g.State == Dead {
					w.dead[f.EventID] = g.Reason
				}
			}
		}
	}
	w.promote(a.Shard, false, a.Keys)
	answer := FailedSettled{Ref: a.Ref}
	for _, k := range a.Keys {
		switch {
		case k == "":
		case slices.ContainsFunc(w.failed, func(f *worldFailed) bool { return f.Key == k }):
			answer.Left = append(answer.Left, k)
		default:
			answer.Freed = append(answer.Freed, k)
		}
	}
	return answer
}

// renew is what the statements of the leases do.
func (w *world) renew(n *node, a Renew, began time.Time) Renewed {
	n.expires, n.struggling, n.shunned = w.now.Add(worldTTL), a.Struggling, len(a.Shun)
	alive, well, left := 0, 0, 0
	for _, o := range w.nodes {
		if o.expires.After(w.now) {
			alive++
			if o != n {
				left += o.shunned
			}
			if !o.struggling {
				well++
			}
		}
	}
	fair := 0
	switch {
	case !n.struggling:
		fair = (int(w.shards)+well-1)/max(well, 1) + left
	case well == 0:
		fair = (int(w.shards) + alive - 1) / alive
	}
	answer := Renewed{Began: began, Asked: a.Hold, Fair: fair, Shards: int(w.shards)}
	count := len(a.Hold)
	for _, s := range slices.Sorted(maps.Keys(w.leases)) {
		l := w.leases[s]
		mine := l.relay == n.id && slices.Contains(a.Hold, s)
		free := !l.expires.After(w.now) && count < fair && !slices.Contains(a.Hold, s) && !slices.Contains(a.Shun, s)
		if !mine && !free {
			continue
		}
		if !mine {
			count++
			if l.relay >= 0 && l.relay != n.id {
				l.deaths[l.relay] = true
				if l.suspectBy == l.relay && l.suspect != "" {
					l.suspectDeaths[l.relay] = true
					l.suspectBy = -1
				}
			}
		}
		l.relay, l.expires = n.id, w.now.Add(worldTTL)
		// A relay that is still there did not end.
		ended := func(set map[int]bool) (count int) {
			for id := range set {
				if !w.nodes[id].expires.After(w.now) {
					count++
				}
			}
			return count
		}
		answer.Held = append(answer.Held, Lease{Shard: s, Deaths: ended(l.deaths), Suspect: l.suspect, SuspectDeaths: ended(l.suspectDeaths)})
	}
	return answer
}

// run lets every relay work for a time, in which whatever they ask for takes an instant.
func (w *world) run(d time.Duration) {
	end := w.now.Add(d)
	for {
		rounds := 0
		for busy := true; busy; {
			busy = false
			rounds++
			require.Less(w.t, rounds, 2000, "the relays do one thing after another, and no time passes:\n%s", w)
			for _, n := range w.nodes {
				if n.stopped || n.dead {
					continue
				}
				for _, p := range slices.Clone(n.pending) {
					if p.answer == nil && !n.carryOut(p) {
						continue
					}
					if a, ok := p.action.(Publish); ok && w.now.Before(p.began.Add(w.topic(a.Queue).takes)) {
						continue // the answer is on its way
					}
					n.answer(p)
					busy = true
					if n.dead {
						break
					}
				}
			}
		}
		at := end
		for _, n := range w.nodes {
			if n.stopped || n.dead {
				continue
			}
			if n.wait.Before(at) {
				at = n.wait
			}
			for _, p := range n.pending {
				if a, ok := p.action.(Publish); ok {
					if answer := p.began.Add(w.topic(a.Queue).takes); answer.After(w.now) && answer.Before(at) {
						at = answer
					}
				}
			}
		}
		if !at.Before(end) {
			w.pass(end.Sub(w.now))
			return
		}
		w.pass(max(at.Sub(w.now), time.Millisecond))
	}
}

// String is what a failed test shows.
func (w *world) String() string {
	var b strings.Builder
	for _, r := range w.rows {
		fmt.Fprintf(&b, "row %s: shard %d, number %d, key %s, topic %s\n", r.EventID, r.shard, r.Seq, r.Key, r.Topic)
	}
	for _, f := range w.failed {
		fmt.Fprintf(&b, "failed %s: %s, key %s, topic %s, attempts %d: %s\n", f.EventID, f.state, f.Key, f.Topic, f.attempts, f.reason)
	}
	for _, n := range w.nodes {
		if n.dead {
			continue
		}
		fmt.Fprintf(&b, "relay %d: struggling %v, pending", n.id, n.struggling)
		for _, p := range n.pending {
			fmt.Fprintf(&b, " %T", p.action)
		}
		fmt.Fprintln(&b)
		for _, s := range n.core.order {
			fmt.Fprintf(&b, "  shard %d: held %d, unsaved %d, bare %d, woken %v, due %v, loaded %v, stopping %v, careful %d, blocked %v, aside %d, from %d, gaps %v, stalled %d, failing %d\n",
				s.Shard, len(s.held), s.unsaved, s.bare, s.woken, s.due, s.loaded, !s.stopping.IsZero(), s.careful, s.blocked, len(s.aside), s.gaps.From(), s.gaps.List(), len(s.stalled), len(s.failing))
			for _, q := range s.order {
				fmt.Fprintf(&b, "    topic %s: ready %d, sending %d, failed %d, held %d, unsaved %d, window %d, last %d, deferred %+v, failures %d\n",
					q.topic.name, len(q.ready), len(q.sending), len(q.failed), q.held, q.unsaved, q.window, q.last, q.deferred, q.topic.failures)
			}
			for _, k := range s.keys {
				fmt.Fprintf(&b, "    key %s: topic %s, pending %d, waiting %d, failing %v\n", k.name, k.queue.topic.name, k.pending, len(k.waiting), k.failing)
			}
		}
	}
	return b.String()
}

func numbers(rows []Row) (list []string) {
	for _, r := range rows {
		list = append(list, fmt.Sprint(r.Seq, r.Topic, r.Key))
	}
	return list
}
