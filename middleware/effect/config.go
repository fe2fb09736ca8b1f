package effect

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"

	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/internal/service"
)

// Config configures a Ledger. Every field but Service has a default.
type Config struct {
	// Service is the name of the service. The ledger stores each effect as "service/key" and derives the provider's idempotency key
	// from that. So two services that use the same key have separate effects. After a renaming, redelivered events repeat their
	// effects. 1 to 100 letters, digits, ".", "_" and "-", starting with a letter. Required.
	Service string

	// Schema is the schema of the ledger's tables. Default: "millrace".
	Schema string

	// MaxConns is the maximum number of connections that the ledger opens in addition to the pool's. A call uses one for a few
	// milliseconds before it starts and after it ends. 1 or more. Default: 4.
	MaxConns int32

	// CallTimeout bounds a call. A call without a recorded outcome is in doubt after this time. 1 ms or more. Default: 30 s.
	CallTimeout time.Duration

	// Settle is how long the provider may still work on a call that has ended with an unknown outcome. Reconcile asks the provider
	// only after this time. 1 ms or more. Default: 5 s.
	Settle time.Duration

	// RetryAfter is how long an event waits for its next try while its effect is pending, or is in doubt without Idempotent. The
	// failure of an idempotent call counts as a normal attempt. 1 ms or more. Default: 1 min.
	RetryAfter time.Duration

	// RecordTimeout bounds the retries to record a call's intent or outcome while the database does not answer. If the intent
	// cannot be recorded, nothing is called, and the event waits as long again, which is no attempt. If the outcome cannot be
	// recorded, the effect is in doubt. 1 ms or more. Default: 5 s.
	RecordTimeout time.Duration

	// Retention is how long outcomes are kept, in whole UTC days. It must be longer than the broker may redeliver: after it, a
	// redelivered event repeats its effect. An effect in doubt is kept until it is settled. If the claim's tables are in the same
	// schema, an outcome is also kept while the event that first called for it is a failed one. So make an effect's key of its event's
	// ID: another event that only got the outcome keeps nothing. Services on one schema share the days. The longest retention counts
	// among those that have called Run. One that has stopped counts for its own retention and a day. 24 h or more. Default: 720 h (30
	// days).
	Retention time.Duration

	// Logger logs doubts, conflicts and settled effects. Default: slog.Default().
	Logger *slog.Logger

	// MeterProvider creates the metrics. Default: OpenTelemetry's global one.
	MeterProvider metric.MeterProvider
}

const defaultRetention = 30 * 24 * time.Hour

// WithDefaults returns the configuration with every zero field set to its default.
func (c Config) WithDefaults() Config {
	if c.Schema == "" {
		c.Schema = pgschema.Default
	}
	if c.MaxConns == 0 {
		c.MaxConns = 4
	}
	for field, value := range map[*time.Duration]time.Duration{
		&c.CallTimeout: 30 * time.Second, &c.Settle: 5 * time.Second, &c.RetryAfter: time.Minute,
		&c.RecordTimeout: 5 * time.Second, &c.Retention: defaultRetention,
	} {
		if *field == 0 {
			*field = value
		}
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.MeterProvider == nil {
		c.MeterProvider = otel.GetMeterProvider()
	}
	return c
}

// Validate reports every error of the configuration. Call it after WithDefaults.
func (c Config) Validate() error {
	var errs []error
	if err := service.Validate(c.Service); err != nil {
		errs = append(errs, fmt.Errorf("Config.%w", err))
	}
	if _, err := pgschema.Validate(c.Schema); err != nil {
		errs = append(errs, fmt.Errorf("Config.%w", err))
	}
	if c.MaxConns < 1 {
		errs = append(errs, fmt.Errorf("Config.MaxConns is %d: want 1 or more, or 0 for the default", c.MaxConns))
	}
	for _, f := range []struct {
		name       string
		value, min time.Duration
	}{
		{"CallTimeout", c.CallTimeout, time.Millisecond},
		{"Settle", c.Settle, time.Millisecond},
		{"RetryAfter", c.RetryAfter, time.Millisecond},
		{"RecordTimeout", c.RecordTimeout, time.Millisecond},
		{"Retention", c.Retention, minRetention},
	} {
		if f.value < f.min {
			errs = append(errs, fmt.Errorf("Config.%s is %v: want %v or more, or 0 for the default", f.name, f.value, f.min))
		}
	}
	return errors.Join(errs...)
}
