package claim_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
)

func tenantOf(msg *message.Message) string { return msg.Metadata["tenant"] }

// handlers counts those that run, by tenant.
type handlers struct {
	mu            sync.Mutex
	running, most map[string]int
	met           chan struct{} // closed when more run than may
	limit         int
}

func (h *handlers) enter(tenant string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.running[tenant]++
	if h.most[tenant] = max(h.most[tenant], h.running[tenant]); h.most[tenant] == h.limit+1 && tenant == "hot" {
		close(h.met)
	}
}

func (h *handlers) leave(tenant string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.running[tenant]--
}

// Two processes handle the events of three tenants. No tenant has more than two in flight in both of them together, and others are not
// kept waiting; some events fail once, and are retried within the limit. In the end each event has its effect, and no attempt was
// counted for waiting. Without a limit more are in flight.
func TestMaxPerKey(t *testing.T) {
	t.Parallel()
	const hot, others, limit = 40, 10, 2
	for mode, cfg := range modes {
		for name, n := range map[string]int{"limited": limit, "control": 0} {
			if n == 0 && mode != "eager" {
				continue // what shows that the limit is needed is the same in each
			}
			t.Run(mode+"/"+name, func(t *testing.T) {
				t.Parallel()
				f, cfg := newFixture(t), cfg
				m := f.broker()
				cfg.LimitKey, cfg.MaxPerKey = tenantOf, n
				h := &handlers{running: map[string]int{}, most: map[string]int{}, met: make(chan struct{}), limit: limit}
				failed := sync.Map{}
				for range 2 {
					f.serve(m, cfg, func(msg *message.Message) error {
						tenant := tenantOf(msg)
						h.enter(tenant)
						defer h.leave(tenant)
						if n == 0 && tenant == "hot" {
							select {
							case <-h.met:
							case <-msg.Context().Done():
							}
						}
						tx, _ := pgtx.From(msg.Context())
						if _, err := tx.Exec(msg.Context(), `select pg_sleep(0.002)`); err != nil { // what a handler takes
							return err
						}
						if _, again := failed.LoadOrStore(msg.UUID, nil); !again && msg.Metadata["fails"] != "" {
							return errOops
						}
						return f.take(msg)
					})
				}
				ids := map[string]int{}
				for i := range hot + 2*others {
					msg := message.NewMessage(outbox.NewID(), nil)
					msg.Metadata["tenant"] = "hot"
					if i >= hot {
						msg.Metadata["tenant"] = fmt.Sprint("other", i%2)
					}
					if i%10 == 0 {
						msg.Metadata["fails"] = "once"
					}
					ids[msg.UUID] = 1
					f.publish(m, msg)
				}
				if n == 0 {
					select {
					case <-h.met:
					case <-time.After(time.Minute):
						t.Fatal("without a limit no more events of a tenant are in flight than with it")
					}
				}
				f.eventually(func() bool { return len(f.effects()) == len(ids) && len(f.failed()) == 0 }, "every event is handled")
				assert.True(t, maps.Equal(ids, f.effects()), "once")
				if n > 0 {
					assert.LessOrEqual(t, h.most["hot"], limit)
				}
			})
		}
	}
}

// An event that finds no slot is nacked for a moment, without an error, without its handler and without an attempt; the next try finds
// the slot that has become free, also when its holder failed or was killed.
func TestMaxPerKeyOfAnotherProcess(t *testing.T) {
	perMode(t, func(t *testing.T, f *fixture) {
		cfg := f.mode
		cfg.MaxPerKey, cfg.LimitKey, cfg.Logger = 1, tenantOf, silent
		one, other := f.claim(cfg), f.claim(cfg)
		send := func(c *claim.Claim, id, tenant string, h func(ctx context.Context) error) (msg *message.Message, called bool, err error) {
			msg, d := deliver(t, id)
			msg.Metadata["tenant"] = tenant
			_, err = c.Middleware(func(msg *message.Message) ([]*message.Message, error) {
				called = true
				return nil, h(msg.Context())
			})(msg)
			assert.LessOrEqual(t, d.retryAfter, time.Second)
			if nacked(msg) {
				assert.Positive(t, d.retryAfter)
			}
			return msg, called, err
		}
		nothing := func(context.Context) error { return nil }
		for name, end := range map[string]func(ctx context.Context) error{
			"succeeds": nothing, "fails": func(context.Context) error { return errOops }, "is killed": func(ctx context.Context) error { f.killConnection(ctx); return errOops },
		} {
			id := outbox.NewID()
			_, called, _ := send(one, outbox.NewID(), "a", func(ctx context.Context) error {
				for range 2 { // the second try does not ask the database
					msg, called, err := send(other, id, "a", nothing)
					require.NoError(t, err)
					assert.False(t, called)
					assert.True(t, nacked(msg), name)
				}
				msg, called, err := send(one, outbox.NewID(), "a", nothing)
				require.NoError(t, err)
				assert.False(t, called, "nor in its own process")
				assert.True(t, nacked(msg))
				for _, tenant := range []string{"b", ""} {
					_, called, err = send(other, outbox.NewID(), tenant, nothing)
					require.NoError(t, err)
					assert.True(t, called, "of another tenant, or of none")
				}
				return end(ctx)
			})
			require.True(t, called)
			f.eventually(func() bool {
				msg, called, err := send(other, id, "a", nothing)
				return err == nil && called && !nacked(msg)
			}, name)
		}
		for _, row := range f.failed() {
			assert.Equal(t, errOops.Error(), row.Error, "nothing was counted for retrying")
		}
	})
}

