package relay

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/millrace-go/millrace/outbox/internal/backoff"
	"github.com/millrace-go/millrace/outbox/internal/step"
	"github.com/millrace-go/millrace/outbox/internal/topic"
)

// usedTopics returns the topics of which a shard has a queue.
func (c *Core) usedTopics() map[*topic.Topic]bool {
	used := map[*topic.Topic]bool{}
	for _, s := range slices.Concat(c.order, slices.Collect(maps.Values(c.ended))) {
		for _, q := range s.order {
			used[q.topic] = true
		}
	}
	return used
}

// use returns the state of a topic in all shards.
func (c *Core) use(name string, now time.Time) (u topic.Use) {
	for _, s := range c.order {
		q := s.queues[name]
		if q == nil {
			continue
		}
		u.InFlight = u.InFlight || q.busy() || q.unsaved > 0
		u.Waiting = u.Waiting || q.held > 0 || len(q.failed)+len(q.retries) > 0 || q.deferred.Any()
		if q.retry.Until.After(now) {
			u.Next = backoff.Earliest(u.Next, q.retry.Until)
		}
		if q.slow(now) && (len(q.ready) > 0 || q.deferred.Any()) {
			u.SlowSince = backoff.Earliest(u.SlowSince, cmp.Or(q.slowSince, q.since))
		}
	}
	for _, s := range c.ended {
		q := s.queues[name]
		u.InFlight = u.InFlight || q != nil && q.busy()
	}
	return u
}

// topicStates returns why events of topics wait.
func (c *Core) topicStates(now time.Time) []step.TopicState {
	return c.topics.States(func(name string) topic.Use { return c.use(name, now) }, now)
}

// control applies operators' settings. Events of a paused topic wait without their payloads and are read again before they are sent,
// because operators may discard them meanwhile. When a topic is resumed, its failed events are fetched. asked is when the settings were
// asked for, in ticks.
func (c *Core) control(controls []step.Control, asked uint64) {
	if asked < c.heard { // they may be older than those that came since
		c.pollAt = time.Time{}
		return
	}
	c.ticks++
	c.heard = c.ticks
	for _, change := range c.topics.Control(controls) {
		report := step.Report{Kind: change.Kind, Topic: change.Name}
		switch change.Kind {
		case step.ReportRedirected:
			report.Action = change.To
		case step.ReportPaused:
			for _, s := range c.order {
				if q := s.queues[change.Name]; q != nil {
					for _, e := range q.ready {
						s.unload(e)
					}
				}
			}
		default:
			for _, s := range c.order {
				s.due = true
			}
		}
		c.report(report)
	}
}

// outage records that the broker accepted nothing of the queue's batch, through no fault of its events. The next batch is small.
func (c *Core) outage(q *queue, err error, now time.Time) {
	q.window = max(1, c.share()/64)
	if q.topic.Outage(err, c.cfg.Jitter, now) {
		c.report(step.Report{Kind: step.ReportStands, Topic: q.topic.Name, Err: err})
	}
}

// answered records that the broker accepted an event, or rejected that event itself.
func (c *Core) answered(t *topic.Topic, now time.Time) {
	stood, how := t.Answered(now)
	if !stood {
		return
	}
	c.report(step.Report{Kind: step.ReportGetsOn, Topic: t.Name, In: how})
	for _, s := range c.shards {
		s.due = true // events that failed before the outage
	}
}

// retryDead retries dead events whose errors have gone away.
func (c *Core) retryDead(now time.Time) (at time.Time) {
	retries, at := c.topics.RetryDead(c.cfg.Jitter, now)
	for _, r := range retries {
		c.do(r)
	}
	return at
}

func (c *Core) deadRetried(in step.DeadRetried, now time.Time) {
	again := c.topics.DeadRetried(in, now)
	switch {
	case in.Err != nil:
		c.failed("retry dead events whose error has gone away", 0, again, in.Err)
	case in.Events > 0:
		c.pollAt = time.Time{}
		c.report(step.Report{Kind: step.ReportRetried, Topic: in.Topic, Count: in.Events})
	}
}
