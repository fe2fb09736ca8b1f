package redisclaim_test

import (
	"context"
	"maps"
	"os"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/claim/redisclaim"
)

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		child()
		return
	}
	devtest.AtOnce(1) // locks live for fractions of a second
	devtest.Main(m)
}

// tally counts by ID, what handlers do or what is published.
type tally struct {
	mu     sync.Mutex
	counts map[string]int
	fails  error
}

func (c *tally) add(_ context.Context, id string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts == nil {
		c.counts = map[string]int{}
	}
	c.counts[id]++
	return nil
}

func (c *tally) all() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.counts)
}

func (c *tally) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fails = err
}

// Publish makes it a publisher.
func (c *tally) Publish(_ string, msgs ...*message.Message) error {
	for _, msg := range msgs {
		_ = c.add(context.Background(), msg.UUID)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fails
}

func (*tally) Close() error { return nil }

func newStore(t testing.TB, client redis.UniversalClient, cfg redisclaim.Config) *redisclaim.Store {
	t.Helper()
	store, err := redisclaim.New(client, cfg)
	require.NoError(t, err)
	return store
}

// never is a handler that must not be called.
func never(context.Context) error { panic("the handler was called") }

// holding claims the key in the background; the handler runs with ctx until end is called, which returns what Do did.
func holding(t *testing.T, store claim.Store, k claim.Key) (ctx context.Context, end func(error) error) {
	t.Helper()
	running, fails, ended := make(chan context.Context, 1), make(chan error), make(chan error, 1)
	go func() {
		ended <- store.Do(context.WithoutCancel(t.Context()), k, func(ctx context.Context) error {
			running <- ctx
			return <-fails
		})
	}()
	select {
	case ctx = <-running:
	case err := <-ended:
		require.FailNow(t, "the claim was refused", "%v", err)
	}
	return ctx, func(err error) error {
		fails <- err
		return <-ended
	}
}
