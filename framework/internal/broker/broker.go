// Package broker connects a service to its broker, or to both of a migration.
package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/console"
	"github.com/millrace-go/millrace/framework/internal/source"
	"github.com/millrace-go/millrace/outbox/brokermigration"
	"github.com/millrace-go/millrace/transport"
)

// Units reports whether messages carry a unit under these settings.
func Units(s transport.Settings) bool {
	units, ok := s.(transport.UnitSettings)
	return ok && units.Units()
}

// Validate reports what is wrong with a migration. to is empty without one; the settings of a broker without a driver are nil.
func Validate(from, to string, quiet time.Duration, settings ...transport.Settings) error {
	var errs []error
	wrong := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("Config.Migration.To is %q%w", to, fmt.Errorf(format, args...)))
	}
	switch {
	case to == "":
	case to == from:
		wrong(", as Config.Broker: want the broker that the fleet goes to, or none")
	case to == "memory" || from == "memory":
		wrong(", and Config.Broker %q: want two brokers that outlive a process", from)
	}
	if to != "" && slices.ContainsFunc(settings, Units) {
		wrong(" beside a broker that delivers transactionally: want kafka.delivery: at_least_once for the migration, because transactions cannot span two brokers")
	}
	if to != "" && slices.ContainsFunc(settings, pushes) {
		wrong(" beside consumers with push, which do not work in a migration: want none until it has ended: %s", brokermigration.WithoutPush)
	}
	if quiet < time.Second {
		errs = append(errs, fmt.Errorf("Config.Migration.Quiet is %s: want 1s or more, or 0 for the default", quiet))
	}
	return errors.Join(errs...)
}

func pushes(s transport.Settings) bool {
	push, ok := s.(transport.PushSettings)
	return ok && push.Pushes()
}

// Open connects to the broker with that name.
func Open(ctx context.Context, name string, settings transport.Settings, env transport.Environment) (transport.Transport, error) {
	t, err := settings.Open(ctx, env)
	if err != nil {
		return nil, unreachable(name, err)
	}
	return t, nil
}

// Reach checks that the transport's brokers answer. If they do not, it closes the transport.
func Reach(ctx context.Context, t transport.Transport) (transport.Transport, error) {
	if pinged, ok := t.(transport.Pinger); ok {
		if err := pinged.Ping(ctx); err != nil {
			return nil, unreachable(strings.ReplaceAll(t.Name(), "+", " or "), errors.Join(err, t.Close()))
		}
	}
	return t, nil
}

// unreachable adds to the error which settings have the broker's address.
func unreachable(broker string, err error) error {
	return fmt.Errorf("connect to the broker: see that it runs, and that the section %s of the configuration (%s_%s_* in the environment) says where: %w",
		broker, source.EnvPrefix, strings.ToUpper(broker), err)
}

// Join makes one transport of both brokers of a migration. A record in the database says to which broker it publishes. Without a
// migration to is nil, and the record must name the broker. On an error Join closes from and to.
func Join(ctx context.Context, pool *pgxpool.Pool, from, to transport.Transport, broker string, cfg brokermigration.Config) (transport.Transport, error) {
	if to == nil {
		if err := Admit(ctx, pool, cfg.Schema, broker); err != nil {
			return nil, errors.Join(err, from.Close())
		}
		return from, nil
	}
	t, err := brokermigration.New(ctx, pool, from, to, cfg)
	if err != nil {
		return nil, errors.Join(err, from.Close(), to.Close())
	}
	return t, nil
}

// Admit returns an error if the configuration has no migration while the fleet is in one.
func Admit(ctx context.Context, pool *pgxpool.Pool, schema, broker string) error {
	r, err := brokermigration.ReadRecord(ctx, pool, schema)
	if err == nil {
		_, err = r.In(broker, "")
	}
	if err != nil {
		return fmt.Errorf("the broker of the fleet: %w", err)
	}
	return nil
}

// Seen is the service's broker for its console; none if the transport cannot be asked. The console has a connection of its own, so that
// what it asks delays no event, and so that it can break off.
func Seen(t transport.Transport, settings func() (transport.Driver, transport.Settings, error), subscriptions func() []console.Subscription) []console.Broker {
	_, pings := t.(transport.Pinger)
	if _, inspects := t.(transport.Inspector); !inspects || !pings {
		return nil
	}
	b := console.Broker{Name: t.Name(), Subscriptions: subscriptions, Open: func(ctx context.Context, patience time.Duration) (transport.Transport, error) {
		_, s, err := settings()
		if err != nil {
			return nil, err
		}
		return Open(ctx, t.Name(), s, transport.Environment{Logger: slog.New(slog.DiscardHandler), DrainTimeout: patience})
	}}
	if at, ok := t.(transport.Addressed); ok {
		b.Address = at.Address()
	}
	return []console.Broker{b}
}
