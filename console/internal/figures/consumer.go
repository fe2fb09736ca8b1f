package figures

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/millrace-go/millrace/console/internal/format"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/deadletter"
)

// The states of consumers, those with the most trouble first.
const (
	Paused  = "paused"   // its circuit breaker has paused it, in at least one process
	KeyFull = "key full" // too many events wait behind a failed one of their key, so the broker keeps new events of the key
	Failing = "failing"  // of the recent attempts, at least one in manyFail has failed
	Flows   = "flows"
	Idle    = "idle" // no recent attempts
)

// Consumer is a consumer that has claimed events.
type Consumer struct {
	Name                    string
	State                   string
	Dead, Retrying, Blocked int           // number of events; Retrying includes those that the broker redelivers
	Pauses                  []claim.Pause // one for each process, the next attempt first
	Flow                    claim.Flow
	Hour                    claim.FlowMinute // the sum of its minutes
	Lately                  claim.FlowMinute // of those of the last minutes alone
	Course                                   // of what it handled
	Oldest                  time.Time        // when the event failed that waits for longest; zero: none waits
}

// manyFail tells a failing consumer from one that retries now and then: at least one in manyFail of its recent attempts has failed.
const manyFail = 20

// consumers determines the state of each consumer.
func consumers(known []claim.Consumer, failed map[string]map[string]int, pauses []claim.Pause, flows claim.Flows) []Consumer {
	of := map[string]claim.Flow{}
	for _, f := range flows.Consumers {
		of[f.Consumer] = f
	}
	paused := map[string][]claim.Pause{}
	for _, p := range pauses {
		paused[p.Consumer] = append(paused[p.Consumer], p)
	}
	all := make([]Consumer, 0, len(known))
	for _, k := range known {
		states := failed[k.Name]
		c := Consumer{Name: k.Name, Dead: states["dead"], Retrying: states["retrying"] + states["nacked"], Blocked: states["blocked"], Pauses: paused[k.Name], Flow: of[k.Name]}
		slices.SortStableFunc(c.Pauses, func(a, b claim.Pause) int { return a.Until.Compare(b.Until) })
		c.sum(flows.Now)
		for _, at := range c.Flow.Oldest {
			if c.Oldest.IsZero() || at.Before(c.Oldest) {
				c.Oldest = at
			}
		}
		c.State = c.judge()
		all = append(all, c)
	}
	slices.SortStableFunc(all, func(a, b Consumer) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(b.Dead, a.Dead), cmp.Compare(b.Lately.Handled, a.Lately.Handled), cmp.Compare(b.Hour.Handled, a.Hour.Handled), strings.Compare(a.Name, b.Name))
	})
	return all
}

// sum adds up the counts of the minutes.
func (c *Consumer) sum(now time.Time) {
	c.Now = now
	from := recent(now)
	for _, m := range c.Flow.Minutes {
		c.Minutes = append(c.Minutes, Passed{m.At, m.Handled})
		add(&c.Hour, m)
		if !m.At.Before(from) {
			add(&c.Lately, m)
		}
	}
}

func add(sum *claim.FlowMinute, m claim.FlowMinute) {
	sum.Handled += m.Handled
	sum.Duplicates += m.Duplicates
	sum.Contended += m.Contended
	sum.Failed += m.Failed
	sum.Busy += m.Busy
	sum.Longest = max(sum.Longest, m.Longest)
}

func (c *Consumer) judge() string {
	switch {
	case len(c.Pauses) > 0:
		return Paused
	case c.Flow.Full > 0:
		return KeyFull
	case c.Lately.Failed*manyFail >= c.Lately.Handled+c.Lately.Failed && c.Lately.Failed > 0, c.Lately.Handled == 0 && c.Retrying > 0:
		return Failing
	case c.Lately.Handled > 0:
		return Flows
	}
	return Idle
}

// rank returns the consumer's position in lists.
func rank(c Consumer) int {
	place := slices.Index([]string{Paused, KeyFull, Failing}, c.State)
	switch {
	case place >= 0:
		return place
	case c.Dead > 0:
		return 3
	case c.Retrying > 0 || c.Blocked > 0:
		return 4
	}
	return 5
}

// Mean is how long a handled event took, with its transaction; 0 where none was.
func (c Consumer) Mean() time.Duration {
	if c.Hour.Handled == 0 {
		return 0
	}
	return c.Hour.Busy / time.Duration(c.Hour.Handled)
}

// Flowing is how all consumers do.
type Flowing struct {
	Verdict Verdict
	Sum     Consumer // of all
	Paused  int
	Failing int
	Full    int // keys
}

// Flowing adds up the consumers, and summarizes them in one sentence.
func (s Snapshot) Flowing() Flowing {
	f := Flowing{}
	for _, c := range s.Consumers {
		switch c.State {
		case Paused:
			f.Paused++
		case Failing:
			f.Failing++
		}
		f.Full += c.Flow.Full
		f.Sum.Dead += c.Dead
		f.Sum.Retrying += c.Retrying
		f.Sum.Blocked += c.Blocked
		f.Sum.Now, f.Sum.Minutes = c.Now, append(f.Sum.Minutes, c.Minutes...)
		add(&f.Sum.Hour, c.Hour)
		add(&f.Sum.Lately, c.Lately)
		if !c.Oldest.IsZero() && (f.Sum.Oldest.IsZero() || c.Oldest.Before(f.Sum.Oldest)) {
			f.Sum.Oldest = c.Oldest
		}
	}
	var parts []string
	for _, p := range []struct {
		n         int
		one, many string
	}{
		{f.Paused, "consumer is paused by its circuit breaker", "consumers are paused by their circuit breakers"},
		{f.Failing, "consumer fails", "consumers fail"},
		{f.Full, "key is full", "keys are full"},
	} {
		if p.n > 0 {
			parts = append(parts, format.Plural(p.n, p.one, p.many))
		}
	}
	switch {
	case len(parts) > 0:
		f.Verdict = Verdict{State: "retrying", Text: strings.Join(parts, ", ") + ".", More: "Events wait, and none is lost."}
		if f.Paused > 0 {
			f.Verdict.More = "A paused consumer tries one event after each pause, and goes on by itself when that succeeds."
		}
	case f.Sum.Dead > 0:
		f.Verdict = Verdict{State: "dead", Text: format.Plural(f.Sum.Dead, "dead letter waits", "dead letters wait") + " for a decision.", More: "All other events are handled."}
	case f.Sum.Blocked > 0:
		f.Verdict = Verdict{State: "blocked", Text: format.Plural(f.Sum.Blocked, "event waits", "events wait") + " behind earlier ones of their keys."}
	default:
		f.Verdict = Verdict{State: "done", Text: "No consumer fails.", More: "No event waits for a retry or a decision."}
	}
	return f
}

// Scope says which events a sample covers. It returns "" for all.
func Scope(s deadletter.Sample) string {
	switch {
	case s.Searched > 0:
		return "the newest " + format.Number(s.Searched) + " were searched"
	case s.AtLeast || s.Selected > s.Events:
		return "of the newest " + format.Number(s.Events)
	}
	return ""
}
