package framework

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/framework/internal/source"
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
		t, err := settings.Open(ctx, env)
		if err != nil {
			return nil, unreachable(name, err)
		}
		return t, nil
	}
	if b.From, err = open(c.Broker); err != nil || c.Migration.To == "" {
		return b, err
	}
	if b.To, err = open(c.Migration.To); err != nil {
		err = errors.Join(err, b.From.Close())
	}
	return b, err
}

// unreachable says where a broker is configured.
func unreachable(broker string, err error) error {
	return fmt.Errorf("connect to the broker: see that it runs, and that the section %s of the configuration (%s_%s_* in the environment) says where: %w",
		broker, source.EnvPrefix, strings.ToUpper(broker), err)
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
	if b.To == nil {
		if err := c.admitted(ctx, pool); err != nil {
			return nil, errors.Join(err, b.From.Close())
		}
		return b.From, nil
	}
	t, err := brokermigration.New(ctx, pool, b.From, b.To, brokermigration.Config{Service: c.Service, Schema: c.Postgres.Schema, Logger: env.Logger})
	if err != nil {
		return nil, errors.Join(err, b.From.Close(), b.To.Close())
	}
	return t, nil
}

// admitted refuses a configuration without a migration while the fleet is on its way.
func (c Config) admitted(ctx context.Context, pool *pgxpool.Pool) error {
	r, err := brokermigration.ReadRecord(ctx, pool, c.Postgres.Schema)
	if err == nil {
		_, err = r.In(c.Broker, "")
	}
	if err != nil {
		return fmt.Errorf("the broker of the fleet: %w", err)
	}
	return nil
}

// open connects to the broker, or to both of a migration, and asks whether they answer.
func (s *Service) open(ctx context.Context) (transport.Transport, error) {
	t, err := s.cfg.OpenTransport(ctx, s.pool, s.environment())
	if err != nil {
		return nil, err
	}
	return answering(ctx, t)
}

// environment is what the service gives a transport.
func (s *Service) environment() transport.Environment {
	return transport.Environment{
		DrainTimeout: s.cfg.ShutdownTimeout, Logger: s.log,
		MeterProvider: s.telemetry.Meter, TracerProvider: s.telemetry.Tracer, Propagator: s.telemetry.Propagator,
	}
}

// answering asks whether the transport's brokers answer, and closes it if not.
func answering(ctx context.Context, t transport.Transport) (transport.Transport, error) {
	if pinged, ok := t.(transport.Pinger); ok {
		if err := pinged.Ping(ctx); err != nil {
			return nil, unreachable(strings.ReplaceAll(t.Name(), "+", " or "), errors.Join(err, t.Close()))
		}
	}
	return t, nil
}
