package framework

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

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
		"somebody's, and stuck":  {shard: outboxadmin.ShardReport{Oldest: ago(6 * time.Minute), Held: true, Relay: "r1", Suspect: "e"}, backlog: "3 (6m0s, held by relay r1, which suspects event e)"},
		"nobody's, and too late": {shard: outboxadmin.ShardReport{Oldest: ago(6 * time.Minute)}, relays: "shards 3", backlog: "which no relay holds"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.shard.Shard = 3
			checks := Health{}.WithDefaults().judgeOutbox(&outboxadmin.Report{At: now, Shards: []outboxadmin.ShardReport{{}, c.shard}})
			for i, want := range []string{c.relays, c.backlog} {
				assert.Equal(t, want == "", checks[i].OK)
				assert.Contains(t, checks[i].Problem, want)
			}
		})
	}
}

// What is tolerated is told, and the service is ready.
func TestJudge(t *testing.T) {
	t.Parallel()
	checks := func() []check { return []check{{Name: checkPostgres, OK: true}, {Name: checkBroker}} }
	assert.False(t, Health{}.judge(checks()).Ready)
	v := Health{Tolerate: []string{checkBroker, checkPostgres}}.judge(checks())
	assert.True(t, v.Ready)
	assert.Equal(t, []check{{Name: checkPostgres, OK: true}, {Name: checkBroker, Tolerated: true}}, v.Checks)
	assert.True(t, Health{}.judge(nil).Ready)
}

func TestHealthIsValidated(t *testing.T) {
	t.Parallel()
	assert.NoError(t, Health{}.WithDefaults().Validate())
	err := Health{MaxBacklogAge: -1, MaxUnrelayed: -1, Timeout: -1, Tolerate: []string{"broker", "brker"}}.WithDefaults().Validate()
	for _, want := range []string{"MaxBacklogAge is -1ns", "MaxUnrelayed", "Timeout", `Tolerate[1] is "brker": want one of backlog, broker`} {
		assert.ErrorContains(t, err, want)
	}
}
