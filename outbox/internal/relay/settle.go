package relay

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/millrace-go/millrace/outbox/internal/backoff"
	"github.com/millrace-go/millrace/outbox/internal/step"
	"github.com/millrace-go/millrace/outbox/internal/topic"
)

// Fault is what an error says about the event.
type Fault int

// The faults.
const (
	Unknown  Fault = iota // the event's own, if the broker accepts other events of its topic
	Outage                // the broker or the topic is unavailable; this does not count against the event
	NotSent               // an earlier event of its key failed
	Rejected              // the event can never be sent
)

// isOwnFault reports whether a failure counts against the event, whose previous failure was at failedAt (zero: none). An error of unknown
// meaning is the event's own only if the broker accepted another event of its topic between two of its failures. Otherwise it may be an
// outage.
func isOwnFault(f Fault, failedAt, lastSuccess time.Time) bool {
	return f == Rejected || f == Unknown && !failedAt.IsZero() && lastSuccess.After(failedAt)
}

// fault returns what the error of an event means. An event that was not sent because the lease had ended has not failed.
func (c *Core) fault(t *topic.Topic, err error) Fault {
	if errors.Is(err, step.ErrLeaseOver) {
		return NotSent
	}
	f := c.cfg.Fault(err)
	if f == Unknown {
		if dead, _ := c.cfg.Retry(t.Name, err, 0); dead {
			return Rejected
		}
	}
	return f
}

// restQueue makes the queue wait after a batch of which nothing was sent. err is nil if the broker was not asked. The next batch is as large
// as before, because the topic may have events that can be sent behind many that cannot.
func (c *Core) restQueue(q *queue, err error, now time.Time) {
	if err != nil {
		q.topic.Failed(err, now)
		q.topic.Unclear(c.cfg.Jitter, now)
	}
	q.retry.Failed(backoff.First, backoff.MostOfTopic, c.cfg.Jitter, now)
}

// verdict decides about an event after attempts failures of its own.
func (c *Core) verdict(t *topic.Topic, err error, f Fault, attempts int) (state string, in time.Duration) {
	dead, wait := c.cfg.Retry(t.Name, err, attempts)
	if f == Rejected || dead {
		return step.Dead, 0
	}
	return step.Retrying, c.cfg.Jitter(wait)
}

// settle applies the results of a queue's batch.
func (s *shard) settle(q *queue, results []error, now time.Time) {
	c := s.core
	batch := q.sending
	q.sending = nil
	q.settled(now)
	if slices.Contains(results, nil) {
		q.topic.Took(now)
	}
	var (
		acked       = make([]*step.Event, 0, len(batch))
		back        []*step.Event
		report      = step.Report{Kind: step.ReportFailed, Shard: s.Shard, Topic: q.topic.Name}
		own, outage error
	)
	for i, e := range batch {
		err := results[i]
		if err == nil {
			e.Leaving = true
			acked = append(acked, e)
			s.release(e)
			q.topic.Recovered(e.Reason)
			if k, _ := e.OfKey.(*key); k != nil {
				k.retry.Wait = 0
			}
			s.settleKey(e)
			continue
		}
		s.unsaved--
		q.unsaved--
		fault := c.fault(q.topic, err)
		k := keyOf(e)
		if _, ok := s.blocked[k.name]; ok && k.name != "" { // an earlier event of the batch was set aside
			k.pending--
			s.block(e)
			continue
		}
		if k.failing { // it follows the event that failed
			k.pending--
			s.hold(k, e)
			continue
		}
		if fault == Outage || fault == NotSent {
			if fault == Outage {
				outage = err
			}
			s.unload(e) // the publisher may have changed it
			back = append(back, e)
			continue
		}
		k.pending--
		if report.Failed++; report.Event == nil {
			report.Event, report.Err = e, err
		}
		counts := isOwnFault(fault, e.FailedAt, q.topic.LastSuccess())
		e.FailedAt, e.Reason = now, err.Error()
		if counts {
			own = err
			q.topic.Heard()
			e.Attempts++
			state, in := c.verdict(q.topic, err, fault, int(e.Attempts))
			s.fail(k, step.Aside{Event: e, State: state, Reason: err.Error(), Attempts: int(e.Attempts), RetryIn: in})
			continue
		}
		s.hold(k, e)
		k.failing = true
		c.backOff(&k.retry, now)
		s.failing[k] = struct{}{}
		s.resumeAt = backoff.Earliest(s.resumeAt, k.retry.Until)
	}
	q.ready = append(back, q.ready...)
	switch {
	case outage != nil && len(acked) == 0:
		c.outage(q, outage, now)
	case len(acked) > 0:
		if q.retry.Wait > 0 { // the outage is over
			q.retry.OK()
			for k := range s.failing {
				if k.queue == q {
					k.retry.Until, s.resumeAt = now, now
				}
			}
		}
		if len(acked) == len(batch) {
			q.window = min(2*q.window, max(1, c.share()))
		}
	case own == nil && len(batch) > 0:
		c.restQueue(q, report.Err, now)
	}
	if len(acked) > 0 || own != nil && outage == nil {
		c.answered(q.topic, now)
	}
	if len(acked) < len(batch) {
		s.divert(q)
	}
	for _, e := range acked {
		c.acked(s, e, now)
	}
	if report.Failed > 0 {
		report.In = max(q.retry.Until.Sub(now), 0)
		c.report(report)
	}
	c.report(step.Report{Kind: step.ReportSettled, Shard: s.Shard, Topic: q.topic.Name, Events: acked, Count: len(batch), Failed: len(batch) - len(acked)})
}

// divert takes events out of the queue that must wait for an earlier event of their key.
func (s *shard) divert(q *queue) {
	q.ready = slices.DeleteFunc(slices.Clone(q.ready), func(e *step.Event) bool {
		k, _ := e.OfKey.(*key)
		if k == nil || k.name == "" {
			return false
		}
		if _, ok := s.blocked[k.name]; ok {
			k.pending--
			s.block(e)
			return true
		}
		if k.failing {
			k.pending--
			s.hold(k, e)
		}
		return k.failing
	})
	// Waiting events were appended before the rest of the queue, so sort by number.
	slices.SortStableFunc(s.aside, func(a, b step.Aside) int { return cmp.Or(cmp.Compare(a.Seq, b.Seq), cmp.Compare(a.Arrival, b.Arrival)) })
}
