package claim_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/deadletter"
	"github.com/millrace-go/millrace/outbox"
)

// Two services with a handler "notify" on one schema swallowed each other's events: the second one's was a duplicate.
func TestNamespaceOfClaims(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]claim.Config{"one by one": {}, "grouped": {Group: 2}, "deferred": {Deferred: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			in := func(service string) message.HandlerMiddleware {
				cfg := cfg
				cfg.Service = service
				return f.middleware(cfg)
			}
			for _, id := range []string{outbox.NewID(), "no UUID"} {
				for _, middleware := range []message.HandlerMiddleware{in("labour"), in("billing"), in("labour"), in("billing")} {
					msg, _ := deliver(t, id)
					_, err := middleware(f.handler)(msg)
					require.NoError(t, err)
					assert.False(t, nacked(msg))
				}
				assert.Equal(t, 2, f.effects()[id], "each service handles it once, and a second process of it finds a duplicate")
			}
			kept, err := claim.InspectKept(t.Context(), f.pool, f.schema)
			require.NoError(t, err)
			require.Len(t, kept.Consumers, 2)
			assert.Equal(t, []string{"billing/notify", "labour/notify"}, []string{kept.Consumers[0].Name, kept.Consumers[1].Name})
		})
	}
}

// While one service handles an event, another one's handler of the same name does not wait for it.
func TestNamespaceOfLocks(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	end := f.holding(claim.Key{Consumer: "labour/notify", EventID: "1"})
	for service, waits := range map[string]bool{"labour": true, "billing": false} {
		msg, _ := deliver(t, "1")
		_, err := f.middleware(claim.Config{Service: service})(f.handler)(msg)
		require.NoError(t, err)
		assert.Equal(t, waits, nacked(msg), service)
	}
	require.NoError(t, end(nil))
}

// What one service's handler fails at is that service's: its dead letter blocks no key, and stops no event, of the other.
func TestNamespaceOfDeadLetters(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	refuse := func(*message.Message) ([]*message.Message, error) { return nil, claim.Permanent(errOops) }
	msg, _ := deliver(t, "1")
	_, err := f.middleware(claim.Config{})(refuse)(msg)
	require.NoError(t, err)
	for service, effects := range map[string]int{"labour": 0, "billing": 1} {
		msg, _ := deliver(t, "1")
		_, err := f.middleware(claim.Config{Service: service})(func(msg *message.Message) ([]*message.Message, error) {
			return nil, f.effect(msg.Context(), service)
		})(msg)
		require.NoError(t, err)
		assert.Equal(t, effects, f.effects()[service], service)
	}
	found, err := deadletter.List(t.Context(), f.pool, f.schema, deadletter.Listing{Selection: deadletter.Selection{Consumer: "labour/notify"}})
	require.NoError(t, err)
	require.Len(t, found, 1)
	assert.Equal(t, 1, f.count("claim_failed"))
}

// A service that crashed in a loop made every service on the schema mark its events, a round trip each.
func TestNamespaceOfTheCrashGuard(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.killed() // of the service "labour"
	for service, careful := range map[string]bool{"labour": true, "billing": false} {
		c := f.claim(claim.Config{Service: service})
		stop := f.running(c)
		assert.Equal(t, careful, suspicious(c), service)
		stop()
	}
	c := f.claim(claim.Config{Service: "billing"})
	claim.Hasten(c, 10*time.Millisecond, time.Minute)
	f.running(c)
	_, err := f.pool.Exec(t.Context(), `insert into `+f.schema+`.claim_run (service, name, beat_at) values ('billing', 'killed', now() - interval '1 minute')`)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return suspicious(c) }, time.Minute, time.Millisecond, "its own process was killed")
}

func TestNamespaceIsRequired(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, err := claim.New(f.store, claim.Config{})
	require.ErrorContains(t, err, `Config.Service is empty: want the service's name, which keeps its work apart`)
	_, err = claim.New(f.store, claim.Config{Service: "labour/notify"})
	require.ErrorContains(t, err, `Config.Service is "labour/notify": want`)
}
