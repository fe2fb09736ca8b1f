package figures

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/millrace-go/millrace/console/internal/format"
	"github.com/millrace-go/millrace/middleware/claim"
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
	Hour                    claim.FlowMinute // sum over the last hour
	Lately                  claim.FlowMinute // sum over the last minutes
	LatelyFor               time.Duration    // how long Lately lasted
	Oldest                  time.Time        // when the longest waiting event failed; zero: no event waits
}

const (
	// lately is the number of minutes, with the current one, over which rates are computed.
	lately = 5
	// manyFail separates a failing consumer from normal retries: one failure in manyFail attempts.
	manyFail = 20
)

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
	from := now.Truncate(time.Minute).Add(-(lately - 1) * time.Minute)
	c.LatelyFor = now.Sub(from)
	for _, m := range c.Flow.Minutes {
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

// Rate returns how many events the consumer handles, in words: per second, or per minute if that is less than one.
func (c Consumer) Rate() string {
	perSecond := float64(c.Lately.Handled) / max(c.LatelyFor.Seconds(), 1)
	switch {
	case c.Lately.Handled == 0:
		return "0"
	case perSecond >= 9.95:
		return fmt.Sprintf("%.0f/s", perSecond)
	case perSecond >= 1:
		return fmt.Sprintf("%.1f/s", perSecond)
	case perSecond*60 >= 9.95:
		return fmt.Sprintf("%.0f/min", perSecond*60)
	}
	return fmt.Sprintf("%.1f/min", perSecond*60)
}

// Mean returns the mean time to handle an event, with its transaction; 0 if none was handled.
func (c Consumer) Mean() time.Duration {
	if c.Hour.Handled == 0 {
		return 0
	}
	return c.Hour.Busy / time.Duration(c.Hour.Handled)
}

// Spark is a line of the events handled in each minute of the last hour.
type Spark struct {
	Line, Area string // paths in a box of 96 by 20
	X, Y       string // of the last point
	Most       int64  // the largest count of a minute
}

const sparkWidth, sparkHeight, sparkPoints = 96.0, 20.0, 60

// Spark draws the last hour. It omits the current minute, whose count is incomplete and would look like a drop.
func (c Consumer) Spark(now time.Time) *Spark {
	if len(c.Flow.Minutes) == 0 {
		return nil
	}
	var points [sparkPoints]int64
	last := now.Truncate(time.Minute).Add(-time.Minute)
	s := &Spark{}
	for _, m := range c.Flow.Minutes {
		if i := sparkPoints - 1 - int(last.Sub(m.At)/time.Minute); i >= 0 && i < sparkPoints && !m.At.After(last) {
			points[i] += m.Handled
			s.Most = max(s.Most, points[i])
		}
	}
	var line strings.Builder
	for i, n := range points {
		s.X = fmt.Sprintf("%.1f", 1+float64(i)*(sparkWidth-4)/(sparkPoints-1))
		s.Y = fmt.Sprintf("%.1f", sparkHeight-2-float64(n)*(sparkHeight-4)/float64(max(s.Most, 1)))
		fmt.Fprintf(&line, "%c%s %s", "ML"[min(i, 1)], s.X, s.Y)
	}
	s.Line = line.String()
	s.Area = s.Line + fmt.Sprintf("L%s %.0fL1 %.0fZ", s.X, sparkHeight, sparkHeight)
	return s
}

// Flowing summarizes the state of all consumers.
type Flowing struct {
	Verdict Verdict
	Sum     Consumer // of all
	Known   bool     // a process has reported counts within the hour
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
		f.Known = f.Known || len(c.Flow.Minutes) > 0
		f.Full += c.Flow.Full
		f.Sum.Dead += c.Dead
		f.Sum.Retrying += c.Retrying
		f.Sum.Blocked += c.Blocked
		f.Sum.LatelyFor = c.LatelyFor
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
