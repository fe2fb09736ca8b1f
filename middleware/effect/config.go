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

// Config configures a Ledger. All but Service has a default.
type Config struct {
	// Service is the name of the service. The ledger stores each effect as "service/key", and the provider's idempotency
	// key is made of that, so that two services with the same key never take each other's effect for their own. Renaming it
	// makes redelivered events have their effects again. 1 to 100 letters, digits, ".", "_" and "-", starting with a
	// letter. Required.
	Service string

	// Schema is the schema of the ledger's tables. Default: "millrace".
	Schema string

	// MaxConns bounds the connections that the ledger opens beside the pool. One is used for some milliseconds before a
	// call and after it. 1 or more. Default: 4.
	MaxConns int32

	// CallTimeout bounds a call. A call that is overdue without a recorded outcome is in doubt. 1 ms or more. Default: 30
	// s.
	CallTimeout time.Duration

	// Settle is how long the provider may still carry out a call after the call has ended with an unknown outcome.
	// Reconcile asks the provider only after that. 1 ms or more. Default: 5 s.
	Settle time.Duration

	// RetryAfter is how long an event waits for its retry if its effect is pending, or in doubt and Idempotent is not given. An error of
	// an idempotent call is an attempt like any other. 1 ms or more. Default: 1 min.
	RetryAfter time.Duration

	// RecordTimeout is how long the ledger retries to record a call's intent or outcome while the database does not
	// answer. After that the call is in doubt. 1 ms or more. Default: 5 s.
	RecordTimeout time.Duration

	// Retention is how long outcomes are kept, in whole UTC days: longer than the broker may redeliver. After that a
	// redelivered event has its effect again. What is in doubt is kept until it is settled, and what a dead letter needs until that is
	// settled, if the claim's tables are in the same schema. 24 h or more.
	// Default: 720 h (30 days).
	Retention time.Duration

	// Logger gets doubts, conflicts and what is settled. Default: slog.Default().
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

// Validate reports everything that is wrong with the configuration. It expects one that has its defaults.
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
