package health

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
)

// judge decides whether the service is ready.
func (cfg Config) judge(checks []check) verdict {
	v := verdict{Ready: true, Checks: checks}
	for i := range checks {
		c := &checks[i]
		c.Tolerated = !c.OK && slices.Contains(optional, c.Name) && !slices.Contains(cfg.Require, c.Name)
		v.Ready = v.Ready && (c.OK || c.Tolerated)
	}
	return v
}

// judgeOutbox turns a report about the outbox into checks.
func (cfg Config) judgeOutbox(r *outboxadmin.Report) []check {
	var late, alone []string
	for _, s := range r.Shards {
		if age := r.Age(s.Oldest).Truncate(time.Second); !s.Held && age > cfg.MaxUnrelayed {
			alone = append(alone, fmt.Sprintf("%d (%s events, the oldest for %s)", s.Shard, s.Pending, age))
		}
		if age := r.Age(s.OldestMoving).Truncate(time.Second); age > cfg.MaxBacklogAge {
			by := "which no relay holds"
			if s.Held {
				by = "held by relay " + s.Relay
			}
			if s.Suspect != "" {
				by += fmt.Sprintf(", which suspects event %s", s.Suspect)
			}
			late = append(late, fmt.Sprintf("%d (%s, %s)", s.Shard, age, by))
		}
	}
	relays, backlog := check{Name: Relays, OK: len(alone) == 0}, check{Name: Backlog, OK: len(late) == 0}
	if !relays.OK {
		relays.Problem = "no relay holds the shards " + strings.Join(alone, ", ") + ": see that one runs, in a service or by \"millrace relay\""
	}
	if !backlog.OK {
		backlog.Problem = fmt.Sprintf("events wait for more than %s in the shards %s: see the relay's log, \"millrace outbox status\" and whether the broker takes messages",
			cfg.MaxBacklogAge, strings.Join(late, ", "))
	}
	if waiting := waitingTopics(r); waiting != "" {
		backlog.Problem = strings.TrimPrefix(backlog.Problem+"; "+waiting, "; ")
	}
	return []check{relays, backlog}
}

// waitingTopics names the topics that are paused or failing. They do not make a service unready: its other topics work, and the
// outbox keeps the events of these.
func waitingTopics(r *outboxadmin.Report) string {
	var list []string
	for _, t := range r.Topics {
		since := r.Age(t.Since).Truncate(time.Second)
		switch t.State {
		case outboxadmin.TopicPaused:
			list = append(list, fmt.Sprintf("topic %s was paused %s ago by %s", t.Topic, since, cmp.Or(t.By, "an operator")))
		case outboxadmin.TopicFailing:
			list = append(list, fmt.Sprintf("the broker has taken no event of topic %s for %s: \"millrace outbox status\" says why", t.Topic, since))
		}
	}
	if len(list) > maxWaitingTopics {
		list = append(list[:maxWaitingTopics], fmt.Sprintf("and %d more topics", len(list)-maxWaitingTopics))
	}
	return strings.Join(list, "; ")
}

// maxWaitingTopics bounds how many topics, and how many consumers, /readyz names.
const maxWaitingTopics = 10

// judgePauses names the paused consumers. The check is always OK: the service's other consumers work, and it takes requests.
func judgePauses(pauses []claim.Pause, now time.Time) check {
	var list []string
	for _, p := range pauses[:min(len(pauses), maxWaitingTopics)] {
		list = append(list, fmt.Sprintf("consumer %s has been paused for %s, because its events fail one after the other: \"millrace doctor\" and the log have the error", p.Consumer, now.Sub(p.Since).Truncate(time.Second)))
	}
	return check{Name: checkHandlers, OK: true, Problem: strings.Join(list, "; ")}
}
