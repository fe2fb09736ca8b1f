package relay

import (
	"maps"
	"slices"
	"time"

	"github.com/millrace-go/millrace/outbox/internal/backoff"
	"github.com/millrace-go/millrace/outbox/internal/step"
)

// Events that could not be published wait in a table of their own, in order, and so do the later events of their keys. Only the holder of
// the shard's lease moves events in and out. Operators store commands there.

const (
	// maxHeads is how many keys' failed events are fetched at once; maxBehind is how many events of each key.
	maxHeads, maxBehind = 200, 200
	// fetchBytes bounds the payloads of a fetch. A failed fetch halves it.
	fetchBytes = batchBytes / 2
	// maxTried bounds how many failed events have the time of their last attempt remembered.
	maxTried = 10_000
)

// settlement is an answered batch of failed events whose results are not recorded yet.
type settlement struct {
	step.SettleFailed
	heads []int64
	first string // the ID of the first event that was sent
	queue *queue
}

// serveFailed moves events to the failed events and works on those.
func (c *Core) serveFailed(s *shard, now time.Time) (at time.Time) {
	if !s.loaded {
		return time.Time{}
	}
	at = c.serveAside(s, now)
	if len(s.setting) > 0 {
		return at
	}
	s.wasAside = false
	if len(s.settles) > 0 && !s.settling {
		if s.settleRetry.Until.After(now) {
			at = backoff.Earliest(at, s.settleRetry.Until)
		} else {
			s.settling = true
			c.do(s.settles[0].SettleFailed)
		}
	}
	if !s.fetchable(now) {
		if s.due && s.fetchMore.Until.After(now) {
			return backoff.Earliest(at, s.fetchMore.Until)
		}
		return at
	}
	s.fetching, s.due = true, false
	f := step.FetchFailed{Ref: s.Ref, Heads: maxHeads, PerKey: maxBehind, Bytes: s.fetchBytes, SkipTopics: c.topics.Standing(now)}
	for _, q := range s.order {
		if len(q.failed) > 0 && q.stuck(now) && !q.topic.Stands(now) { // it has enough to do
			f.SkipTopics = append(f.SkipTopics, q.topic.Name)
		}
	}
	for id := range s.inFlight {
		f.SkipIDs = append(f.SkipIDs, id)
	}
	slices.Sort(f.SkipIDs)
	keys := s.promote
	if s.all {
		keys = s.blocked
	}
	f.Promote = slices.Sorted(maps.Keys(keys))
	s.promote, s.all = map[string]struct{}{}, false
	c.do(f)
	return at
}

// retries reports whether failed events are in flight or may be due.
func (s *shard) retries() bool { return s.due || s.fetching || len(s.inFlight) > 0 }

// fetchable reports whether to fetch failed events now.
func (s *shard) fetchable(now time.Time) bool {
	if !s.due || s.fetching || s.core.ending || !s.stopping.IsZero() || s.expired(now) || s.fetchMore.Until.After(now) {
		return false
	}
	waiting := 0
	for _, q := range s.order {
		if !q.stuck(now) { // others must not wait for a stuck queue
			waiting += len(q.failed)
		}
	}
	return waiting < maxHeads // otherwise this is asked again after a settled batch
}

// serveAside moves events to the failed events. It does not run while failed events are fetched or settled, because that may find that a
// key has no failed event just before one is moved there. The two take turns.
func (c *Core) serveAside(s *shard, now time.Time) (at time.Time) {
	switch {
	case len(s.aside) == 0 || len(s.setting) > 0 || s.settling || s.fetching:
	case s.asideRetry.Until.After(now):
		return s.asideRetry.Until
	case s.wasAside && (len(s.settles) > 0 && !s.settleRetry.Until.After(now) || s.fetchable(now)):
	default:
		c.setAside(s)
	}
	return time.Time{}
}

// setAside moves few bytes at once: until the transaction ends, the leases cannot be renewed.
func (c *Core) setAside(s *shard) {
	n := 1
	for bytes := s.aside[0].Size; n < min(len(s.aside), s.asideLimit); n++ {
		if bytes += s.aside[n].Size; bytes > batchBytes {
			break
		}
	}
	s.setting, s.aside = s.aside[:n:n], slices.Clone(s.aside[n:])
	s.wasAside = true
	for _, a := range s.setting {
		a.Moving = true
	}
	c.do(step.SetAside{Ref: s.Ref, Events: s.setting})
}

