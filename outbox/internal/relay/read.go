package relay

import (
	"slices"
	"time"

	"github.com/millrace-go/millrace/outbox/internal/deferral"
	"github.com/millrace-go/millrace/outbox/internal/gaps"
	"github.com/millrace-go/millrace/outbox/internal/step"
)

// read starts a read of the shards that have room and may have new rows. It returns when to call it again.
func (c *Core) read(now time.Time) (at time.Time) {
	if c.reading || len(c.order) == 0 {
		return time.Time{}
	}
	var (
		requests []step.Request
		fetches  [][]int64
	)
	rows, bytes, curious := 0, 0, false
	c.shed(now)
	full := c.weight(now) >= maxBytes
	for i := range c.order {
		s := c.order[(c.lastShard+i)%len(c.order)]
		if !s.loaded || !s.stopping.IsZero() {
			continue
		}
		fetch, drain := s.missing(now), s.drain(now)
		if !s.woken && len(fetch) == 0 && drain == nil || full && len(fetch) == 0 {
			continue
		}
		if len(fetch) == 0 && drain == nil && !c.rules.hungry(s, now) {
			continue
		}
		q := s.request(fetch, drain, now)
		size := min((q.Limit+len(fetch)+q.DrainLimit)*s.budget.Size(), q.Bytes)
		if len(requests) > 0 && (rows+q.Limit > max(2*c.cfg.BatchSize, maxRead) || bytes+size > batchBytes) {
			break // the next read does the rest
		}
		if c.readAfter.After(now) {
			return c.readAfter
		}
		rows += q.Limit
		bytes += size
		curious = curious || s.gaps.Curious()
		s.woken = false
		requests, fetches = append(requests, q), append(fetches, fetch)
	}
	if len(requests) == 0 {
		return time.Time{}
	}
	c.reading, c.readSince, c.asked, c.fetches = true, now, requests, fetches
	c.do(step.Read{Requests: requests, Writers: curious})
	return time.Time{}
}

func (c *Core) weight(now time.Time) (bytes int) {
	for _, s := range c.order {
		bytes += s.weight(now)
	}
	return bytes
}

// hungry reports whether the shard needs more events: few are ready in the queues that make progress.
func (s *shard) hungry(now time.Time) bool {
	ready, bytes := 0, 0
	for _, q := range s.order {
		if !q.stuck(now) { // others must not wait for a stuck queue
			ready += len(q.ready)
			bytes += q.bytes
		}
	}
	return ready < s.core.cfg.BatchSize && bytes < batchBytes
}

// missing returns the numbers of events whose payloads are needed next.
func (s *shard) missing(now time.Time) (list []int64) {
	if s.bare == 0 {
		return nil
	}
	batch, bytes := s.core.cfg.BatchSize, s.weight(now)
	for _, q := range s.order {
		if q.bare == 0 || q.stuck(now) {
			continue
		}
		for i, e := range q.ready[:min(len(q.ready), batch, max(q.window, 1))] {
			if e.Payload == nil && !e.Gone {
				if bytes >= batchBytes && (i > 0 || q.busy()) {
					break // they are read when they are next
				}
				if bytes += s.budget.Size(); len(list) > 0 && (bytes > batchBytes || len(list) == batch) {
					return list
				}
				list = append(list, e.Seq)
			}
		}
	}
	return list
}

// request returns what the next read of the shard looks for.
func (s *shard) request(fetch []int64, drain *queue, now time.Time) step.Request {
	batch := s.core.cfg.BatchSize
	q := step.Request{Ref: s.Ref, From: s.gaps.From(), Limit: s.budget.Rows(batch), Bytes: s.budget.Bytes()}
	scanning, begun := s.gaps.Scanning()
	q.Table = scanning || len(fetch) > 0 || drain != nil
	if scanning {
		q.Scan = !begun
		q.Limit += len(s.held) + s.core.rules.passes(s) // a scan returns those again
	} else {
		q.List = s.gaps.List()
	}
	if drain != nil { // its deferred rows are below what a scan reads
		q.Drain, q.DrainFrom = drain.topic.Name, drain.deferred.From()
		q.DrainLimit = max(min(q.Limit, drain.quota(s.core)-drain.held), 1)
	}
	q.List = append(q.List, fetch...)
	for _, o := range s.order {
		if o.deferred.Any() || o.stuck(now) && len(o.ready) > 0 {
			q.Hide = append(q.Hide, o.topic.Name)
			q.Limit = max(q.Limit, batch) // their rows are small
		}
	}
	// A sum over the rows costs the server as much as finding them. For small rows, a bound per payload is enough.
	if len(q.List) == 0 && q.DrainLimit == 0 {
		q.Each = s.budget.Each(q.Limit)
	}
	return q
}

