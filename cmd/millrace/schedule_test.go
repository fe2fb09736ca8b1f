package main

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/cmd/millrace/internal/cli"
	"github.com/millrace-go/millrace/outbox/schedule"
)

func TestScheduleCommands(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	o.run(cli.ExitOK, "migrate", "up")
	assert.Equal(t, "No schedules.\n", o.run(cli.ExitOK, "schedule", "list"))
	o.exec(`insert into {schema}.schedule values
		('billing', 'nightly-report', '0 3 * * *', 'Europe/Berlin', date_trunc('day', now()) + interval '10 years', now()),
		('billing', 'removed', '@hourly', 'UTC', '2020-01-01 00:30Z', null)`)
	table := o.run(cli.ExitOK, "schedule", "list")
	assert.Regexp(t, `billing +nightly-report +0 3 \* \* \* +Europe/Berlin +20\S+Z +20\S+Z\n`, table)
	assert.Regexp(t, `billing +removed +@hourly +UTC +- +2020-01-01T01:00:00Z, overdue by \S+`, table)
	var found []schedule.Entry
	require.NoError(t, json.Unmarshal([]byte(o.run(cli.ExitOK, "schedule", "list", "--json")), &found))
	require.Len(t, found, 2)
	assert.True(t, found[0].Next.After(*found[0].FiredAt))
	assert.Zero(t, found[0].Overdue())
	assert.Greater(t, found[1].Overdue(), 24*time.Hour)

	assert.Contains(t, o.run(cli.ExitUsage, "schedule", "forget", "removed"), "want the schedule as SERVICE/NAME")
	assert.Contains(t, o.run(cli.ExitFailed, "schedule", "forget", "shop/removed"), "there is no such schedule")
	assert.Equal(t, "The schedule billing/removed was forgotten.\n", o.run(cli.ExitOK, "schedule", "forget", "billing/removed"))
	assert.NotContains(t, o.run(cli.ExitOK, "schedule", "list"), "removed")
}
