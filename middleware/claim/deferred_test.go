package claim_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
)

// A crash of the server undoes claims that were committed without waiting for the disk: none of them was acked.
func TestCrashUnderDeferredAcks(t *testing.T) {
	t.Parallel()
	devtest.Long(t)
	for name, group := range map[string]int{"singly": 0, "in groups": 10} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			assert.Zero(t, crashUnderDeferredAcks(t, group, func(*claim.Claim) {}), "acked events that are missing after recovery")
		})
	}
}

// The test above can fail: acks right after the commit are lost.
func TestCrashWithoutFlush(t *testing.T) {
	t.Parallel()
	for attempt := range 6 { // what was committed last may have reached the disk for other reasons
		lost := 0
		t.Run(strconv.Itoa(attempt), func(t *testing.T) { lost = crashUnderDeferredAcks(t, 0, claim.WithoutFlush) })
		if lost > 0 {
			return
		}
	}
	t.Error("nothing was lost")
}

// A delivery fails, and another one handles the event before the failure is recorded. Its commit was not on disk when the message was
// acked as a duplicate.
func TestAckAfterAFailureFollowsAFlush(t *testing.T) {
	t.Parallel()
	f, _ := newForgetfulFixture(t)
	c, err := claim.New(f.store, claim.Config{Service: "labour", Deferred: true, Consumer: func(string) string { return "notify" }})
	require.NoError(t, err)
	claim.WithoutFlush(c)
	for range 10 { // what was committed last may have reached the disk for other reasons
		id := outbox.NewID()
		msg, _ := deliver(t, id)
		_, err := c.Middleware(f.handler)(msg)
		require.NoError(t, err)
		var end string
		require.NoError(t, f.pool.QueryRow(t.Context(), `select pg_current_wal_insert_lsn()`).Scan(&end))
		state, err := claim.Keep(t.Context(), f.store, claim.Key{Consumer: "labour/notify", EventID: id})
		require.NoError(t, err)
		require.Empty(t, state, "it is settled")
		var flushed bool
		require.NoError(t, f.pool.QueryRow(t.Context(), `select pg_current_wal_flush_lsn() >= $1::text::pg_lsn`, end).Scan(&flushed))
		require.True(t, flushed)
	}
}

// newForgetfulFixture is newFixture on a server of its own. What is committed without waiting for the disk stays in memory: the WAL
// writer sleeps, nobody writes a page that needs its WAL on disk, and the buffers of the WAL do not fill.
func newForgetfulFixture(t *testing.T) (*fixture, *devstack.Server) {
	server := devtest.Postgres(t, devstack.ServerConfig{Settings: map[string]string{
		"wal_writer_delay": "10s", "wal_writer_flush_after": "1GB", "autovacuum": "off", "wal_buffers": "64MB",
		"bgwriter_lru_maxpages": "0",
	}})
	pool := devtest.PoolOn(t, server.DSN(), func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["default_transaction_isolation"] = "serializable"
		c.ConnConfig.RuntimeParams["synchronous_commit"] = "off"
	})
	f := prepare(&fixture{t: t, pool: pool, schema: "deferred"})
	_, err := pool.Exec(t.Context(), `checkpoint`)
	require.NoError(t, err)
	return f, server
}

func crashUnderDeferredAcks(t *testing.T, group int, change func(*claim.Claim)) (lost int) {
	f, server := newForgetfulFixture(t)
	c, err := claim.New(f.store, claim.Config{Service: "labour", Deferred: true, Group: group, Consumer: func(string) string { return "notify" }})
	require.NoError(t, err)
	change(c)
	h := c.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		tx, _ := pgtx.From(msg.Context())
		_, err := tx.Exec(msg.Context(), `insert into deferred.effect values ($1)`, msg.UUID)
		return nil, err
	})

	var mu sync.Mutex
	acked := map[string]bool{}
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(acked)
	}
	for crash := range 3 {
		stop, before := make(chan struct{}), count()
		var workers sync.WaitGroup
		for w := range 12 {
			workers.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					default:
					}
					id := fmt.Sprint(crash, "-", w, "-", i)
					for range 2 { // the second delivery is a duplicate, whose ack must be as durable
						msg, _ := deliver(t, id)
						if _, err := h(msg); err != nil || nacked(msg) {
							<-time.After(5 * time.Millisecond) // the server is down
							continue
						}
						mu.Lock()
						acked[id] = true
						mu.Unlock()
					}
				}
			})
		}
		require.Eventually(t, func() bool { return count() > before+200 }, time.Minute, time.Millisecond)
		require.NoError(t, server.Crash(context.Background()))
		close(stop)
		workers.Wait()
		require.NoError(t, server.Start(context.Background()))
		f.pool.Reset()
		require.Eventually(t, func() bool { return f.pool.Ping(context.Background()) == nil }, time.Minute, 10*time.Millisecond)
	}
	effects := f.effects()
	assert.Zero(t, doubled(effects))
	for id := range acked {
		if effects[id] == 0 {
			lost++
		}
	}
	t.Logf("%d events acked, %d of them lost", len(acked), lost)
	return lost
}

