package framework_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework"
	"github.com/millrace-go/millrace/outbox/schedule"
)

// reportDue is the event of a schedule.
type reportDue struct{ At time.Time }

func dueAt(at time.Time) (string, reportDue) { return "reports", reportDue{at} }

// reporting is a service with a schedule and the handler of its events.
func (w *world) reporting(expression string, times schedule.Times, handled chan<- time.Time) *framework.Service {
	cfg := w.config()
	cfg.Schedules = map[string]schedule.Times{"report": times}
	svc := w.service(cfg)
	topic := framework.Topic[reportDue](w.topic("report.due"))
	require.NoError(w.t, framework.Schedule(svc, "report", expression, topic, dueAt))
	require.NoError(w.t, framework.Handle(svc, w.name("report"), topic, func(ctx context.Context, e reportDue) error {
		event := framework.EventFrom(ctx)
		assert.Equal(w.t, "labour/report@"+e.At.Format(time.RFC3339), event.ID)
		assert.Equal(w.t, "reports", event.Key)
		handled <- e.At
		return nil
	}))
	return svc
}

// Three services run, and each second has one event, whichever of them fires and handles it. The configuration's expression wins
// over the program's.
func TestScheduleInAFleetOfServices(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "memory")
	w.migrated()
	handled := make(chan time.Time, 1000)
	for range 3 {
		w.start(w.reporting("0 0 1 1 *", schedule.Times{Expression: "* * * * * *", Missed: schedule.CatchUp}, handled))
	}
	seen := map[time.Time]bool{}
	var first, last time.Time
	for len(seen) < 4 || last.Sub(first) != time.Duration(len(seen)-1)*time.Second {
		at := next(t, handled)
		require.False(t, seen[at], "%v is handled twice", at)
		if seen[at] = true; first.IsZero() || at.Before(first) {
			first = at
		}
		if at.After(last) {
			last = at
		}
	}
}

// A database that was restored fires a time again, and its event is handled once.
func TestScheduleInARestoredDatabaseHasOneEffect(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "memory")
	handled := make(chan time.Time, 10)
	newYear := func() (stop func()) { return w.start(w.reporting("0 0 1 1 *", schedule.Times{}, handled)) }
	stop := newYear()
	w.eventually("the schedule is there", func() bool { return w.get(`select count(*) from {s}.schedule`) == 1 })
	stop()
	for n := range 2 {
		_, err := w.pool.Exec(t.Context(), `update `+w.schema+`.schedule set due_after = '2020-06-01'`)
		require.NoError(t, err)
		stop = newYear()
		if n == 0 {
			assert.Equal(t, time.January, next(t, handled).Month())
		} else {
			w.eventually("the duplicate is absorbed", func() bool { return w.duplicates.Load() == 1 })
		}
		stop()
	}
	assert.Empty(t, handled)
}

func TestScheduleMistakesOfAService(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "memory")
	svc := w.service(w.config())
	topic := framework.Topic[reportDue](w.topic("report.due"))
	require.NoError(t, framework.Schedule(svc, "report", "@daily", topic, dueAt))
	require.ErrorContains(t, framework.Schedule(svc, "report", "@daily", topic, dueAt), `add schedule "report": there is one of that name`)
	require.ErrorContains(t, framework.Schedule(svc, "two words", "@daily", topic, dueAt), "want 1 to 100 letters, digits")
	require.ErrorContains(t, framework.Schedule(svc, "hourly", "60 * * * *", topic, dueAt), `Expression is "60 * * * *": want "minute hour`)
	require.ErrorContains(t, framework.Schedule(svc, "nothing", "@daily", topic, nil), "the function is nil")
	require.ErrorContains(t, framework.Schedule(svc, "nowhere", "@daily", framework.Topic[reportDue](""), dueAt), "the topic is empty")
	w.start(svc)
	require.ErrorContains(t, framework.Schedule(svc, "late", "@daily", topic, dueAt), "add schedules before Run")
}
