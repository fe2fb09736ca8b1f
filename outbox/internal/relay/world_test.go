package relay

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox/internal/gaps"
	"github.com/millrace-go/millrace/outbox/internal/step"
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
	binned    []*worldRow // failed events that an operator discarded
	lastID    int64
	leases    map[int16]*worldLease
	nodes     []*node
	topics    map[string]*worldTopic
	paused    map[string]int64 // by operators
	pauses    int64
	redirects map[string]string
	discarded map[string]int // by event ID: how often it had been published before

	written   map[string]int // events of each key that were committed
	names     int
	first     map[string]int // the highest event of each key that was published
	published map[string]int // how often, by event ID
	dead      map[string]string
	overtaken []string
	disobeyed []string // batches that the relay sent against what it knew that operators have set
	history   []string
	hung      bool           // a topic did not answer
	sends     int            // rows given to the broker
	sent      map[string]int // the same, by event ID

	fetchTakes  time.Duration // until a fetch of failed events is answered
	rescans     []rescan
	rescanTakes time.Duration
}

type rescan struct {
	at time.Time
	step.Rescan
}

type transaction struct {
	name string
	row  *worldRow
}

type worldRow struct {
	step.Row
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
	term          int64
	expires       time.Time
	deaths        map[int]bool
	noted         string
	suspect       string
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
	knows      map[string]step.Control // what it has read that operators have set
	learned    int                     // how often
	topics     []step.TopicState       // why topics wait, as its last renewal said
	wedged     string                  // a topic of which its publisher does not return
	stopped    bool                    // it gets no time
	down       bool                    // its credentials have expired
	unread     func(*node, *pending)   // what becomes of its reads; nil: they are answered
	unpolled   bool                    // its polls are not answered
	moved      bool                    // its next read is answered by another server
	dead       bool
}

