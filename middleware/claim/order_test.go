package claim_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/deadletter"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
)

// keepHandled creates a table that keeps the order in which the events of a key took effect.
func (f *fixture) keepHandled() {
	f.exec(`create table ` + f.schema + `.handled (position bigint generated always as identity, key text, event_id text)`)
}

func (f *fixture) note(msg *message.Message) error {
	tx, _ := pgtx.From(msg.Context())
	_, err := tx.Exec(msg.Context(), `insert into `+f.schema+`.handled (key, event_id) values ($1, $2)`, transport.Key(msg), msg.UUID)
	return err
}

// handledByKey returns the events of each key in the order of their effects.
func (f *fixture) handledByKey() map[string]string {
	rows, err := f.pool.Query(context.Background(), `select key, string_agg(event_id, ' ' order by position) from `+f.schema+`.handled group by 1`)
	require.NoError(f.t, err)
	noted := map[string]string{}
	var key, events string
	_, err = pgx.ForEachRow(rows, []any{&key, &events}, func() error { noted[key] = events; return nil })
	require.NoError(f.t, err)
	return noted
}

func (f *fixture) inOrder() (states []string) {
	for _, row := range f.failed() {
		states = append(states, row.EventID+" "+row.State)
	}
	return states
}

// Later events of a key wait behind one that fails, in order; other keys go on.
func TestEventsWaitBehindOneOfTheirKeyThatFails(t *testing.T) {
	perMode(t, testEventsWaitBehindOneOfTheirKeyThatFails)
}

func testEventsWaitBehindOneOfTheirKeyThatFails(t *testing.T, f *fixture) {
	f.keepHandled()
	m := f.broker()
	var mended atomic.Bool
	f.serve(m, claim.Config{Ordered: true, MaxAttempts: 1000}, func(msg *message.Message) error {
		if msg.UUID == "a2" && !mended.Load() {
			return errOops
		}
		return f.note(msg)
	})
	f.publish(m, keyed("a1", "a"), keyed("a2", "a"), keyed("b1", "b"), keyed("a3", "a"), keyed("b2", "b"), keyed("a4", "a"), keyed("a3", "a"))
	f.eventually(func() bool {
		return strings.Join(f.inOrder(), ", ") == "a2 retrying, a3 blocked, a4 blocked" && f.handledByKey()["b"] == "b1 b2"
	}, "the key is held up, the other is not")
	assert.Equal(t, "a1", f.handledByKey()["a"])
	mended.Store(true)
	f.eventually(func() bool { return len(f.failed()) == 0 }, "the table is empty again")
	assert.Equal(t, "a1 a2 a3 a4", f.handledByKey()["a"])
	assert.Zero(t, f.count("claim_key"))
	f.publish(m, keyed("a5", "a"))
	f.eventually(func() bool { return f.handledByKey()["a"] == "a1 a2 a3 a4 a5" }, "the key is free")
}

// A dead letter holds up its key until an operator has decided, and what he took away lets the next ones have their turn.
func TestKeysBehindDeadLetters(t *testing.T) { perMode(t, testKeysBehindDeadLetters) }

func testKeysBehindDeadLetters(t *testing.T, f *fixture) {
	f.keepHandled()
	m := f.broker()
	var mended atomic.Bool
	f.serve(m, claim.Config{Ordered: true}, func(msg *message.Message) error {
		if strings.HasSuffix(msg.UUID, "1") && !mended.Load() {
			return claim.Permanent(errOops)
		}
		return f.note(msg)
	})
	f.publish(m, keyed("a1", "a"), keyed("b1", "b"), keyed("a2", "a"), keyed("b2", "b"))
	f.eventually(func() bool { return len(f.failed()) == 4 }, "all are kept")
	assert.Empty(t, f.handledByKey())
	by := deadletter.By{Actor: "somebody"}
	_, err := deadletter.Discard(t.Context(), f.pool, f.schema, deadletter.Selection{EventIDs: []string{"a1"}}, by)
	require.NoError(t, err)
	f.eventually(func() bool { return f.handledByKey()["a"] == "a2" }, "the next has its turn")
	mended.Store(true)
	_, err = deadletter.Replay(t.Context(), f.pool, f.schema, deadletter.Selection{EventIDs: []string{"b1"}}, by)
	require.NoError(t, err)
	f.eventually(func() bool { return f.handledByKey()["b"] == "b1 b2" }, "in order")
	f.eventually(func() bool { return f.count("claim_key") == 0 }, "both are free")
}

// However an operator took away what was in front, the next of the key has its turn in the end.
func TestKeyThatIsStuck(t *testing.T) { perMode(t, testKeyThatIsStuck) }

func testKeyThatIsStuck(t *testing.T, f *fixture) {
	f.keepHandled()
	m := f.broker()
	stop := f.serve(m, claim.Config{Ordered: true}, func(msg *message.Message) error {
		if msg.UUID != "a2" {
			return claim.Permanent(errOops)
		}
		return f.note(msg)
	})
	f.publish(m, keyed("a1", "a"), keyed("b1", "b"), keyed("a2", "a"))
	f.eventually(func() bool { return len(f.failed()) == 3 }, "all are kept")
	stop()
	f.exec(`delete from ` + f.schema + `.claim_failed where event_id in ('a1', 'b1')`)
	f.serve(m, claim.Config{Ordered: true}, f.note)
	f.eventually(func() bool { return f.handledByKey()["a"] == "a2" }, "the next has its turn")
	f.eventually(func() bool { return f.count("claim_key") == 0 }, "both are free")
}

// Two processes share the work of many keys whose events fail at random, while the broker repeats itself: each event takes
// effect once, and each key's in order.
func TestProcessesDrainKeysTogether(t *testing.T) { perMode(t, testProcessesDrainKeysTogether) }

func testProcessesDrainKeysTogether(t *testing.T, f *fixture) {
	const keys, events = 6, 25
	f.keepHandled()
	m := f.broker()
	var running sync.Map
	for range 2 {
		f.serve(m, claim.Config{Ordered: true, MaxAttempts: 1000}, func(msg *message.Message) error {
			if err := f.note(msg); err != nil { // the claim may be refused here
				return err
			}
			if _, twice := running.LoadOrStore(transport.Key(msg), true); twice {
				t.Error("two events of a key at once")
			}
			defer running.Delete(transport.Key(msg))
			if rand.IntN(3) > 0 {
				return nil
			}
			return errOops
		})
	}
	want := map[string]string{}
	for e := range events {
		for k := range keys {
			key, id := fmt.Sprint("k", k), fmt.Sprintf("%d-%d", k, e)
			f.publish(m, keyed(id, key))
			if rand.IntN(4) == 0 {
				f.publish(m, keyed(id, key))
			}
			want[key] = strings.TrimSpace(want[key] + " " + id)
		}
	}
	f.eventually(func() bool { return f.count("handled") >= keys*events && f.count("claim_failed") == 0 }, "all are handled")
	assert.Equal(t, want, f.handledByKey())
	assert.Zero(t, f.count("claim_key"))
}
