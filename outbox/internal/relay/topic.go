package relay

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/millrace-go/millrace/outbox/internal/step"
)

// topic is what the relay knows of a topic, in all its shards. While the broker does not take it, one shard at a time asks
// again, after a backoff.
type topic struct {
	name        string
	to          string    // the topic that its events are published to
	paused      int64     // by an operator; 0: it is not
	lastSuccess time.Time // when the broker last took an event
	failing     time.Time // since when it has taken none; zero: it does
	err         error     // why

	failures int
	until    time.Time // no batch before
	probing  bool      // a batch asks
	since    time.Time // when it began to stand; zero: it does not

	reasons   []string  // errors that events have failed with that were published later
	retryDead time.Time // no retry of dead events before
	retrying  bool      // one is under way
}

func (c *Core) topic(name string) *topic {
	t := c.topics[name]
	if t == nil {
		t = &topic{name: name, to: name}
		c.topics[name] = t
	}
	return t
}

// maxIdleTopics is how many topics are remembered of which nothing is held.
const maxIdleTopics = 1000

// forgetTopics drops topics of which no shard holds anything, when there are many.
func (c *Core) forgetTopics() {
	if len(c.topics) <= maxIdleTopics {
		return
	}
	used := map[*topic]bool{}
	for _, s := range slices.Concat(c.order, slices.Collect(maps.Values(c.ended))) {
		for _, q := range s.order {
			used[q.topic] = true
		}
	}
	maps.DeleteFunc(c.topics, func(_ string, t *topic) bool { return !used[t] && t.paused == 0 && t.failures == 0 })
}

// stands reports whether no batch may be sent now.
func (t *topic) stands(now time.Time) bool {
	return t.paused != 0 || t.failures > 0 && (t.probing || t.until.After(now))
}

// control applies what operators have set. Nothing is set for a topic that is not among the controls.
func (c *Core) control(controls []step.Control) {
	set := map[string]step.Control{}
	for _, x := range controls {
		set[x.Topic] = x
		c.topic(x.Topic)
	}
	for _, name := range slices.Sorted(maps.Keys(c.topics)) {
		t := c.topics[name]
		to := cmp.Or(set[name].To, name)
		if to != t.to {
			c.redirect(t, to)
		}
		was := t.paused
		t.paused = cmp.Or(set[name].Paused, set[to].Paused)
		switch {
		case t.paused != 0 && was == 0:
			c.pause(t)
		case t.paused == 0 && was != 0:
			c.resume(t)
		}
	}
}

// pause makes a topic stand until an operator resumes it. Its events wait without their payloads, and are read again before they
// are sent: operators may discard them meanwhile.
func (c *Core) pause(t *topic) {
	for _, s := range c.order {
		if q := s.queues[t.name]; q != nil {
			for _, e := range q.ready {
				s.unload(e)
			}
		}
	}
	c.report(step.Report{Kind: step.ReportPaused, Topic: t.name})
}

// redirect has the topic's events published to another topic from the next batch on. A batch in flight is answered before the next
// one of the topic is sent, so each key keeps its order. That the former topic failed says nothing about the other one.
func (c *Core) redirect(t *topic, to string) {
	t.to, t.until = to, time.Time{}
	c.report(step.Report{Kind: step.ReportRedirected, Topic: t.name, Action: to})
}

func (c *Core) resume(t *topic) {
	for _, s := range c.order {
		s.due = true // failed events of the topic were not fetched
	}
	c.report(step.Report{Kind: step.ReportResumed, Topic: t.name})
}

// standing returns the topics of which no batch may be sent now.
func (c *Core) standing(now time.Time) (names []string) {
	for _, t := range c.topics {
		if t.stands(now) {
			names = append(names, t.name)
		}
	}
	slices.Sort(names)
	return names
}

// failed notes that the broker took nothing of a batch.
func (t *topic) failed(err error, now time.Time) {
	if t.failing.IsZero() {
		t.failing = now
	}
	if err != nil {
		t.err = err
	}
}

// took notes that the broker took an event.
func (t *topic) took(now time.Time) {
	t.lastSuccess = now
	t.heard()
}

// heard notes that the broker took an event or refused it for its own sake.
func (t *topic) heard() { t.failing, t.err = time.Time{}, nil }

// outage notes that the broker took nothing of the queue's batch, for no fault of its events. The next batch is a small one.
func (c *Core) outage(q *queue, err error, now time.Time) {
	q.window = max(1, c.share()/64)
	t := q.topic
	t.failed(err, now)
	t.failures++
	wait := min(firstBackoff<<min(t.failures-1, 10), maxTopicBackoff)
	t.until = now.Add(c.cfg.Jitter(wait))
	if t.since.IsZero() {
		t.since = now
		c.report(step.Report{Kind: step.ReportStands, Topic: t.name, Err: err})
	}
}

// answered notes that the broker took an event, or refused it for its own sake: the topic is there.
func (c *Core) answered(t *topic, now time.Time) {
	if t.failures == 0 {
		return
	}
	t.failures, t.until = 0, time.Time{}
	c.report(step.Report{Kind: step.ReportGetsOn, Topic: t.name, In: now.Sub(t.since)})
	t.since = time.Time{}
	for _, s := range c.shards {
		s.due = true // what had failed before the outage
	}
}