func (c *Core) wasSetAside(in step.WasSetAside, now time.Time) {
	s := c.shard(in.Ref)
	if s == nil {
		return
	}
	batch := s.setting
	s.setting = nil
	if in.Err != nil {
		s.aside = append(batch, s.aside...)
		s.asideLimit = max(1, len(batch)/2)
		c.failed("set events aside", s.Shard, c.backOff(&s.asideRetry, now), in.Err)
		return
	}
	s.asideRetry.OK()
	s.asideLimit = min(2*s.asideLimit, maxAside)
	for _, a := range batch {
		if in.Moved < len(batch) && a.Key != "" { // an operator may have discarded what blocks the key
			s.promote[a.Key] = struct{}{}
		}
		s.release(a.Event)
		c.letGo(saved{s, a.Event})
	}
	s.due = s.due || len(s.promote) > 0
	if slices.ContainsFunc(batch, func(a step.Aside) bool { return a.Reason == step.ReasonCrash }) {
		c.getsOn(s)
	}
	if !in.Leased {
		s.stopping = now // the next renewal decides
		return
	}
	for _, a := range batch {
		c.pollIn(a.RetryIn, now)
	}
	c.report(step.Report{Kind: step.ReportAside, Shard: s.Shard, Aside: batch[:min(in.Moved, len(batch))]})
}

func (c *Core) failedFetched(in step.FailedFetched, now time.Time) {
	s := c.shard(in.Ref)
	if s == nil {
		return
	}
	s.fetching = false
	if in.Err != nil {
		s.due, s.all = true, true
		s.fetchBytes = max(s.fetchBytes/2, leastBytes)
		c.failed("fetch failed events", s.Shard, c.backOff(&s.fetchMore, now), in.Err)
		return
	}
	s.fetchMore.OK()
	s.fetchBytes = min(2*s.fetchBytes, fetchBytes)
	if in.More {
		s.due = true
	}
	for _, k := range in.Freed {
		s.free(k)
	}
	for _, g := range in.Groups {
		if len(g) == 0 || g[0].State == step.Dead {
			continue
		}
		q := s.queue(g[0].Topic)
		n := 1
		for n < len(g) && g[n].Topic == g[0].Topic && g[n].State != step.Dead && !g[n].Crash && !g[0].Crash {
			n++
		}
		s.inFlight[g[0].ID] = struct{}{}
		q.failed = append(q.failed, g[:n])
	}
}

// sendFailed sends at most n failed events of a topic.
func (c *Core) sendFailed(s *shard, q *queue, n int, now time.Time) {
	noted := s.guard.Careful() || q.failed[0][0].Crash
	if noted && s.accuseFailed(q) {
		return
	}
	bytes := 0
	for len(q.failed) > 0 {
		g := q.failed[0]
		if len(q.retries) > 0 && g[0].Crash {
			break
		}
		m := 0
		for m < len(g) && len(q.retries)+m < n {
			if bytes += len(g[m].Payload); len(q.retries)+m > 0 && bytes > batchBytes {
				break
			}
			m++
		}
		if m == 0 {
			break
		}
		q.retries = append(q.retries, g[:m]...)
		q.groups = append(q.groups, g[:m])
		q.failed = q.failed[1:] // the rest is fetched again
		if m < len(g) {
			break
		}
	}
	if len(q.failed) == 0 {
		q.failed = nil
	}
	if noted {
		s.guard.Sends()
		c.noted, c.notedID = s, q.retries[0].EventID
	}
	q.retried = true
	rows := make([]*step.Row, len(q.retries))
	for i := range q.retries {
		rows[i] = &q.retries[i].Row
	}
	s.dispatch(q, rows, noted, now)
}

