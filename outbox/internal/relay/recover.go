package relay

import (
	"maps"
	"slices"
	"time"

	"github.com/millrace-go/millrace/outbox/internal/step"
)

// An error of unknown meaning that kept events from being published was no fault of theirs if another event failed with it and
// was published later: a part of the broker was out of reach, or it was overloaded. Events that are dead because of it are then
// tried again. They keep their attempts, so that one that fails again is dead again.

const (
	// recoverEvery is the least time between two such retries of a topic.
	recoverEvery = time.Minute
	// maxReasons bounds how many errors of a topic are remembered until then.
	maxReasons = 10
)

// recovered notes that an event was published that had failed with that error before.
func (t *topic) recovered(reason string) {
	if reason != "" && len(t.reasons) < maxReasons && !slices.Contains(t.reasons, reason) {
		t.reasons = append(t.reasons, reason)
	}
}

// retryDead has dead events retried whose errors have gone away.
func (c *Core) retryDead(now time.Time) (at time.Time) {
	for _, name := range slices.Sorted(maps.Keys(c.topics)) {
		switch t := c.topics[name]; {
		case len(t.reasons) == 0 || t.retrying:
		case t.retryDead.After(now):
			at = earliest(at, t.retryDead)
		default:
			t.retrying, t.retryDead = true, now.Add(c.cfg.Jitter(recoverEvery))
			c.do(step.RetryDead{Topic: name, Reasons: t.reasons})
			t.reasons = nil
		}
	}
	return at
}

func (c *Core) deadRetried(in step.DeadRetried, now time.Time) {
	t := c.topic(in.Topic)
	t.retrying = false
	if in.Err != nil {
		for _, reason := range in.Reasons {
			t.recovered(reason)
		}
		c.failed("retry dead events whose error has gone away", 0, t.retryDead.Sub(now), in.Err)
		return
	}
	if in.Events > 0 {
		c.pollAt = time.Time{}
		c.report(step.Report{Kind: step.ReportRetried, Topic: in.Topic, Count: in.Events})
	}
}
