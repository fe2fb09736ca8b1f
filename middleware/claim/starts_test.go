package claim_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/middleware/claim"
)

// However the handler ends, the process has survived the event.
func TestNotesAreStruckOut(t *testing.T) { perMode(t, testNotesAreStruckOut) }

func testNotesAreStruckOut(t *testing.T, f *fixture) {
	run := f.killed()
	c := f.claim(claim.Config{})
	f.running(c)
	require.True(t, suspicious(c))
	for _, starts := range []int{-1, 0, 2} { // new; in hand at a death; twice begun alone
		id := string(rune('b' + starts))
		note := func() {
			if starts >= 0 {
				f.noted(run, id, starts)
			}
		}
		note()
		msg, _ := deliver(t, id)
		_, err := c.Middleware(func(msg *message.Message) ([]*message.Message, error) {
			var begun int
			require.NoError(t, f.pool.QueryRow(t.Context(), `select starts from `+f.schema+`.claim_start`).Scan(&begun))
			assert.Equal(t, starts+1, begun, "counted before the handler runs")
			return nil, errOops
		})(msg)
		require.ErrorIs(t, err, errOops)
		assert.Zero(t, f.count("claim_start"))
		note()
		msg, _ = deliver(t, id)
		_, err = c.Middleware(func(*message.Message) ([]*message.Message, error) { panic("oops") })(msg)
		require.ErrorContains(t, err, "oops")
		assert.Zero(t, f.count("claim_start"))
		note()
		msg, _ = deliver(t, id)
		_, err = c.Middleware(f.handler)(msg)
		require.NoError(t, err)
		assert.Zero(t, f.count("claim_start"))
		note()
		msg, _ = deliver(t, id) // a duplicate
		_, err = c.Middleware(f.handler)(msg)
		require.NoError(t, err)
		assert.Zero(t, f.count("claim_start"))
	}
	assert.Len(t, f.effects(), 3)
	assert.Zero(t, doubled(f.effects()))
}

// A note of a process that lives is that one's: it has the event in hand at this moment.
func TestNoteOfOneThatLives(t *testing.T) { perMode(t, testNoteOfOneThatLives) }

func testNoteOfOneThatLives(t *testing.T, f *fixture) {
	other, c := f.claim(claim.Config{}), f.claim(claim.Config{})
	claim.Hasten(other, 20*time.Millisecond, time.Minute)
	claim.Hasten(c, 20*time.Millisecond, time.Minute)
	f.running(other)
	f.running(c)
	require.Eventually(t, func() bool { return !suspicious(c) }, time.Minute, time.Millisecond, "it knows the other one")
	f.killed()
	require.Eventually(t, func() bool { return suspicious(c) && suspicious(other) }, time.Minute, time.Millisecond)
	begun, finish, handled := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		msg, _ := deliver(t, "1")
		_, err := other.Middleware(func(msg *message.Message) ([]*message.Message, error) {
			close(begun)
			<-finish
			return f.handler(msg)
		})(msg)
		handled <- err
	}()
	<-begun
	msg, _ := deliver(t, "1")
	_, err := c.Middleware(f.handler)(msg)
	require.NoError(t, err)
	assert.True(t, nacked(msg), "contended")
	assert.Equal(t, 1, f.count("claim_start where starts = 0"), "the note stays, and nothing is counted")
	close(finish)
	require.NoError(t, <-handled)
	assert.Zero(t, f.count("claim_start"))
}

func TestEventThatWasBegunTooOftenIsADeadLetter(t *testing.T) {
	perMode(t, testEventThatWasBegunTooOftenIsADeadLetter)
}

func testEventThatWasBegunTooOftenIsADeadLetter(t *testing.T, f *fixture) {
	c := f.claim(claim.Config{MaxStarts: 2})
	f.noted(f.killed(), "1", 2)
	f.running(c)
	for range 2 { // and is absorbed when it is delivered again
		msg, _ := deliver(t, "1")
		_, err := c.Middleware(f.handler)(msg)
		require.NoError(t, err)
		assert.False(t, nacked(msg))
	}
	assert.Empty(t, f.effects())
	assert.Equal(t, 1, f.count(`claim_failed where state = 'dead' and reason = 'killed' and event_id = '1'`))
	assert.Zero(t, f.count("claim_start"))
}

// Without the guard nothing is marked, nothing runs alone, and nothing that ran alone is a dead letter.
func TestGuardOff(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ maxStarts, marks int }{"off": {-1, 1}, "control": {3, 2}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.noted(f.killed(), "1", 3)
			guarded := f.claim(claim.Config{MaxStarts: c.maxStarts, Logger: silent})
			f.running(guarded)
			assert.Equal(t, c.maxStarts > 0, suspicious(guarded))
			msg, _ := deliver(t, "2")
			_, err := guarded.Middleware(func(msg *message.Message) ([]*message.Message, error) {
				assert.Equal(t, c.marks, f.count("claim_start"))
				return f.handler(msg)
			})(msg)
			require.NoError(t, err)
			msg, _ = deliver(t, "1")
			_, err = guarded.Middleware(f.handler)(msg)
			require.NoError(t, err)
			assert.Equal(t, c.marks-1, f.count("claim_failed where reason = 'killed'"))
			assert.Equal(t, 2-c.marks, f.effects()["1"])
		})
	}
}

// Somebody who has the event in hand may yet survive it.
func TestEventInHandIsNotBuried(t *testing.T) { perMode(t, testEventInHandIsNotBuried) }

func testEventInHandIsNotBuried(t *testing.T, f *fixture) {
	c := f.claim(claim.Config{})
	f.noted(f.killed(), "1", 3)
	f.running(c)
	end := f.holding(claim.Key{Consumer: "labour/notify", EventID: "1"})
	msg, _ := deliver(t, "1")
	_, err := c.Middleware(f.handler)(msg)
	require.NoError(t, err)
	assert.True(t, nacked(msg))
	assert.Zero(t, f.count("claim_failed"))
	assert.Equal(t, 1, f.count("claim_start"))
	require.NoError(t, end(nil))
}

// An event that Millrace brings back may kill its process too.
func TestEventThatIsBroughtBackAndKills(t *testing.T) { perMode(t, testEventThatIsBroughtBackAndKills) }

func testEventThatIsBroughtBackAndKills(t *testing.T, f *fixture) {
	run := f.killed()
	for id, starts := range map[string]int{"killer": 3, "other": 2} {
		f.keep(id, "labour/notify", "", "retrying", "error", "oops")
		f.noted(run, id, starts)
	}
	f.sql(`update {schema}.claim_failed set due_at = now(), topic = 'topic'`)
	c := f.claim(claim.Config{Logger: silent, Consumer: func(handler string) string { return handler }})
	f.running(c)
	channel := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{})
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	router.AddMiddleware(c.Middleware)
	router.AddConsumerHandler("notify", "topic", c.Subscriber("notify", channel), func(msg *message.Message) error {
		return f.effect(msg.Context(), msg.UUID)
	})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { assert.NoError(t, router.Run(ctx)) })
	require.Eventually(t, func() bool { return f.count("effect") == 1 && f.states()["killer"] == "dead" }, time.Minute, 5*time.Millisecond)
	cancel()
	running.Wait()
	assert.Equal(t, map[string]int{"other": 1}, f.effects())
	assert.Equal(t, 1, f.count("claim_failed where reason = 'killed'"))
	assert.Zero(t, f.count("claim_start"))
}
