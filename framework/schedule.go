package framework

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/settings"
	"github.com/millrace-go/millrace/outbox/schedule"
)

// Schedule publishes an event to the topic at each time of a cron expression: once, however many processes of the service run.
//
//	err := framework.Schedule(svc, "nightly-report", "0 3 * * *", ReportDue, func(at time.Time) (string, Report) {
//		return "", Report{Day: at.Format(time.DateOnly)}
//	})
//
// fn returns the event for a time, which is in UTC, and the event's key. fn must return quickly, and must do nothing else: do the
// work in a handler of the topic. The event's ID is made of the service, the schedule and the time.
//
// Config.Schedules configures the schedule by its name: its time zone (default: UTC), and what happens to times at which no
// process ran. By default the schedule then fires once, for the latest of them. The configuration may also replace the
// expression. A schedule with a new name or a new expression begins when it is first started. What is due by the earlier expression
// is fired first. Call Schedule before Run.
func Schedule[T any](s *Service, name, expression string, topic *TopicOf[T], fn func(at time.Time) (key string, event T)) error {
	wrong := func(err error) error { return fmt.Errorf("add schedule %q: %w", name, err) }
	if topic.err != nil {
		return wrong(topic.err)
	}
	if fn == nil {
		return wrong(errors.New("the function is nil: want one that returns the key and the event of a time"))
	}
	if s.bare {
		return wrong(ErrNoPostgres)
	}
	times := s.cfg.Schedules[name]
	times.Expression = cmp.Or(times.Expression, expression)
	added := schedule.Event{Name: name, Times: times, Topic: topic.name, Message: func(at time.Time) (*message.Message, error) {
		key, event := fn(at)
		return topic.Message(context.Background(), key, event) // the transaction's context replaces this one
	}}
	if err := added.Validate(); err != nil {
		return wrong(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stage != made {
		return wrong(errors.New("the service runs already, or has ended: add schedules before Run"))
	}
	if slices.ContainsFunc(s.schedules, func(other schedule.Event) bool { return other.Name == name }) {
		return wrong(errors.New("there is one of that name: give each a name of its own"))
	}
	s.schedules, s.published = append(s.schedules, added), append(s.published, topic)
	return nil
}

// scheduler returns the scheduler that fires the schedules while the service runs.
func (s *Service) scheduler() (*schedule.Scheduler, error) {
	names := make([]string, len(s.schedules))
	for i, e := range s.schedules {
		names[i] = e.Name
	}
	for _, name := range settings.Absent(s.cfg.Schedules, names) {
		s.log.Warn("the configuration is of a schedule that is not there", "schedule", name, "nearest", settings.Nearest(name, names))
	}
	return schedule.New(s.pool, s.outbox, schedule.Config{Service: s.cfg.Service, Schema: s.cfg.Postgres.Schema, MeterProvider: s.telemetry.Meter, Logger: s.log}, s.schedules...)
}
