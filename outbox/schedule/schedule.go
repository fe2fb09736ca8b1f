// Package schedule publishes events at the times of cron expressions. Any number of processes may have a schedule, and each time is
// fired once:
//
//	events, err := outbox.NewPublisher(outbox.PublisherConfig{})
//	s, err := schedule.New(pool, events, schedule.Config{Service: "billing"}, schedule.Event{
//		Name:  "nightly-report",
//		Times: schedule.Times{Expression: "0 3 * * *", TimeZone: "Europe/Berlin"},
//		Topic: "report.due",
//		Message: func(at time.Time) (*message.Message, error) {
//			return message.NewMessage("", []byte(at.Format(time.DateOnly))), nil
//		},
//	})
//	err = s.Run(ctx)
//
// A time is fired in one transaction. It locks the schedule's row, finds by the server's clock what is due, publishes the event to
// the outbox, and stores the time. So the processes need no leader: the first one fires, and the others find that it is done. If it
// is killed before the commit, another one fires.
//
// The ID of an event is made of the service, the schedule and the time. So a database that was restored, and fires a time again,
// makes no second event: a consumer with a claim recognizes the duplicate.
package schedule

import (
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"

	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/internal/service"
)

// Config configures a Scheduler. All but Service has a default.
type Config struct {
	// Service is the name of the service. Schedules of two services never meet, whatever their names are. It is part of the events'
	// IDs, so services of one name that publish to one broker from two databases would make the same IDs. 1 to 100 letters, digits, ".",
	// "_" and "-", starting with a letter. Required.
	Service string

	// Schema holds the table. Default: "millrace".
	Schema string

	// MeterProvider gets by how much schedules are overdue. Default: OpenTelemetry's global one.
	MeterProvider metric.MeterProvider
	// Logger gets what could not be fired, and which times were left out. Default: slog.Default().
	Logger *slog.Logger
}

// Event is what a schedule publishes.
type Event struct {
	// Name is the schedule's. A schedule with a new name is a new one, which begins when it is first started. 1 to 100 letters, digits,
	// ".", "_" and "-", starting with a letter. Required.
	Name string

	// Times say when the event is published.
	Times

	// Topic is where the event is published. Required.
	Topic string

	// Message returns the event of a time. The scheduler sets its ID and its context. The schedule's row is locked meanwhile, so it
	// must return quickly; what needs the database belongs in the event's handler. If it returns an error, or panics, nothing is
	// fired, and it is called again later. Required.
	Message func(at time.Time) (*message.Message, error)
}

var namePattern = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]{0,99}$`)

// Validate reports everything that is wrong with the event.
func (e Event) Validate() error {
	var errs []error
	if !namePattern.MatchString(e.Name) {
		errs = append(errs, fmt.Errorf(`Name is %q: want 1 to 100 letters, digits, ".", "_" and "-", starting with a letter`, e.Name))
	}
	if e.Expression == "" {
		errs = append(errs, fmt.Errorf("Times.Expression is empty: %s", wanted))
	}
	errs = append(errs, e.Times.Validate("Times"))
	if e.Topic == "" {
		errs = append(errs, errors.New("Topic is empty: want the name of one"))
	}
	if e.Message == nil {
		errs = append(errs, errors.New("Message is nil: want a function that returns the event of a time"))
	}
	return errors.Join(errs...)
}

// Scheduler publishes the events of schedules. It is safe for concurrent use.
type Scheduler struct {
	cfg       Config
	pool      *pgxpool.Pool
	publisher message.Publisher
	entries   []*entry
	sql       statements
}

// entry is one schedule.
type entry struct {
	Event
	clock clock
}

// New returns what publishes the events of schedules through the publisher, an outbox.Publisher, which writes them in the
// transaction that fires them. It needs no connection before Run.
func New(pool *pgxpool.Pool, publisher message.Publisher, cfg Config, events ...Event) (*Scheduler, error) {
	var errs []error
	if pool == nil {
		errs = append(errs, errors.New("pool is nil: want a pool of connections to the database of the outbox"))
	}
	if publisher == nil {
		errs = append(errs, errors.New("publisher is nil: want an outbox.Publisher"))
	}
	if err := service.Validate(cfg.Service); err != nil {
		errs = append(errs, fmt.Errorf("Config.%w", err))
	}
	schema, err := pgschema.Validate(cfg.Schema)
	if err != nil {
		errs = append(errs, fmt.Errorf("Config.%w", err))
	}
	cfg.Schema = schema
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.MeterProvider == nil {
		cfg.MeterProvider = otel.GetMeterProvider()
	}
	s := &Scheduler{cfg: cfg, pool: pool, publisher: publisher, sql: statementsIn(schema)}
	names := map[string]bool{}
	for _, e := range events {
		err := e.Validate()
		if names[e.Name] {
			err = errors.Join(err, errors.New("Name is another schedule's: give each a name of its own"))
		}
		names[e.Name] = true
		if err != nil {
			errs = append(errs, fmt.Errorf("schedule %q: %w", e.Name, err))
			continue
		}
		c, err := e.clock()
		if err != nil {
			errs = append(errs, fmt.Errorf("schedule %q: %w", e.Name, err))
		}
		s.entries = append(s.entries, &entry{e, c})
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("make a scheduler: %w", err)
	}
	return s, nil
}

// eventID is that of a time of the schedule. It must be the same in each process and each version.
func eventID(of, name string, at time.Time) string {
	return service.Scoped(of, name) + "@" + at.UTC().Format(time.RFC3339)
}