// readDone handles what a read has found.
func (c *Core) readDone(in step.ReadDone, now time.Time) {
	asked, fetches := c.asked, c.fetches
	c.reading, c.asked, c.fetches = false, nil, nil
	defer c.exorcise(true, false)
	if in.Err != nil {
		// The next answer may come from another server, so nothing remembered is valid.
		c.forget()
		for _, q := range asked {
			if s := c.shard(q.Ref); s != nil {
				s.woken = true
				s.budget.Failed()
			}
		}
		wait := c.backOff(&c.readRetry, now)
		c.readAfter = now.Add(wait)
		c.failed("read the outbox", 0, wait, in.Err)
		return
	}
	c.readRetry.OK()
	if in.Moved {
		c.forget()
	}
	rows, scanning := 0, false
	for i, q := range asked {
		if s := c.shard(q.Ref); s != nil {
			if q.From != s.gaps.From() { // the shard has reset its memory since, and reads again from there
				s.woken = true
				continue
			}
			s.budget.OK()
			rows += c.digest(s, q, fetches[i], in.Shards[i], in.Answer, now)
			still, _ := s.gaps.Scanning()
			scanning = scanning || still
		}
	}
	// Under load, reads without a pause find little and cost as much.
	c.readAfter = now.Add(min(time.Duration(rows)*300*time.Microsecond, maxPace))
	switch {
	case rows == 0 && scanning: // the scan waits for writers
		c.readAfter = now.Add(min(max(maxPace, now.Sub(c.readSince)), time.Second))
	case rows >= c.cfg.BatchSize/2:
		c.readAfter = now
	}
}

func (c *Core) forget() {
	for _, s := range c.order {
		s.gaps.Forget(0)
	}
}

// stuckRows counts the rows that were deferred because their topic makes no progress. A topic that does makes room by itself.
func (s *shard) stuckRows(found []*step.Event, now time.Time) (n int) {
	for _, e := range found {
		if s.held[e.Identity()] == nil && s.queue(e.Topic).stuck(now) {
			n++
		}
	}
	return n
}

// digest handles what was found in one shard, and returns how many events are new.
func (c *Core) digest(s *shard, q step.Request, fetch []int64, f step.Found, a step.Answer, now time.Time) int {
	for _, events := range [][]*step.Event{f.Listed, f.Above, f.Drained} {
		for _, e := range events {
			e.Written = now.Add(e.Written.Sub(a.Now)) // by this process's clock
		}
	}
	before, scan := s.arrivals, deferral.NoScan
	if scanning, _ := s.gaps.Scanning(); scanning {
		scan = c.rules.scan(q)
	}
	s.lose(fetch, f.Listed)
	f.Listed = slices.DeleteFunc(f.Listed, func(e *step.Event) bool { // a lost row's number was used again: the row has its turn in Above
		return e.Seq > q.From && s.held[e.Identity()] == nil
	})
	fresh := s.take(f.Listed, deferral.NoScan, false)
	if q.DrainLimit > 0 {
		s.take(f.Drained, deferral.NoScan, true)
		s.drained(s.queue(q.Drain), q, f.Drained)
	}
	fresh = append(fresh, s.take(f.Above, scan, false)...)
	if scan != deferral.NoScan {
		s.budget.Passed(s.stuckRows(f.Above, now))
		if len(f.Above) < q.Limit {
			s.scanned(scan)
		}
		s.unstall()
	}
	view := gaps.View{Numbers: make([]int64, len(f.Above)), Fresh: fresh, More: len(f.Above) >= q.Limit, Last: f.Last, Writers: a.Writers}
	for i, e := range f.Above {
		view.Numbers[i] = e.Seq
	}
	if s.gaps.Learn(view) {
		c.report(step.Report{Kind: step.ReportSurprise, Shard: s.Shard})
	}
	if view.More || s.bare > 0 && len(fetch) > 0 {
		s.woken = true
	}
	if len(f.Above) == 0 && s.guard.Deaths() > 0 && len(s.held) == 0 && !s.retries() {
		c.getsOn(s) // the shard is empty, so no event in it ends the relay
	}
	return int(s.arrivals - before)
}

