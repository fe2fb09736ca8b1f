package memory

import (
	"cmp"
	"context"

	"github.com/millrace-go/millrace/transport"
)

// Driver makes this transport from a configuration. Each transport that it opens has its own broker, so two services do not share one.
var Driver = transport.Driver{Name: "memory", Settings: func() transport.Settings { return &settings{} }}

type settings struct{ Config }

func (s *settings) WithDefaults(env transport.Environment) transport.Settings {
	c := s.Config
	c.DrainTimeout = cmp.Or(c.DrainTimeout, env.DrainTimeout)
	return &settings{c.WithDefaults()}
}

func (s *settings) Limits() transport.Limits { return s.Config.WithDefaults().Limits }

func (s *settings) Open(_ context.Context, env transport.Environment) (transport.Transport, error) {
	c := s.Config
	c.DrainTimeout = cmp.Or(c.DrainTimeout, env.DrainTimeout)
	c.TracerProvider = cmp.Or(c.TracerProvider, env.TracerProvider)
	c.Propagator = cmp.Or(c.Propagator, env.Propagator)
	t, err := New(c)
	if err != nil {
		return nil, err // and no nil *Transport, which would be a transport
	}
	return t, nil
}
