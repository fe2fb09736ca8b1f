package framework

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/transport"
)

// ErrNoPostgres is wrapped by the error of what needs a database, in a service that has none: see Config.WithoutPostgres. Name one in
// Config.Postgres, or leave out what needs it.
var ErrNoPostgres = errors.New("the service has no PostgreSQL, which this needs: name one in Config.Postgres.DSN (postgres.dsn)")

// WithoutPostgres tells whether a service of this configuration runs without a database: its broker is Kafka with transactional delivery,
// and neither Postgres nor DATABASE_URL, PGHOST, PGDATABASE and PGSERVICE name one. Its handlers consume and publish. Whatever needs
// tables is refused: Validate refuses its settings, and its functions return ErrNoPostgres.
//
// All other services need a database: at-least-once delivery without a claim would repeat effects.
func (c Config) WithoutPostgres() bool {
	if c.Postgres.named() || c.Migration.To != "" || c.Fleet.There() {
		return false
	}
	d, err := c.driver(c.Broker)
	if err != nil { // which Settings tells
		return false
	}
	s, _, _ := c.section(d)
	units, ok := s.(transport.UnitSettings)
	return ok && units.Units()
}

// named tells whether the configuration or the environment names a database.
func (p Postgres) named() bool {
	if p.Schema == defaultSchema {
		p.Schema = ""
	}
	return p != Postgres{} || slices.ContainsFunc([]string{"DATABASE_URL", "PGHOST", "PGDATABASE", "PGSERVICE"}, func(name string) bool { return os.Getenv(name) != "" })
}

// refuseTables reports what is set and needs tables.
func (c Config) refuseTables() error {
	var errs []error
	refuse := func(field string, set any, instead string) {
		if !reflect.ValueOf(set).IsZero() {
			errs = append(errs, fmt.Errorf("Config.%s is set, which needs a database, and none is named: want Config.Postgres.DSN, or %s", field, instead))
		}
	}
	const nothing = "nothing here"
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
		if name == checkBacklog || name == checkRelays {
			refuse(fmt.Sprintf("Health.Require[%d]", i), name, "no check of the outbox")
		}
	}
	return errors.Join(errs...)
}

// tableSections are the keys of a configuration that WithoutPostgres leaves without meaning.
var tableSections = []string{"postgres", "migration", "outbox", "fleet", "dead_letters", "effects", "idempotency_keys", "schedules"}

// noDatabase returns a pool that never gets a connection: whatever asks for one gets ErrNoPostgres.
func noDatabase() (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig("host=none user=none dbname=none sslmode=disable")
	if err != nil {
		return nil, fmt.Errorf("make a pool without connections: %w", err) // of a PG… variable
	}
	cfg.BeforeConnect = func(context.Context, *pgx.ConnConfig) error { return ErrNoPostgres }
	return pgxpool.NewWithConfig(context.Background(), cfg)
}
