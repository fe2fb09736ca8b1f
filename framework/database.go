package framework

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/millrace-go/millrace/framework/internal/broker"
	"github.com/millrace-go/millrace/framework/internal/database"
	"github.com/millrace-go/millrace/framework/internal/health"
	"github.com/millrace-go/millrace/framework/internal/source"
	"github.com/millrace-go/millrace/transport"
)

// ErrNoPostgres is wrapped by errors of functions that need a database, in a service with Config.Postgres.Disabled. Configure a
// database, or do not call the function.
var ErrNoPostgres = errors.New("the service has no PostgreSQL, which this needs: name one in Config.Postgres.DSN (postgres.dsn), without Config.Postgres.Disabled")

// validateDisabled reports settings that contradict Postgres.Disabled.
func (c Config) validateDisabled() error {
	errs := []error{c.refuseTables()}
	if _, err := source.Driver(c.Drivers, c.Broker); err == nil && !c.units() { // else Settings tells
		errs = append(errs, errors.New("Config.Postgres.Disabled is true with a broker that delivers at least once: want kafka with delivery: transactional, "+
			"because without a claim an event that is delivered again takes effect again"))
	}
	return errors.Join(errs...)
}

// units tells whether handlers run in transactions of the broker, which hold no connection to the database.
func (c Config) units() bool { return broker.Units(c.settingsOf(c.Broker)) }

// settingsOf returns the settings of a broker, or nil if its driver is not there.
func (c Config) settingsOf(broker string) transport.Settings {
	d, err := source.Driver(c.Drivers, broker)
	if err != nil {
		return nil
	}
	s, _, _ := c.section(d)
	return s
}

// refuseTables reports what is set and needs tables.
func (c Config) refuseTables() error {
	var errs []error
	refuse := func(field string, set any, instead string) {
		if !reflect.ValueOf(set).IsZero() {
			errs = append(errs, fmt.Errorf("Config.%s is set, which needs a database, beside Config.Postgres.Disabled: want a database, or %s", field, instead))
		}
	}
	const nothing = "nothing here"
	refuse("Migration.To", c.Migration.To, nothing)
	refuse("Fleet", c.Fleet.There(), nothing)
	refuse("Outbox", c.Outbox, nothing)
	claims := c.Claim
	claims.MaxAttempts = 0
	refuse("Claim", claims, "MaxAttempts alone")
	refuse("DeadLetters", c.DeadLetters, "the retention of Kafka's dead-letter topic")
	refuse("Effects", c.Effects, nothing)
	refuse("IdempotencyKeys", c.IdempotencyKeys, nothing)
	for _, name := range slices.Sorted(maps.Keys(c.Handlers)) {
		h, field := c.Handlers[name], fmt.Sprintf("Handlers[%q].", name)
		refuse(field+"DeadLetters", h.DeadLetters, "the retention of Kafka's dead-letter topic")
		refuse(field+"Retry", len(h.Retry), "Config.Claim.MaxAttempts")
		refuse(field+"Timeout", h.Timeout, nothing)
		refuse(field+"MaxPerKey", h.MaxPerKey, nothing)
		refuse(field+"Breaker", h.Breaker, nothing)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Schedules)) {
		refuse(fmt.Sprintf("Schedules[%q]", name), name, nothing)
	}
	for i, name := range c.Health.Require {
		if name == health.Backlog || name == health.Relays {
			refuse(fmt.Sprintf("Health.Require[%d]", i), name, "no check of the outbox")
		}
	}
	return errors.Join(errs...)
}

// openDatabase connects to the database within the deadline of connecting, and checks or migrates its tables. The caller closes
// s.pool, also after an error.
func (s *Service) openDatabase(ctx, connecting context.Context) (err error) {
	if s.bare {
		s.log.InfoContext(ctx, "postgres.disabled is set: handlers consume and publish in transactions of the broker alone", "broker", s.cfg.Broker)
		s.pool, err = database.None(ErrNoPostgres)
		return err
	}
	p := s.cfg.Postgres
	if s.pool, err = database.Connect(connecting, p.DSN, p.MaxConnections, source.FromDev); err != nil {
		return err
	}
	if p.Migrate {
		if err := database.Migrate(ctx, s.pool, p.Schema); err != nil {
			return err
		}
		again, cancel := context.WithTimeout(ctx, connectTimeout)
		defer cancel()
		connecting = again
	}
	return database.Check(connecting, s.pool, p.Schema)
}
