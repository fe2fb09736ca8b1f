package outbox_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
)

func TestFailedKeyOfTwoTopicsKeepsItsOrder(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p := &choosy{}
	p.reject.Store(true)
	require.NoError(t, pgtx.Run(t.Context(), f.pool, func(ctx context.Context, _ pgx.Tx) error {
		for _, m := range []struct{ topic, payload string }{{"aaa", "1"}, {"aaa", "2"}, {"bbb", "3"}} {
			if err := f.publisher.Publish(m.topic, newMessage(ctx, "k", m.payload)); err != nil {
				return err
			}
		}
		return nil
	}))
	f.run(f.newRelay(p, outbox.RelayConfig{}))
	eventually(t, "dead", func() bool { return len(f.failed("k")) == 3 })
	t.Log(f.failed("k"))
	p.reject.Store(false)
	f.command("retry", "1")
	eventually(t, "sent", func() bool { return f.rows() == 0 })
	assert.Equal(t, []string{"1", "2", "3"}, p.got)
}

type choosy struct {
	recorder
	mu     sync.Mutex
	reject atomic.Bool
	got    []string
}

func (p *choosy) PublishBatch(_ context.Context, _ string, msgs []*message.Message) []error {
	p.mu.Lock()
	defer p.mu.Unlock()
	errs := make([]error, len(msgs))
	bad := map[string]bool{}
	for i, m := range msgs {
		switch key := transport.Key(m); {
		case bad[key]:
			errs[i] = transport.ErrNotSent
		case p.reject.Load() && string(m.Payload) == "1":
			errs[i], bad[key] = transport.ErrRejected, true
		default:
			p.got = append(p.got, string(m.Payload))
		}
	}
	return errs
}

// Failed events that were published and are not deleted yet count, too.
func TestFailedEventsKeepToMaxInFlight(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p := &choosy{}
	p.reject.Store(true)
	payloads := []string{"1"}
	for i := range 150 {
		payloads = append(payloads, fmt.Sprint("x", i))
	}
	f.publishAll(topic, "k", payloads...)
	f.run(f.newRelay(p, outbox.RelayConfig{MaxInFlight: 1, BatchSize: 1}))
	eventually(t, "dead", func() bool { return len(f.failed("k")) == 151 })
	p.reject.Store(false)
	lock, err := f.pool.Begin(t.Context()) // what makes the next one due waits
	require.NoError(t, err)
	_, err = lock.Exec(t.Context(), `select * from `+f.schema+`.outbox_failed where key = 'k' and id > (select min(id) from `+f.schema+`.outbox_failed) for update`)
	require.NoError(t, err)
	f.command("retry", "1")
	published := func() int {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.got)
	}
	eventually(t, "the first is published", func() bool { return published() == 1 })
	assert.Never(t, func() bool { return published() > 1 }, 3*time.Second, 10*time.Millisecond)
	require.NoError(t, lock.Rollback(context.Background()))
	eventually(t, "then the others are", func() bool { return f.rows() == 0 })
}

// An operator retries the event that ended its relays: it is dead again, and relays live on.
func TestFailedEventThatKillsItsRelay(t *testing.T) {
	t.Parallel()
	devtest.Long(t)
	f := newFixture(t)
	f.publish("killer", "kills its relay")
	_, err := f.pool.Exec(t.Context(), `with gone as (delete from `+f.schema+`.outbox returning *)
		insert into `+f.schema+`.outbox_failed (hash, shard, seq, event_id, topic, key, headers, payload, created_at, state, command)
		select 0, shard, seq, event_id, topic, key, headers, payload, created_at, 'dead', 'retry' from gone`)
	require.NoError(t, err)
	f.relaysUntilDead(newDeliveries(t))
}

// The broker is down, and relays are killed for other reasons between two attempts: that is no event's fault.
func TestOutageAccusesNobody(t *testing.T) {
	t.Parallel()
	f, broker := newFixture(t), newRecorder()
	p := &failing{batchRecorder: batchRecorder{broker}}
	down := transport.ErrUnavailable
	p.err.Store(&down)
	f.publish("k", "innocent")
	for range 6 {
		calls := p.calls.Load()
		stop := f.run(f.newRelay(p, outbox.RelayConfig{}))
		eventually(t, "tried", func() bool { return p.calls.Load() > calls+1 || len(f.failed("k")) > 0 })
		stop()
		// What the table holds after SIGKILL between two attempts.
		_, err := f.pool.Exec(t.Context(), `update `+f.schema+`.outbox_shard set relay_id = gen_random_uuid(), expires_at = now()`)
		require.NoError(t, err)
	}
	p.err.Store(nil)
	f.run(f.newRelay(p, outbox.RelayConfig{}))
	eventually(t, "it is sent", func() bool { return assert.ObjectsAreEqual([]string{"innocent"}, broker.of("k")) })
	assert.Empty(t, f.failed("k"))
}

// A command that came while failed events were sent was forgotten until the next poll.
func TestCommandWhileFailedEventsAreTried(t *testing.T) {
	t.Parallel()
	f, broker := newFixture(t), newRecorder()
	require.NoError(t, outboxadmin.ChangeShards(t.Context(), f.pool, f.schema, 1, nil))
	broker.refuseAll(func(p string) bool { return strings.HasPrefix(p, "poison") })
	f.run(f.newRelay(rejecting{batchRecorder{broker}}, outbox.RelayConfig{PollInterval: time.Minute}))
	f.publish("a", "poison a")
	f.publish("b", "poison b")
	eventually(t, "dead", func() bool { return len(f.failed("a")) == 1 && len(f.failed("b")) == 1 })
	broker.refuseAll(func(p string) bool { return p == "poison a" })
	hold := make(chan struct{})
	broker.mu.Lock()
	broker.hold = hold
	broker.mu.Unlock()
	f.command("retry", "poison a")
	<-broker.waiting
	f.command("retry", "poison b")
	assert.Never(t, func() bool { return len(broker.of("b")) > 0 }, 300*time.Millisecond, 10*time.Millisecond, "the round is under way")
	close(hold)
	assert.Eventually(t, func() bool { return len(broker.of("b")) == 1 }, time.Minute, 10*time.Millisecond, "b is sent")
	t.Log(f.failed("b"))
}
