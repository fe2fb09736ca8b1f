package framework

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/framework/internal/broker"
	"github.com/millrace-go/millrace/outbox/brokermigration"
	"github.com/millrace-go/millrace/transport"
)

// connectTimeout bounds the connecting to database and broker together. It is below the 5 s that New promises.
const connectTimeout = 3500 * time.Millisecond

// Migration moves a fleet from Config.Broker to another broker. While it is configured, handlers read both brokers, and a record
// in the database says to which one events are published. "millrace migration next" changes the record for all processes at once,
// when that is safe.
type Migration struct {
	// To is the broker to which the fleet moves. The configuration needs the section of both brokers. Default: none.
	To string
	// Quiet is how long Pub/Sub must deliver nothing before the fleet leaves it, because Pub/Sub does not tell how many messages are
	// unread. Make it longer than the acknowledgement deadline and the longest backoff of the subscriptions. 1 s or more. Default:
	// 15 min.
	Quiet time.Duration
}

// WithDefaults returns the configuration with every zero field set to its default.
func (m Migration) WithDefaults() Migration {
	m.Quiet = cmp.Or(m.Quiet, brokermigration.DefaultQuiet)
	return m
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

// OpenTransport connects to the brokers as a service does. In a migration it connects to both brokers, and a record in the
// database says to which one to publish. It returns an error if the configuration contradicts the record.
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

// open connects to the broker, or to both of a migration, and checks that they answer.
func (s *Service) open(ctx context.Context) (transport.Transport, error) {
	t, err := s.cfg.OpenTransport(ctx, s.pool, s.environment())
	if err != nil {
		return nil, err
	}
	return broker.Reach(ctx, t)
}

// environment returns the service's telemetry and settings for a transport.
func (s *Service) environment() transport.Environment {
	env := s.cfg.environment()
	env.Logger, env.Propagator = s.log, s.telemetry.Propagator
	env.MeterProvider, env.TracerProvider = s.telemetry.Meter, s.telemetry.Tracer
	return env
}
