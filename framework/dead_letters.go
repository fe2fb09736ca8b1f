package framework

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/millrace-go/millrace/framework/internal/telemetry"
	"github.com/millrace-go/millrace/internal/pgdays"
	"github.com/millrace-go/millrace/internal/service"
	"github.com/millrace-go/millrace/middleware/deadletter"
)

// DeadLetters configures what becomes of dead letters about which nobody decides.
type DeadLetters struct {
	// Keep is how long after its last failure a dead letter is discarded, as "millrace dead discard" does it: with Ordered the later
	// events of its key go on without it. Each one leaves a line in the audit. One that an operator has changed has its time anew, and
	// one that a running replay has yet to reach stays. Processes look at their start, and then about every hour. 24 h or more.
	// Default: 0, until an operator decides; of a handler: what Config.DeadLetters says.
	Keep time.Duration

	// Forever keeps dead letters until an operator decides, also those of a handler where Config.DeadLetters has Keep. Default: false.
	Forever bool
}

// minKeep leaves a person a day to decide.
const minKeep = 24 * time.Hour

func (d DeadLetters) validate(field string) error {
	if d.Keep != 0 && d.Keep < minKeep {
		return fmt.Errorf("%s.Keep is %s: want %s or more, or 0 for the default", field, d.Keep, minKeep)
	}
	if d.Keep != 0 && d.Forever {
		return fmt.Errorf("%s.Forever is true beside Keep (%s): want one of them", field, d.Keep)
	}
	return nil
}

// expiring returns what discards the dead letters of the router's handlers in time, which is nothing where none expires.
func (s *Service) expiring() (func(context.Context) error, error) {
	counter, err := s.telemetry.Meter.Meter(telemetry.Scope).Int64Counter("millrace.claim.expired", metric.WithUnit("{event}"),
		metric.WithDescription("Dead letters that were discarded because nobody decided about them in time."))
	if err != nil {
		return nil, fmt.Errorf("count dead letters that expire: %w", err)
	}
	keep := map[string]time.Duration{}
	for name := range s.router.Handlers() {
		of := s.cfg.Handlers[name].DeadLetters
		if d := cmp.Or(of.Keep, s.cfg.DeadLetters.Keep); d != 0 && !of.Forever {
			keep[service.Scoped(s.cfg.Service, s.cfg.consumer(name))] = d
		}
	}
	if len(keep) == 0 {
		return func(context.Context) error { return nil }, nil
	}
	by := deadletter.By{Actor: "service " + s.cfg.Service, Note: "kept for as long as dead_letters.keep says"}
	expire := func(ctx context.Context) error {
		expired, err := deadletter.Expire(ctx, s.pool, s.cfg.Postgres.Schema, keep, by)
		for consumer, n := range expired {
			counter.Add(ctx, int64(n), metric.WithAttributes(attribute.String("millrace.consumer", consumer)))
			s.log.WarnContext(ctx, "dead letters have expired", "consumer", consumer, "events", n)
		}
		return err
	}
	return func(ctx context.Context) error { return pgdays.Every(ctx, s.log, "dead letters", expire) }, nil
}
