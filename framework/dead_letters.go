package framework

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/millrace-go/millrace/framework/internal/expire"
	"github.com/millrace-go/millrace/framework/internal/telemetry"
	"github.com/millrace-go/millrace/internal/service"
)

// DeadLetters configures what happens to dead letters about which no operator decides.
type DeadLetters struct {
	// Keep is how long after its last failure a dead letter is discarded, as "millrace dead discard" does. If the handler is
	// Ordered, the later events of its key then go on without it. The audit records each discarded one. When an operator changes a
	// dead letter, its time starts anew. A dead letter that a running replay has not reached yet stays. Processes look for expired
	// dead letters when they start, and then about every hour. 24 h or more. Default: 0, until an operator decides; for a handler:
	// the setting of Config.DeadLetters.
	Keep time.Duration

	// Forever keeps dead letters until an operator decides. For a handler it overrides Config.DeadLetters.Keep. Default: false.
	Forever bool
}

// minKeep gives a person a day to decide.
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

// expiring returns the function that discards expired dead letters of the router's handlers.
func (s *Service) expiring() (func(context.Context) error, error) {
	keep := map[string]time.Duration{}
	for name := range s.router.Handlers() {
		of := s.cfg.Handlers[name].DeadLetters
		if d := cmp.Or(of.Keep, s.cfg.DeadLetters.Keep); d != 0 && !of.Forever {
			keep[service.Scoped(s.cfg.Service, s.cfg.consumer(name))] = d
		}
	}
	return expire.New(s.pool, expire.Config{Service: s.cfg.Service, Schema: s.cfg.Postgres.Schema, Keep: keep, Meter: s.telemetry.Meter.Meter(telemetry.Scope), Log: s.log})
}