// lose drops events whose payloads were requested and whose rows no longer exist: something else deleted them, or a failover lost them.
func (s *shard) lose(fetch []int64, listed []*step.Event) {
	if len(fetch) == 0 {
		return
	}
	there := map[step.Identity]bool{}
	for _, e := range listed {
		there[e.Identity()] = true
	}
	for _, q := range s.order {
		for _, e := range q.ready {
			if e.Payload == nil && !e.Gone && !there[e.Identity()] && slices.Contains(fetch, e.Seq) {
				e.Gone = true
				s.strip(e, -1)
				s.drop(e)
			}
		}
	}
}

// rescan compares the held events with the table, beside the reads. It finds rows that exist although their numbers are no gaps. A rescan
// walks the deferred rows of its shard too, so it covers one shard, to keep its load on the server small.
func (c *Core) rescan(now time.Time) (at time.Time) {
	if len(c.rescans) > 0 || len(c.order) == 0 {
		return time.Time{}
	}
	if c.rescanAfter.After(now) {
		return c.rescanAfter
	}
	var first *shard // the one that is due first
	for _, s := range c.order {
		if !s.rescannable() {
			continue
		}
		if s.rescanAt.IsZero() {
			s.rescanAt = now.Add(rescanEvery)
		}
		if first == nil || s.rescanAt.Before(first.rescanAt) {
			first = s
		}
	}
	if first == nil {
		return time.Time{}
	}
	if first.rescanAt.After(now) {
		return first.rescanAt
	}
	for _, s := range c.order {
		if s != first && (first.deferring+s.deferring > 0 || !s.rescannable()) {
			continue
		}
		s.rescanAt = now.Add(rescanEvery)
		q := step.RescanRequest{Ref: s.Ref, UpTo: s.gaps.From(), Limit: len(s.held) + c.cfg.BatchSize}
		for _, o := range s.order {
			if o.deferred.Any() {
				q.Skip = append(q.Skip, o.topic.Name)
			}
		}
		c.rescans = append(c.rescans, q)
	}
	c.rescanned = now
	c.do(step.Rescan{Requests: c.rescans})
	return time.Time{}
}

// rescannable reports whether a rescan can compare the shard with the table: no scan is running, so the shard knows what it has read.
func (s *shard) rescannable() bool {
	scanning, _ := s.gaps.Scanning()
	return !scanning && s.loaded
}

func (c *Core) rescanDone(in step.Rescanned, now time.Time) {
	asked := c.rescans
	rest := rescanShare * now.Sub(c.rescanned)
	c.rescans, c.rescanAfter = nil, now.Add(rest)
	if in.Err != nil {
		c.failed("compare the outbox with what is held", 0, max(rescanEvery, rest), in.Err)
	} else {
		for i, q := range asked {
			s := c.shard(q.Ref)
			if s == nil {
				continue
			}
			if scanning, _ := s.gaps.Scanning(); scanning {
				continue
			}
			if slices.ContainsFunc(in.Rows[i], func(id step.Identity) bool { return s.misses(id) }) {
				s.gaps.Forget(0)
				s.woken = true
				c.report(step.Report{Kind: step.ReportSurprise, Shard: s.Shard})
			}
		}
	}
	c.exorcise(false, true)
}

// misses reports whether the shard should hold a row and does not. A row in a gap is not missed, because the next read looks for it.
func (s *shard) misses(id step.Identity) bool {
	if _, ok := s.held[id]; ok {
		return false
	}
	return !slices.Contains(s.gaps.List(), id.Seq)
}