// Where nobody is limited a claim takes as many round trips and locks as without the feature; a limited one takes one lock more, however
// many slots there are, and one round trip.
func TestMaxPerKeyCosts(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	pool, trips := devtest.CountedPool(t)
	counted := &fixture{t: t, pool: pool, schema: f.schema, store: claim.NewPostgresStore(pool, claim.Schema(f.schema))}
	locks := -1
	handlers := map[string]func(ctx context.Context) error{
		"queue": func(ctx context.Context) error {
			return pgtx.Queue(ctx, `insert into `+f.schema+`.effect values ($1)`, "1")
		},
		"exec": func(ctx context.Context) error {
			tx, _ := pgtx.From(ctx)
			return tx.QueryRow(ctx, `select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()`).Scan(&locks)
		},
	}
	for name, c := range map[string]struct {
		cfg         claim.Config
		key         string
		queue, exec int // round trips
		locks       int
	}{
		"eager, no limit":                    {claim.Config{}, "k", 2, 3, 1},
		"eager, a limit, no key":             {claim.Config{MaxPerKey: 9}, "", 2, 3, 1},
		"eager, a limit of another consumer": {claim.Config{Handlers: map[string]claim.HandlerConfig{"other": {MaxPerKey: 9}}}, "k", 2, 3, 1},
		"eager, limited":                     {claim.Config{MaxPerKey: 9}, "k", 3, 4, 2},
		"eager, limited by its handler":      {claim.Config{Handlers: map[string]claim.HandlerConfig{"notify": {MaxPerKey: 9}}}, "k", 3, 4, 2},
		"lazy, no limit":                     {claim.Config{Lazy: true}, "k", 1, 2, 1},
		"lazy, limited":                      {claim.Config{Lazy: true, MaxPerKey: 9}, "k", 2, 3, 2},
	} {
		c.cfg.Logger = silent
		guard := counted.middleware(c.cfg)
		for how, want := range map[string]int{"queue": c.queue, "exec": c.exec} {
			once := func() {
				msg, _ := deliver(t, outbox.NewID())
				transport.SetKey(msg, c.key)
				_, err := guard(lazyHandler(handlers[how]))(msg)
				require.NoError(t, err)
				require.False(t, nacked(msg))
			}
			once() // the connection learns its statements
			assert.Equal(t, want, trips.Of(once), "%s, %s", name, how)
		}
		assert.Equal(t, c.locks, locks, name)
	}
}

// A group holds one slot for its events of a key, which it handles one after the other.
func TestMaxPerKeyInAGroup(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	g := f.grouped(claim.Config{MaxPerKey: 4, LimitKey: func(*message.Message) string { return "all" }})
	ids := []string{outbox.NewID(), outbox.NewID(), outbox.NewID()}
	var locks []int // one after another
	results := g.handle(func(ctx context.Context, id string) error {
		tx, _ := pgtx.From(ctx)
		locks = append(locks, 0)
		return errors.Join(f.effect(ctx, id),
			tx.QueryRow(ctx, `select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()`).Scan(&locks[len(locks)-1]))
	}, ids...)
	for i, r := range results {
		require.True(t, r.acked(), "%d: %v", i, r.err)
	}
	assert.Len(t, f.effects(), 3)
	assert.Equal(t, []int{4, 4, 4}, locks, "three claims and a slot")
}

// LimitKey meets messages that nobody expected.
func TestMaxPerKeyWithAKeyThatPanics(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	guard := f.middleware(claim.Config{MaxPerKey: 1, MaxAttempts: 1, Logger: silent, LimitKey: func(*message.Message) string { panic("no tenant") }})
	msg, _ := deliver(t, outbox.NewID())
	_, err := guard(f.handler)(msg)
	require.NoError(t, err)
	require.Len(t, f.failed(), 1)
	assert.Contains(t, f.failed()[0].Error, "Config.LimitKey: no tenant")
	assert.Empty(t, f.effects())
}

func TestMaxPerKeyThatCannotBe(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, err := claim.New(f.store, claim.Config{Service: "labour", MaxPerKey: 101, Handlers: map[string]claim.HandlerConfig{"notify": {MaxPerKey: -1}}})
	require.ErrorContains(t, err, "Config.MaxPerKey is 101: want 1 to 100, or 0 for no limit")
	require.ErrorContains(t, err, `Config.Handlers["notify"].MaxPerKey is -1: want 1 to 100`)
	_, err = claim.New(storeOfNothing{}, claim.Config{Service: "labour", MaxPerKey: 1})
	require.ErrorContains(t, err, "Config.MaxPerKey, or that of a handler, is set with a claim_test.storeOfNothing: want the store of claim.NewPostgresStore itself")
}
