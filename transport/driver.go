package transport

import (
	"context"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Driver makes the transport of one broker from a configuration, so that the package that assembles a service imports no broker.
type Driver struct {
	// Name is the name of the transport, such as "pubsub", and of the driver's section in a configuration.
	Name string
	// Settings returns the initial value of the section: a new pointer to a struct whose exported fields are the settings. It also
	// holds what only Go code can set (credentials, a dialer). Called concurrently.
	Settings func() Settings
}

// Settings is a driver's section of a configuration.
type Settings interface {
	// WithDefaults returns a copy of the settings in which each zero field has the value from env, or else its default. It does not
	// change the receiver.
	WithDefaults(env Environment) Settings
	// Validate reports everything that is wrong. It names fields as Go does: Config.Consumers["x"].Prefetch. It expects settings
	// that have their defaults.
	Validate() error
	// Limits returns what one message may carry. An outbox refuses a larger message before the commit.
	Limits() Limits
	// Open connects to the broker. Zero fields get the defaults of WithDefaults.
	Open(ctx context.Context, env Environment) (Transport, error)
}

// UnitSettings is implemented by the settings of a broker that can commit a handler's published messages together with the
// consumed one.
type UnitSettings interface {
	Settings

	// Units reports whether messages carry a Unit under these settings.
	Units() bool
}

// PushSettings is implemented by the settings of a broker that can deliver messages by HTTP requests to the service.
type PushSettings interface {
	Settings

	// Pushes reports whether a consumer gets its messages so under these settings.
	Pushes() bool
}

// Environment is what a transport shares with the rest of its service. A zero field means the transport's own default.
type Environment struct {
	DrainTimeout   time.Duration
	Logger         *slog.Logger
	MeterProvider  metric.MeterProvider
	TracerProvider trace.TracerProvider
	Propagator     propagation.TextMapPropagator
}