// settleFailed applies the results of a batch of failed events.
func (s *shard) settleFailed(q *queue, results []error, now time.Time) {
	c := s.core
	rows, groups := q.retries, q.groups
	q.retries, q.groups = nil, nil
	q.settled(now)
	if c.isNoted(s, rows[0].EventID) && results[0] != nil {
		s.survived(rows[0].EventID)
	}
	if slices.Contains(results, nil) {
		q.topic.Took(now)
	}
	var (
		done   = settlement{SettleFailed: step.SettleFailed{Ref: s.Ref}, queue: q, first: rows[0].EventID}
		outage error
		heard  bool
	)
	i := 0
	for _, g := range groups {
		done.heads = append(done.heads, g[0].ID)
		done.Keys = append(done.Keys, g[0].Key)
		ok := true
		for j := range g {
			e, err := &g[j], results[i]
			i++
			if !ok { // it stays blocked behind the one that failed
				continue
			}
			if err == nil {
				done.Done = append(done.Done, e.ID)
				delete(s.tried, e.ID)
				heard = true
				if e.Attempts > 0 && !e.Crash { // otherwise the reason of its failure is not known
					q.topic.Recovered(e.Reason)
				}
				continue
			}
			ok = false
			fault := c.fault(q.topic, err)
			if fault == Outage || fault == NotSent {
				if fault == Outage {
					outage = err
				}
				s.later = true
				continue
			}
			a := step.Again{ID: e.ID, State: step.Retrying, Reason: err.Error(), Attempts: e.Attempts}
			last := s.tried[e.ID]
			if len(s.tried) >= maxTried {
				clear(s.tried)
			}
			s.tried[e.ID] = now
			if isOwnFault(fault, last, q.topic.LastSuccess()) {
				q.topic.Heard()
				heard = true
				a.Attempts++
				a.State, a.RetryIn = c.verdict(q.topic, err, fault, a.Attempts)
			} else {
				_, wait := c.cfg.Retry(q.topic.Name, err, e.Attempts)
				a.RetryIn = c.cfg.Jitter(wait)
			}
			done.Again = append(done.Again, a)
			c.pollIn(a.RetryIn, now)
		}
	}
	switch {
	case outage != nil && len(done.Done) == 0:
		c.outage(q, outage, now)
	case heard:
		c.answered(q.topic, now)
		q.retry.OK()
	case len(done.Again) > 0:
		q.topic.Unclear(c.cfg.Jitter, now)
		q.retry.OK()
	default:
		c.restQueue(q, nil, now)
	}
	s.unsaved -= len(rows) - len(done.Done)
	q.unsaved -= len(rows) - len(done.Done)
	if len(done.Done)+len(done.Again) == 0 {
		s.landed(done)
		return
	}
	if len(done.Done) > 0 {
		c.leases.GotOn(now)
	}
	s.settles = append(s.settles, done)
	c.report(step.Report{Kind: step.ReportSettled, Shard: s.Shard, Topic: q.topic.Name, Count: len(rows), Failed: len(rows) - len(done.Done)})
}

// putBack drops fetched failed events that cannot be sent now, because operators may change them meanwhile.
func (s *shard) putBack(q *queue) {
	for _, g := range q.failed {
		delete(s.inFlight, g[0].ID)
		s.later = true
	}
	q.failed = nil
}

// landed records that failed events are no longer in flight.
func (s *shard) landed(f settlement) {
	for _, id := range f.heads {
		delete(s.inFlight, id)
	}
	s.unsaved -= len(f.Done)
	f.queue.unsaved -= len(f.Done)
	if s.core.isNoted(s, f.first) {
		s.core.noted = nil
	}
}

// failedSettled frees keys that have no failed event left. Events are not sent again until their results are recorded.
func (c *Core) failedSettled(in step.FailedSettled, now time.Time) {
	s := c.shard(in.Ref)
	if s == nil {
		return
	}
	s.settling = false
	if in.Err != nil {
		c.failed("record what became of failed events", s.Shard, c.backOff(&s.settleRetry, now), in.Err)
		return
	}
	s.settleRetry.OK()
	if slices.ContainsFunc(s.settles[0].Again, func(a step.Again) bool { return a.Reason == step.ReasonCrash }) {
		c.getsOn(s)
	}
	s.landed(s.settles[0])
	s.settles = s.settles[1:]
	for _, k := range in.Freed {
		s.free(k)
	}
	for _, k := range in.Left {
		s.blocked[k], s.promote[k] = struct{}{}, struct{}{} // a fetch beside it may have found since that the key has none left
		s.due = true
	}
}
