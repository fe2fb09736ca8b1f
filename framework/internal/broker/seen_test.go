package broker_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/internal/broker"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/memory"
)

// asked is a transport that a console can ask.
type asked struct {
	transport.Transport
	transport.Pinger
	transport.Inspector
	closed bool
}

func (*asked) Name() string { return "kafka" }

func (a *asked) Close() error {
	a.closed = true
	return nil
}

// settings open such a transport.
type settings struct {
	transport.Settings
	opened []*asked
	env    transport.Environment
}

func (s *settings) Open(_ context.Context, env transport.Environment) (transport.Transport, error) {
	s.env, s.opened = env, append(s.opened, &asked{})
	return s.opened[len(s.opened)-1], nil
}

// The console asks over a connection of its own, and closes that one alone.
func TestTheConsoleHasAConnectionOfItsOwn(t *testing.T) {
	t.Parallel()
	own, s := &asked{}, &settings{}
	of := func() (transport.Driver, transport.Settings, error) { return transport.Driver{}, s, nil }
	seen := broker.Seen(own, of, nil)
	require.Len(t, seen, 1)
	opened, err := seen[0].Open(t.Context(), time.Second)
	require.NoError(t, err)
	require.NoError(t, opened.Close())
	assert.False(t, own.closed)
	require.Len(t, s.opened, 1)
	assert.True(t, s.opened[0].closed)
	assert.Equal(t, time.Second, s.env.DrainTimeout)
	assert.Empty(t, broker.Seen(&memory.Transport{}, of, nil), "a broker in memory cannot be asked")
}