// handled is a delivery that tells when its lane may move on.
type handled struct {
	delivery
	moved chan struct{}
}

func (h *handled) Handled() { close(h.moved) }

// The lane moves on before the ack, which waits for a flush that others share; a duplicate's too.
func TestDeferredAckFollowsItsFlush(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c, err := claim.New(f.store, claim.Config{Service: "labour", Deferred: true, Consumer: func(string) string { return "notify" }})
	require.NoError(t, err)
	h := c.Middleware(f.handler)
	for _, id := range []string{"1", "1", "2"} {
		d := &handled{moved: make(chan struct{})}
		msg := message.NewMessageWithContext(transport.WithDelivery(t.Context(), d), id, nil)
		_, err := h(msg)
		require.NoError(t, err)
		assert.False(t, nacked(msg))
		select {
		case <-d.moved:
		default:
			t.Error("the lane never moved on")
		}
	}
	assert.Equal(t, map[string]int{"1": 1, "2": 1}, f.effects())
}

// Where order is promised, the next event of the key waits for the flush: a crash of the server could undo this event alone. In a group of
// handlers the next one has not seen the event yet.
func TestDeferredKeepsTheOrder(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for name, c := range map[string]struct {
		cfg   claim.Config
		group bool
		moves bool
	}{
		"ordered": {cfg: claim.Config{Ordered: true}},
		"a group": {group: true},
		"control": {moves: true},
	} {
		c.cfg.Service, c.cfg.Deferred = "labour", true
		cl, err := claim.New(f.store, c.cfg)
		require.NoError(t, err)
		handler := cqrs.NewEventHandler(name, func(context.Context, *struct{}) error { return nil })
		d := &handled{moved: make(chan struct{})}
		msg := message.NewMessageWithContext(transport.WithDelivery(t.Context(), d), outbox.NewID(), nil)
		if c.group {
			err = cl.OnGroupEvent(cqrs.EventGroupProcessorOnHandleParams{GroupName: "g", Handler: cqrs.NewGroupEventHandler(func(context.Context, *struct{}) error { return nil }), EventName: "e", Event: &struct{}{}, Message: msg})
		} else {
			err = cl.OnEvent(cqrs.EventProcessorOnHandleParams{Handler: handler, EventName: "e", Event: &struct{}{}, Message: msg})
		}
		require.NoError(t, err)
		moved := false
		select {
		case <-d.moved:
			moved = true
		default:
		}
		assert.Equal(t, c.moves, moved, name)
	}
	assert.Equal(t, 3, f.count("processed"))
}

// A claim that is gone when it is to be flushed is nacked, and is no failure of its event; so is one of which nobody knows.
func TestLostClaimIsNotAcked(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c, err := claim.New(f.store, claim.Config{Service: "labour", Deferred: true, Consumer: func(string) string { return "notify" }})
	require.NoError(t, err)
	for name, damage := range map[string]string{
		"lost":    `delete from ` + f.schema + `.processed`,
		"unknown": `alter table ` + f.schema + `.processed rename to gone`,
	} {
		d := &losing{f: f, damage: damage}
		msg := message.NewMessageWithContext(transport.WithDelivery(t.Context(), d), outbox.NewID(), nil)
		_, err = c.Middleware(f.handler)(msg)
		require.ErrorContains(t, err, "make the claim durable", name)
		_, err = f.pool.Exec(t.Context(), `alter table if exists `+f.schema+`.gone rename to processed`)
		require.NoError(t, err)
	}
	assert.Zero(t, f.count("claim_failed"), "no attempt was counted")
}

// losing damages the table between the commit and the flush.
type losing struct {
	delivery
	f      *fixture
	damage string
}

func (l *losing) Handled() {
	_, err := l.f.pool.Exec(context.Background(), l.damage)
	require.NoError(l.f.t, err)
}

// The dead letter of an event is still there when the day of its record has been dropped. A redelivery was refused because of the dead
// letter, found no record to make durable, and was nacked for ever.
func TestDeferredRedeliveryOfADeadLetter(t *testing.T) {
	t.Parallel()
	for name, group := range map[string]int{"singly": 0, "in groups": 4} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, id := newFixture(t), mintedAt(-10*day)
			guard := f.middleware(claim.Config{Deferred: true, Group: group, Logger: silent})
			delivered := func() {
				msg, _ := deliver(t, id)
				_, err := guard(failing(claim.Permanent(errOops)))(msg)
				require.NoError(t, err)
				assert.False(t, nacked(msg))
			}
			delivered()
			require.Equal(t, []string{"processed_old"}, f.retain().Days)
			require.Zero(t, f.count("processed"))
			delivered()
			assert.Equal(t, map[string]string{id: "dead"}, f.states())
		})
	}
}
