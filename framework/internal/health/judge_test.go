package health

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
)

func TestJudgeOutbox(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	ago := func(d time.Duration) *time.Time { at := now.Add(-d); return &at }
	for name, c := range map[string]struct {
		shard           outboxadmin.ShardReport
		relays, backlog string // what the problem tells
	}{
		"empty, and nobody's":    {shard: outboxadmin.ShardReport{}},
		"young, and nobody's":    {shard: outboxadmin.ShardReport{Oldest: ago(29 * time.Second)}},
		"nobody's for too long":  {shard: outboxadmin.ShardReport{Oldest: ago(31 * time.Second), Pending: outboxadmin.Count{N: 7}}, relays: "shards 3 (7 events, the oldest for 31s)"},
		"somebody's":             {shard: outboxadmin.ShardReport{Oldest: ago(4 * time.Minute), Held: true}},
		"somebody's, and stuck":  {shard: outboxadmin.ShardReport{Oldest: ago(6 * time.Minute), OldestMoving: ago(6 * time.Minute), Held: true, Relay: "r1", Suspect: "e"}, backlog: "3 (6m0s, held by relay r1, which suspects event e)"},
		"nobody's, and too late": {shard: outboxadmin.ShardReport{Oldest: ago(6 * time.Minute), OldestMoving: ago(6 * time.Minute)}, relays: "shards 3", backlog: "which no relay holds"},
		"held up by a topic":     {shard: outboxadmin.ShardReport{Oldest: ago(6 * time.Minute), OldestMoving: ago(time.Minute), Held: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.shard.Shard = 3
			checks := Config{}.WithDefaults().judgeOutbox(&outboxadmin.Report{At: now, Shards: []outboxadmin.ShardReport{{}, c.shard}})
			for i, want := range []string{c.relays, c.backlog} {
				assert.Equal(t, want == "", checks[i].OK)
				assert.Contains(t, checks[i].Problem, want)
			}
		})
	}
}

// A topic that is paused or failing is named, and makes no service unready.
func TestJudgeTopics(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	since := now.Add(-10 * time.Minute)
	report := &outboxadmin.Report{At: now, Topics: []outboxadmin.TopicReport{
		{Topic: "ill", TopicState: outboxadmin.TopicState{State: outboxadmin.TopicFailing, Since: &since, Reason: "permission denied"}},
		{Topic: "one", TopicState: outboxadmin.TopicState{State: outboxadmin.TopicPaused, Since: &since, By: "ada"}},
		{Topic: "slow", TopicState: outboxadmin.TopicState{State: outboxadmin.TopicSlow, Since: &since}},
	}}
	checks := Config{}.WithDefaults().judgeOutbox(report)
	assert.Equal(t, check{Name: Relays, OK: true}, checks[0])
	assert.Equal(t, check{Name: Backlog, OK: true, Problem: "the broker has taken no event of topic ill for 10m0s: \"millrace outbox status\" says why; topic one was paused 10m0s ago by ada"}, checks[1])
	for range 20 {
		report.Topics = append(report.Topics, report.Topics[0])
	}
	assert.Contains(t, Config{}.WithDefaults().judgeOutbox(report)[1].Problem, "says why; and 12 more topics")
}

// A consumer that is paused is named, and makes no service unready.
func TestCircuitBreakerAndReadiness(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	assert.Equal(t, check{Name: checkHandlers, OK: true}, judgePauses(nil, now))
	pause := claim.Pause{Consumer: "labour/notify", Since: now.Add(-time.Minute), Error: "no answer"}
	assert.Equal(t, check{Name: checkHandlers, OK: true, Problem: "consumer labour/notify has been paused for 1m0s, because its events fail one after the other: \"millrace doctor\" and the log have the error"},
		judgePauses([]claim.Pause{pause}, now))
}

// Without the database and its tables a service is not ready. It reports what else fails, and is ready unless that is required.
func TestJudge(t *testing.T) {
	t.Parallel()
	checks := func() []check {
		return []check{{Name: checkPostgres, OK: true}, {Name: checkBroker}, {Name: Backlog}}
	}
	v := Config{}.judge(checks())
	assert.True(t, v.Ready)
	assert.Equal(t, []check{{Name: checkPostgres, OK: true}, {Name: checkBroker, Tolerated: true}, {Name: Backlog, Tolerated: true}}, v.Checks)
	v = Config{Require: []string{checkBroker}}.judge(checks())
	assert.False(t, v.Ready)
	assert.Equal(t, []check{{Name: checkPostgres, OK: true}, {Name: checkBroker}, {Name: Backlog, Tolerated: true}}, v.Checks)
	assert.True(t, Config{}.judge(nil).Ready)
	for _, name := range []string{checkPostgres, checkTables, checkStopping} {
		assert.False(t, Config{}.judge([]check{{Name: name}}).Ready, name)
	}
}

func TestConfigIsValidated(t *testing.T) {
	t.Parallel()
	assert.NoError(t, Config{}.WithDefaults().Validate())
	err := Config{MaxBacklogAge: -1, MaxUnrelayed: -1, Timeout: -1, Require: []string{"broker", "brker"}}.WithDefaults().Validate()
	for _, want := range []string{"MaxBacklogAge is -1ns", "MaxUnrelayed", "Timeout", `Require[1] is "brker": want one of backlog, broker, relays`} {
		assert.ErrorContains(t, err, want)
	}
}
