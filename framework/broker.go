package framework

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/framework/internal/broker"
	"github.com/millrace-go/millrace/outbox/brokermigration"
	"github.com/millrace-go/millrace/transport"
)

// connectTimeout bounds the connecting to database and broker together; New promises 5 s.
const connectTimeout = 3500 * time.Millisecond

// Migration takes a fleet from Config.Broker to another broker. While it is configured, handlers read both, and the database says
// which one events are published to: "millrace migration next" changes that for all processes at once, when it is safe.
type Migration struct {
	// To is the broker that the fleet goes to, whose section of the configuration must be there, too. Default: none.
	To string
	// Quiet is how long Pub/Sub, which does not tell what is unread, must have delivered nothing before the fleet leaves it. Make it
	// longer than the acknowledgement deadline and the longest backoff of the subscriptions. 1 s or more. Default: 15 min.
	Quiet time.Duration
}

// WithDefaults returns the configuration with every zero field set to its default.
func (m Migration) WithDefaults() Migration {
	if m.Quiet == 0 {
		m.Quiet = brokermigration.DefaultQuiet
	}
	return m
}

func (m Migration) validate(from string) error {
	var errs []error
	switch {
	case m.To == "":
	case m.To == from:
		errs = append(errs, fmt.Errorf("Config.Migration.To is %q, as Config.Broker: want the broker that the fleet goes to, or none", m.To))
	case m.To == "memory" || from == "memory":
		errs = append(errs, fmt.Errorf("Config.Migration.To is %q, and Config.Broker %q: want two brokers that outlive a process", m.To, from))
	}
	if m.Quiet < time.Second {
		errs = append(errs, fmt.Errorf("Config.Migration.Quiet is %s: want 1s or more, or 0 for the default", m.Quiet))
	}
	return errors.Join(errs...)
}

// Brokers are the transports that a configuration names. To is nil without a migration.
type Brokers struct{ From, To transport.Transport }

// OpenBrokers connects to Config.Broker and to Config.Migration.To.
func (c Config) OpenBrokers(ctx context.Context, env transport.Environment) (b Brokers, err error) {
	open := func(name string) (transport.Transport, error) {
		named := c
		named.Broker = name
		_, settings, err := named.Settings()
		if err != nil {
			return nil, err
		}
		return broker.Open(ctx, name, settings, env)
	}
	if b.From, err = open(c.Broker); err != nil || c.Migration.To == "" {
		return b, err
	}
	if b.To, err = open(c.Migration.To); err != nil {
		err = errors.Join(err, b.From.Close())
	}
	return b, err
}

// OpenTransport connects to the brokers as a service does: to both of a migration, whose record in the database says where to publish.
// A process whose configuration does not go with the record is refused.
func (c Config) OpenTransport(ctx context.Context, pool *pgxpool.Pool, env transport.Environment) (transport.Transport, error) {
	b, err := c.OpenBrokers(ctx, env)
	if err != nil {
		return nil, err
	}
	if c.Postgres.Disabled {
		return b.From, nil
	}
	return broker.Join(ctx, pool, b.From, b.To, c.Broker, brokermigration.Config{Service: c.Service, Schema: c.Postgres.Schema, Logger: env.Logger})
}

// open connects to the broker, or to both of a migration, and asks whether they answer.
func (s *Service) open(ctx context.Context) (transport.Transport, error) {
	t, err := s.cfg.OpenTransport(ctx, s.pool, s.environment())
	if err != nil {
		return nil, err
	}
	return broker.Reach(ctx, t)
}

// environment is what the service gives a transport.
func (s *Service) environment() transport.Environment {
	return transport.Environment{
		DrainTimeout: s.cfg.ShutdownTimeout, Logger: s.log,
		MeterProvider: s.telemetry.Meter, TracerProvider: s.telemetry.Tracer, Propagator: s.telemetry.Propagator,
	}
}
