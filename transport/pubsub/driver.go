package pubsub

import (
	"cmp"
	"context"

	"github.com/millrace-go/millrace/transport"
)

// Driver makes this transport from a configuration.
var Driver = NewDriver(Config{})

// NewDriver returns a driver whose configuration changes config: for what only Go can say, such as ClientOptions.
func NewDriver(config Config) transport.Driver {
	return transport.Driver{Name: "pubsub", Settings: func() transport.Settings { return &driverSettings{config} }}
}

type driverSettings struct{ Config }

func (s *driverSettings) WithDefaults(env transport.Environment) transport.Settings {
	return &driverSettings{s.in(env).WithDefaults()}
}

func (s *driverSettings) Limits() transport.Limits { return Limits }

// Pushes implements transport.PushSettings.
func (s *driverSettings) Pushes() bool { return len(s.pushes()) > 0 }

func (s *driverSettings) Open(ctx context.Context, env transport.Environment) (transport.Transport, error) {
	t, err := New(ctx, s.in(env))
	if err != nil {
		return nil, err // and no nil *Transport, which would be a transport
	}
	return t, nil
}

// in is the configuration with what the environment says where it says nothing.
func (s *driverSettings) in(env transport.Environment) Config {
	c := s.Config
	c.DrainTimeout = cmp.Or(c.DrainTimeout, env.DrainTimeout)
	c.Logger = cmp.Or(c.Logger, env.Logger)
	c.MeterProvider = cmp.Or(c.MeterProvider, env.MeterProvider)
	c.TracerProvider = cmp.Or(c.TracerProvider, env.TracerProvider)
	c.Propagator = cmp.Or(c.Propagator, env.Propagator)
	return c
}
