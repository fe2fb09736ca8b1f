package transport

import (
	"cmp"
	"context"
)

// MemoryDriver makes in-memory transports. Each transport that it opens has its own broker, so two services do not share one.
var MemoryDriver = Driver{Name: "memory", Settings: func() Settings { return &memorySettings{} }}

type memorySettings struct{ MemoryConfig }

func (s *memorySettings) WithDefaults(env Environment) Settings {
	c := s.MemoryConfig
	c.DrainTimeout = cmp.Or(c.DrainTimeout, env.DrainTimeout)
	return &memorySettings{c.WithDefaults()}
}

func (s *memorySettings) Limits() Limits { return s.MemoryConfig.WithDefaults().Limits }

func (s *memorySettings) Open(_ context.Context, env Environment) (Transport, error) {
	c := s.MemoryConfig
	c.DrainTimeout = cmp.Or(c.DrainTimeout, env.DrainTimeout)
	c.TracerProvider = cmp.Or(c.TracerProvider, env.TracerProvider)
	c.Propagator = cmp.Or(c.Propagator, env.Propagator)
	return NewMemory(c)
}
