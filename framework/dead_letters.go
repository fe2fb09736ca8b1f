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

// expiring returns what discards the dead letters of the router's handlers in time.
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