// pending is an action under way. answer is what it brought, when it was carried out.
type pending struct {
	action step.Action
	began  time.Time
	stuck  bool // the publisher never returns
	knew   int  // how often the relay had learned what operators have set
	answer step.Input
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
		sequences: map[int16]int64{}, leases: map[int16]*worldLease{}, topics: map[string]*worldTopic{}, paused: map[string]int64{}, redirects: map[string]string{}, discarded: map[string]int{},
		written: map[string]int{}, first: map[string]int{}, published: map[string]int{}, sent: map[string]int{}, dead: map[string]string{},
	}
	for s := range shards {
		w.leases[s] = &worldLease{relay: -1, deaths: map[int]bool{}, suspectDeaths: map[int]bool{}}
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
		BatchSize: 10, MaxInFlight: 20, Batches: true,
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
		Retry: func(_ string, _ error, attempts int) (bool, time.Duration) {
			return attempts >= 3, min(100*time.Millisecond<<max(attempts-1, 0), time.Minute)
		},
		Gaps: gaps.New, Jitter: func(d time.Duration) time.Duration { return d },
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
	size := 1
	if w.names%10 == 0 { // few are too large to come with the others
		size = 5 << 20
	}
	t := &transaction{name: fmt.Sprint("3/", w.names), row: &worldRow{shard: shard, Row: step.Row{
		Seq: w.sequences[shard], EventID: strconv.Itoa(w.names), Topic: topic, Key: key, Payload: []byte("p"), Size: size, Written: w.now,
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
		case step.EndLease:
		case step.Report:
			if a.Kind == step.ReportAside {
				for _, e := range a.Aside {
					if e.State == step.Dead {
						n.world.dead[e.EventID] = e.Reason
					}
				}
			}
		case step.Publish:
			if c := n.knows[a.Queue]; c.Paused != 0 || n.knows[c.To].Paused != 0 || a.To != cmp.Or(c.To, a.Queue) {
				n.world.disobeyed = append(n.world.disobeyed, fmt.Sprintf("relay %d sends %s of topic %s to %s", n.id, a.Rows[0].EventID, a.Queue, a.To))
			}
			n.pending = append(n.pending, &pending{action: a, began: n.world.now})
		default:
			n.pending = append(n.pending, &pending{action: a, began: n.world.now, knew: n.learned})
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
	case step.Renew:
		p.answer = w.renew(n, a, p.began)
	case step.LoadBlocked:
		keys := map[int16][]string{}
		for _, f := range w.failed {
			if f.Key != "" {
				keys[f.shard] = append(keys[f.shard], f.Key)
			}
		}
		p.answer = step.BlockedLoaded{Shards: a.Shards, Keys: keys, Controls: w.controls()}
	case step.Read:
		answer := w.read(a)
		answer.Moved, n.moved = n.moved, false
		p.answer = step.ReadDone{Answer: answer}
	case step.Rescan:
		w.rescans = append(w.rescans, rescan{w.now, a})
		w.now = w.now.Add(w.rescanTakes)
		var found [][]step.Identity
		for _, q := range a.Requests {
			var ids []step.Identity
			for _, r := range w.sorted(q.Shard) {
				if r.Seq <= q.UpTo && !slices.Contains(q.Skip, r.Topic) && len(ids) < q.Limit {
					ids = append(ids, r.Identity())
				}
			}
			found = append(found, ids)
		}
		p.answer = step.Rescanned{Rows: found}
	case step.Publish:
		if p.stuck || w.now.Before(p.began.Add(w.takes(p))) && slices.ContainsFunc(a.Rows, w.isPoison) { // it does not end the relay yet
			return false
		}
		results, ok := w.publish(n, a)
		p.stuck = !ok
		if !ok {
			return false
		}
		p.answer = step.Published{Ref: a.Ref, Queue: a.Queue, Results: results}
	case step.Delete:
		for _, d := range a.Rows {
			w.delete(d.Shard, d.Identity())
		}
		p.answer = step.Deleted{}
	case step.SetAside:
		p.answer = w.setAside(n, a)
	case step.FetchFailed:
		p.answer = w.fetch(n, a)
	case step.SettleFailed:
		p.answer = w.settle(a)
	case step.Poll:
		var due []int16
		for _, f := range w.failed {
			if f.state == step.Retrying && !f.at.After(w.now) && w.paused[f.Topic] == 0 && w.paused[w.redirects[f.Topic]] == 0 || f.command != "" {
				due = append(due, f.shard)
			}
		}
		p.answer = step.Polled{Due: due, Controls: w.controls()}
	case step.RetryDead:
		p.answer = w.retryDead(a)
	case step.MoveDelayed:
		p.answer = step.DelayedMoved{}
	case step.Release:
		for i, s := range a.Shards {
			if l := w.leases[s]; l.relay == n.id && l.term == a.Terms[i] {
				l.relay, l.expires = -1, time.Time{}
			}
		}
		p.answer = step.Released{Shards: a.Shards}
	case step.ClearSuspect:
		if l := w.leases[a.Shard]; l.relay == n.id {
			l.deaths, l.suspectDeaths, l.noted, l.suspect = map[int]bool{}, map[int]bool{}, "", ""
		}
		p.answer = step.SuspectCleared{}
	default:
		panic(fmt.Sprintf("%T", a))
	}
	return true
}

// lost is the answer of an action whose connection was lost.
func lost(a step.Action, began time.Time) step.Input {
	switch a := a.(type) {
	case step.Renew:
		return step.Renewed{Began: began, Err: errLost}
	case step.LoadBlocked:
		return step.BlockedLoaded{Shards: a.Shards, Err: errLost}
	case step.Read:
		return step.ReadDone{Err: errLost}
	case step.Rescan:
		return step.Rescanned{Err: errLost}
	case step.Publish:
		results := make([]error, len(a.Rows))
		for i := range results {
			results[i] = errDown
		}
		return step.Published{Ref: a.Ref, Queue: a.Queue, Results: results}
	case step.Delete:
		return step.Deleted{Err: errLost}
	case step.SetAside:
		return step.WasSetAside{Ref: a.Ref, Err: errLost}
	case step.FetchFailed:
		return step.FailedFetched{Ref: a.Ref, Err: errLost}
	case step.SettleFailed:
		return step.FailedSettled{Ref: a.Ref, Err: errLost}
	case step.Poll:
		return step.Polled{Err: errLost}
	case step.RetryDead:
		return step.DeadRetried{RetryDead: a, Err: errLost}
	case step.MoveDelayed:
		return step.DelayedMoved{Err: errLost}
	case step.Release:
		return step.Released{Shards: a.Shards, Err: errLost}
	default:
		return step.SuspectCleared{Err: errLost}
	}
}

// answer hands the relay what an action brought.
func (n *node) answer(p *pending) {
	n.pending = slices.DeleteFunc(n.pending, func(o *pending) bool { return o == p })
	switch r := p.answer.(type) {
	case step.BlockedLoaded:
		n.learn(p, r.Controls, r.Err)
	case step.Polled:
		n.learn(p, r.Controls, r.Err)
	case step.ReadDone:
		for _, f := range r.Shards {
			n.world.history = append(n.world.history, fmt.Sprintf("%s relay %d read listed %v, above %v, drained %v", n.world.now.Format("05.000"), n.id, numbers(f.Listed), numbers(f.Above), numbers(f.Drained)))
		}
	}
	n.core.Apply(n.world.now, p.answer)
	n.next()
}

// learn notes what the relay knows that operators have set for topics. Of two answers to questions that were asked at the same time, the
// later one may say what is older: it does not count.
func (n *node) learn(p *pending, controls []step.Control, err error) {
	if err != nil || p.knew != n.learned {
		return
	}
	n.learned++
	n.knows = map[string]step.Control{}
	for _, c := range controls {
		n.knows[c.Topic] = c
	}
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
					if _, ok := p.action.(step.Read); ok && n.unread != nil {
						n.unread(n, p)
						continue
					}
					if _, ok := p.action.(step.Poll); ok && n.unpolled || p.answer == nil && !n.carryOut(p) {
						continue
					}
					if w.now.Before(p.began.Add(w.takes(p))) {
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
				if answer := p.began.Add(w.takes(p)); answer.After(w.now) && answer.Before(at) {
					at = answer
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

// takes returns how long an action takes that does not take an instant.
func (w *world) takes(p *pending) time.Duration {
	switch a := p.action.(type) {
	case step.Publish:
		return w.topic(a.To).takes
	case step.FetchFailed:
		return w.fetchTakes
	default:
		return 0
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
			fmt.Fprintf(&b, "  shard %d: held %d, unsaved %d, bare %d, woken %v, due %v, loaded %v, stopping %v, careful %v, blocked %v, aside %d, from %d, gaps %v, stalled %d, failing %d\n",
				s.Shard, len(s.held), s.unsaved, s.bare, s.woken, s.due, s.loaded, !s.stopping.IsZero(), s.guard.Careful(), s.blocked, len(s.aside), s.gaps.From(), s.gaps.List(), len(s.stalled), len(s.failing))
			for _, q := range s.order {
				fmt.Fprintf(&b, "    topic %s: ready %d, sending %d, failed %d, held %d, unsaved %d, window %d, deferred %+v, stands %v\n",
					q.topic.Name, len(q.ready), len(q.sending), len(q.failed), q.held, q.unsaved, q.window, q.deferred, q.topic.Stands(w.now))
			}
			for _, k := range s.keys {
				fmt.Fprintf(&b, "    key %s: topic %s, pending %d, waiting %d, failing %v\n", k.name, k.queue.topic.Name, k.pending, len(k.waiting), k.failing)
			}
		}
	}
	return b.String()
}

func numbers(rows []*step.Event) (list []string) {
	for _, r := range rows {
		list = append(list, fmt.Sprint(r.Seq, r.Topic, r.Key))
	}
	return list
}
