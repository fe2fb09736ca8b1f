package transport

import (
	"context"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Driver makes the transport of one broker from a configuration, so that what assembles a service imports no broker.
type Driver struct {
	// Name is the transport's: "pubsub". The section of a configuration that has this name is the driver's.
	Name string
	// Settings returns a section as it is before a configuration is read: a new pointer to a struct, whose exported fields
	// are what can be set. What only Go can say (credentials, a dialer) it says here. Called concurrently.
	Settings func() Settings
}

// Settings is a driver's section of a configuration.
type Settings interface {
	// WithDefaults returns the settings with every zero field set to what the environment says, else to its default, and
	// leaves these as they are.
	WithDefaults(env Environment) Settings
	// Validate reports everything that is wrong, naming fields as Go does: Config.Consumers["x"].Prefetch. It expects
	// settings that have their defaults.
	Validate() error
	// Limits is what one message may carry: what an outbox refuses before it is committed.
	Limits() Limits
	// Open connects to the broker. Defaults are those of WithDefaults.
	Open(ctx context.Context, env Environment) (Transport, error)
}

// UnitSettings is implemented by the settings of a broker that can commit what a handler publishes together with its message.
type UnitSettings interface {
	Settings

	// Units tells whether the messages of these settings carry a Unit.
	Units() bool
}

// Environment is what a transport shares with the rest of its service. Zero fields are the transport's own defaults.
type Environment struct {
	DrainTimeout   time.Duration
	Logger         *slog.Logger
	MeterProvider  metric.MeterProvider
	TracerProvider trace.TracerProvider
	Propagator     propagation.TextMapPropagator
}
