package schedule_test

import (
	"context"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/outbox/schedule"
)

// A service publishes an event each second: once, however many of its processes run.
func Example() {
	t := devtest.Example()
	defer t.End()
	pool, schema := t.Database()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if err := outbox.Migrate(ctx, pool, schema); err != nil {
		panic(err)
	}
	if err := schedule.Migrate(ctx, pool, schema); err != nil {
		panic(err)
	}
	events, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: schema})
	if err != nil {
		panic(err)
	}
	s, err := schedule.New(pool, events, schedule.Config{Service: "billing", Schema: schema}, schedule.Event{
		Name:  "report",
		Times: schedule.Times{Expression: "* * * * * *", TimeZone: "Europe/Berlin"},
		Topic: "report.due",
		Message: func(at time.Time) (*message.Message, error) {
			fmt.Println("a report at a full second:", at.Nanosecond() == 0)
			cancel() // enough for an example
			return message.NewMessage("", []byte(at.Format(time.RFC3339))), nil
		},
	})
	if err != nil {
		panic(err)
	}
	if err := s.Run(ctx); err != nil {
		panic(err)
	}
	// Output: a report at a full second: true
}
