package claim_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/deadletter"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/transport"
)

func (f *fixture) fullKeys() []claim.FullKey {
	f.t.Helper()
	found, err := claim.FullKeys(f.t.Context(), f.pool, f.schema, 10)
	require.NoError(f.t, err)
	return found
}

// Behind a dead letter the database keeps as many events of its key as it may, and the broker keeps the rest. Once an operator has
// decided, each takes effect once and in order. Without a limit the database keeps all.
func TestMaxBlocked(t *testing.T) { perMode(t, testMaxBlocked) }

func testMaxBlocked(t *testing.T, f *fixture) {
	for name, most := range map[string]int{"limited": 3, "not limited": 0} {
		t.Run(name, func(t *testing.T) {
			f := prepare(&fixture{t: t, pool: f.pool, schema: devtest.Schema(t), mode: f.mode})
			f.keepHandled()
			m := f.broker()
			var mended atomic.Bool
			f.serve(m, claim.Config{Ordered: true, MaxBlocked: most}, func(msg *message.Message) error {
				if err := f.note(msg); err != nil {
					return err
				}
				if msg.UUID == "a1" && !mended.Load() {
					return claim.Permanent(errOops)
				}
				return nil
			})
			const events = 8
			for n := range events {
				f.publish(m, keyed(fmt.Sprint("a", n+1), "a"))
			}
			f.publish(m, keyed("b1", "b"))
			if most == 0 {
				f.eventually(func() bool { return len(f.failed()) == events }, "all are kept")
				assert.Empty(t, f.fullKeys())
			} else {
				f.eventually(func() bool { return len(f.fullKeys()) == 1 }, "the key is full")
				full := f.fullKeys()[0]
				assert.Equal(t, claim.FullKey{Consumer: "labour/notify", Key: "a", Blocked: most, Since: full.Since}, full)
				assert.Equal(t, "a1 dead, a2 blocked, a3 blocked, a4 blocked", strings.Join(f.inOrder(), ", "))
			}
			f.eventually(func() bool { return f.handledByKey()["b"] == "b1" }, "another key goes on")
			mended.Store(true)
			_, err := deadletter.Replay(t.Context(), f.pool, f.schema, deadletter.Selection{EventIDs: []string{"a1"}}, me)
			require.NoError(t, err)
			f.eventually(func() bool { return f.count("handled") == events+1 && len(f.failed()) == 0 }, "all are handled")
			assert.Equal(t, "a1 a2 a3 a4 a5 a6 a7 a8", f.handledByKey()["a"])
			assert.Empty(t, f.fullKeys())
			assert.Zero(t, f.count("claim_key"))
		})
	}
}

// blocks delivers an event of the key k once, and reports what became of it.
func (x tries) blocks(id string) string {
	x.t.Helper()
	msg, _ := deliver(x.t, id)
	transport.SetKey(msg, "k")
	_, err := x.guard(func(*message.Message) ([]*message.Message, error) { return nil, claim.Permanent(errOops) })(msg)
	require.NoError(x.t, err)
	if nacked(msg) {
		return "nacked"
	}
	return x.states()[id]
}

// What an operator takes away makes room, a limit holds for events that came before there was one, and what nobody would redeliver
// is kept in any case. Events of a full key leave nothing but the time at which it became full.
func TestMaxBlockedMakesRoom(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	unlimited := tries{f, f.middleware(claim.Config{Ordered: true, Logger: silent})}
	limited := tries{f, f.middleware(claim.Config{Ordered: true, MaxBlocked: 3, Logger: silent})}
	assert.Equal(t, "dead", unlimited.blocks("e0"))
	for _, id := range []string{"e1", "e2", "e3", "e4"} {
		assert.Equal(t, "blocked", unlimited.blocks(id))
	}
	assert.Equal(t, "nacked", limited.blocks("e5"))
	since := f.fullKeys()[0].Since
	assert.Equal(t, "nacked", limited.blocks("e5"))
	assert.Equal(t, since, f.fullKeys()[0].Since)
	assert.Len(t, f.failed(), 5)

	discard := func(ids ...string) {
		_, err := deadletter.Discard(t.Context(), f.pool, f.schema, deadletter.Selection{EventIDs: ids, States: []string{"blocked"}}, me)
		require.NoError(t, err)
	}
	discard("e1")
	assert.Equal(t, "nacked", limited.blocks("e5"), "there are still three")
	discard("e2", "e4")
	assert.Equal(t, "blocked", limited.blocks("e5"))
	assert.Empty(t, f.fullKeys())
	assert.Equal(t, "blocked", limited.blocks("e6"))
	assert.Equal(t, "nacked", limited.blocks("e7"))
	assert.Equal(t, "blocked", limited.blocks("e6"), "its duplicate is absorbed")

	msg, _ := deliver(t, "e8")
	transport.SetKey(msg, "k")
	msg.Ack()
	_, err := limited.guard(f.handler)(msg)
	require.NoError(t, err)
	assert.Equal(t, "blocked", f.states()["e8"], "nobody would redeliver it")
}

// A key stops being full once a service without a limit keeps its events, as it does after MaxBlocked was removed from its
// configuration. Those events are not counted as they come, so a limit that is set again counts them all.
func TestMaxBlockedIsRemoved(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	limited := tries{f, f.middleware(claim.Config{Ordered: true, MaxBlocked: 3, Logger: silent})}
	unlimited := tries{f, f.middleware(claim.Config{Ordered: true, Logger: silent})}
	assert.Equal(t, "dead", limited.blocks("e0"))
	for _, id := range []string{"e1", "e2", "e3"} {
		assert.Equal(t, "blocked", limited.blocks(id))
	}
	assert.Equal(t, "nacked", limited.blocks("e4"))
	assert.Len(t, f.fullKeys(), 1)

	assert.Equal(t, "blocked", unlimited.blocks("e4"))
	assert.Empty(t, f.fullKeys(), "the broker keeps nothing of it any more")
	assert.Equal(t, "blocked", unlimited.blocks("e5"))
	assert.Equal(t, "nacked", limited.blocks("e6"))
	assert.Len(t, f.fullKeys(), 1)

	_, err := deadletter.Discard(t.Context(), f.pool, f.schema, deadletter.Selection{EventIDs: []string{"e1", "e2", "e3", "e4"}, States: []string{"blocked"}}, me)
	require.NoError(t, err)
	assert.Equal(t, "blocked", limited.blocks("e6"), "e5 is there")
	for range 2 {
		assert.Equal(t, "blocked", unlimited.blocks(outbox.NewID()))
	}
	assert.Equal(t, "nacked", limited.blocks("e7"), "those without a limit count too")
}

// A limit costs an event that is blocked no round trip.
func TestMaxBlockedCosts(t *testing.T) {
	t.Parallel()
	pool, trips := devtest.CountedPool(t)
	cost := map[int]int{}
	for _, most := range []int{0, 10} {
		f := newFixture(t)
		x := tries{f, (&fixture{t: t, pool: pool, schema: f.schema, store: claim.NewPostgresStore(pool, claim.Schema(f.schema))}).middleware(
			claim.Config{Ordered: true, MaxBlocked: most, Logger: silent})}
		block := func() { assert.Equal(t, "blocked", x.blocks(outbox.NewID())) }
		x.blocks(outbox.NewID())
		block() // the connection learns its statements
		cost[most] = trips.Of(block)
	}
	assert.Positive(t, cost[0])
	assert.Equal(t, cost[0], cost[10])
}
