package claim_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
)

// grouped is a consumer that handles messages in groups.
type grouped struct {
	*fixture
	c *claim.Claim

	mu  sync.Mutex
	ran []string
}

// newGrouped has a database of its own: a group sees the deferrable constraints of its whole database, and is repeated when
// somebody drops one.
func newGrouped(t testing.TB, cfg claim.Config) *grouped {
	return newLonelyFixture(t).grouped(cfg)
}

func (f *fixture) grouped(cfg claim.Config) *grouped {
	if cfg.Group == 0 {
		cfg.Group = 50
	}
	cfg.Consumer = func(string) string { return "notify" }
	cfg.Service = "labour"
	c, err := claim.New(f.store, cfg)
	require.NoError(f.t, err)
	return &grouped{fixture: f, c: c}
}

// result is what became of one message.
type result struct {
	err    error
	nacked bool
}

func (r result) acked() bool { return r.err == nil && !r.nacked }

// handle runs the handler for messages with these IDs, in one group and in this order.
func (g *grouped) handle(h func(ctx context.Context, id string) error, ids ...string) []result {
	messages := make([]*message.Message, len(ids))
	for i, id := range ids {
		messages[i], _ = deliver(g.t, id)
	}
	return g.handleMessages(h, messages...)
}

func (g *grouped) handleMessages(h func(ctx context.Context, id string) error, messages ...*message.Message) []result {
	claim.Gather(g.c, "labour/notify", len(messages))
	handler := g.c.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		g.mu.Lock()
		g.ran = append(g.ran, msg.UUID)
		g.mu.Unlock()
		return nil, h(msg.Context(), msg.UUID)
	})
	results := make([]result, len(messages))
	var running sync.WaitGroup
	for i, msg := range messages {
		running.Go(func() {
			_, err := handler(msg)
			results[i] = result{err, nacked(msg)}
		})
		require.Eventually(g.t, func() bool { return i == len(messages)-1 || claim.Gathered(g.c, "labour/notify") == i+1 }, time.Minute, time.Millisecond)
	}
	running.Wait()
	return results
}

func letters(n int) (ids []string) {
	for i := range n {
		ids = append(ids, string(rune('a'+i)))
	}
	return ids
}

// One transaction for all: BEGIN and the claims, a round trip for each handler's statement, COMMIT with the records.
func TestRoundTripsOfAGroup(t *testing.T) {
	t.Parallel()
	f := newLonelyFixture(t)
	pool, counter := devtest.CountedPool(t, func(c *pgxpool.Config) { c.ConnConfig.Database = f.pool.Config().ConnConfig.Database })
	g := (&fixture{t: t, pool: pool, schema: f.schema, store: claim.NewPostgresStore(pool, claim.Schema(f.schema))}).grouped(claim.Config{})
	queue := func(ctx context.Context, id string) error {
		return pgtx.Queue(ctx, `insert into `+f.schema+`.effect values ($1)`, id)
	}
	for _, c := range []struct {
		name string
		want int
		h    func(ctx context.Context, id string) error
	}{
		{"exec", 12, g.effect},
		{"queue", 2, queue},
		{"nothing", 2, func(context.Context, string) error { return nil }},
	} {
		n := 0
		run := func() {
			n++
			var ids []string
			for i := range 10 {
				ids = append(ids, fmt.Sprint(c.name, n, "-", i))
			}
			for _, r := range g.handle(c.h, ids...) {
				assert.True(t, r.acked(), "%v", r)
			}
		}
		run()
		assert.Equal(t, c.want, counter.Of(run), c.name)
	}
	assert.Len(t, f.effects(), 60)
	assert.Equal(t, 90, f.count("processed"))
}

// Whatever goes wrong in a handler, it is undone alone, and the order of the others is that of their arrival.
func TestFailingHandlersInAGroupCostNobodyElse(t *testing.T) {
	t.Parallel()
	g := newGrouped(t, claim.Config{})
	out, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: g.schema})
	require.NoError(t, err)
	results := g.handle(func(ctx context.Context, id string) error {
		require.NoError(t, out.Publish("done", message.NewMessageWithContext(ctx, outbox.NewID(), []byte(id))))
		if err := g.effect(ctx, id); err != nil {
			return err
		}
		tx, _ := pgtx.From(ctx)
		switch id {
		case "b":
			return errOops
		case "d":
			panic("oops")
		case "e":
			_, _ = tx.Exec(ctx, `select 1/0`)
		case "g":
			_, err := tx.Exec(ctx, `insert into `+g.schema+`.no_such_table values (1)`)
			return err
		case "h":
			runtime.Goexit()
		case "i":
			_, err := tx.Exec(ctx, `commit`)
			return err
		}
		return nil
	}, letters(11)...)
	assert.Equal(t, letters(11), g.ran, "once each, one after the other")
	require.ErrorIs(t, results[1].err, errOops)
	var panicked *claim.PanicError
	require.ErrorAs(t, results[3].err, &panicked)
	if aborted := new(pgconn.PgError); !errors.As(results[4].err, &aborted) || aborted.Code != "25P02" { // what was queued behind it tells the same
		require.ErrorIs(t, results[4].err, pgx.ErrTxCommitRollback)
	}
	require.ErrorContains(t, results[6].err, "no_such_table")
	require.ErrorIs(t, results[8].err, pgtx.ErrManaged)
	assert.Equal(t, map[string]int{"a": 1, "c": 1, "f": 1, "j": 1, "k": 1}, g.effects())
	for _, i := range []int{0, 2, 5, 9, 10} {
		assert.True(t, results[i].acked(), "%d: %v", i, results[i])
	}
	assert.Equal(t, 5, g.count("outbox"))
	assert.Equal(t, 5, g.count("processed"))
	assert.Equal(t, 6, g.count("claim_failed where attempts = 1 and state = 'nacked'"))

	ok := g.handle(g.effect, letters(11)...)
	assert.Len(t, g.effects(), 11)
	for i, r := range ok {
		assert.True(t, r.acked(), "%d: %v", i, r)
	}
	assert.Equal(t, 1, g.effects()["a"])
}

// What a handler left to the commit fails where it is known whose it is, and the next handler finds its constraints as
// they were.
func TestDeferredConstraintsInAGroup(t *testing.T) {
	t.Parallel()
	g := newGrouped(t, claim.Config{})
	_, err := g.pool.Exec(t.Context(), `
		create table `+g.schema+`.parent (id text primary key);
		create table `+g.schema+`.child (id text references `+g.schema+`.parent deferrable initially deferred);
		create table `+g.schema+`.eager (id text references `+g.schema+`.parent deferrable)`)
	require.NoError(t, err)
	results := g.handle(func(ctx context.Context, id string) error {
		tx, _ := pgtx.From(ctx)
		if _, err := tx.Exec(ctx, `insert into `+g.schema+`.child values ($1)`, id); err != nil {
			return err
		}
		if id == "b" {
			return nil // an orphan
		}
		if id == "d" { // a queued statement's failure is known in time too
			return pgtx.Queue(ctx, `insert into `+g.schema+`.parent select 'd' from generate_series(1, 2)`)
		}
		if _, err := tx.Exec(ctx, `insert into `+g.schema+`.parent values ($1)`, id); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `insert into `+g.schema+`.eager values ($1)`, id)
		return err
	}, letters(5)...)
	assert.Equal(t, letters(5), g.ran)
	require.ErrorContains(t, results[1].err, "foreign key")
	require.ErrorContains(t, results[3].err, "duplicate key")
	for _, i := range []int{0, 2, 4} {
		require.NoError(t, results[i].err)
	}
	assert.Equal(t, 3, g.count("parent"))
	assert.Equal(t, 3, g.count("child"))
}

// A transaction that fails as a whole is repeated singly, and nobody is charged for what others did.
func TestGroupsThatFailAsAWholeAreDissolved(t *testing.T) {
	t.Parallel()
	for name, bad := range map[string]func(g *grouped, ctx context.Context) error{
		"a queued statement": func(g *grouped, ctx context.Context) error { return pgtx.Queue(ctx, `select 1/0`) },
		"the connection": func(g *grouped, ctx context.Context) error {
			g.killConnection(ctx)
			return errOops
		},
		"the connection, unnoticed": func(g *grouped, ctx context.Context) error {
			g.killConnection(ctx)
			return nil
		},
		"a COMMIT in a text": func(g *grouped, ctx context.Context) error {
			tx, _ := pgtx.From(ctx)
			_, err := tx.Exec(ctx, `select 1; rollback`)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGrouped(t, claim.Config{})
			results := g.handle(func(ctx context.Context, id string) error {
				if err := g.effect(ctx, id); err != nil || id != "c" {
					return err
				}
				return bad(g, ctx)
			}, letters(5)...)
			for i, r := range results {
				assert.Equal(t, i != 2, r.acked(), "%d: %v", i, r)
			}
			assert.Equal(t, map[string]int{"a": 1, "b": 1, "d": 1, "e": 1}, g.effects())
			assert.Equal(t, 4, g.count("processed"))
			assert.Zero(t, g.count("claim_failed where event_id <> 'c'"))
		})
	}
}

// Two transactions that lock rows in other orders end in a deadlock, which the handlers did not make alone.
func TestDeadlockInAGroup(t *testing.T) {
	t.Parallel()
	g := newGrouped(t, claim.Config{})
	_, err := g.pool.Exec(t.Context(), `create table `+g.schema+`.account (id text primary key, n int not null default 0); insert into `+g.schema+`.account values ('a'), ('b'), ('c')`)
	require.NoError(t, err)
	update := func(ctx context.Context, tx pgx.Tx, id string) error {
		_, err := tx.Exec(ctx, `update `+g.schema+`.account set n = n + 1 where id = $1`, id)
		return err
	}
	other, err := g.pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = other.Exec(t.Context(), `set local deadlock_timeout = '10min'`) // the group notices
	require.NoError(t, err)
	require.NoError(t, update(t.Context(), other, "b"))
	var once sync.Once
	ended := make(chan error, 1)
	results := g.handle(func(ctx context.Context, id string) error {
		tx, _ := pgtx.From(ctx)
		if id == "b" {
			once.Do(func() {
				go func() {
					ended <- errors.Join(update(context.Background(), other, "a"), other.Commit(context.Background()))
				}()
			})
		}
		return update(ctx, tx, id)
	}, letters(3)...)
	for i, r := range results {
		assert.True(t, r.acked(), "%d: %v", i, r)
	}
	require.NoError(t, <-ended)
	assert.Equal(t, []string{"a", "b", "c", "b"}, g.ran)
	assert.Equal(t, 5, sum(t, g.pool, `select sum(n) from `+g.schema+`.account`))
	assert.Zero(t, g.count("claim_failed"))
}

func sum(t *testing.T, pool *pgxpool.Pool, sql string) (n int) {
	require.NoError(t, pool.QueryRow(t.Context(), sql).Scan(&n))
	return n
}

// A handler has its own time. What it costs the others is their transaction, which they repeat singly.
func TestLateHandlerInAGroup(t *testing.T) {
	t.Parallel()
	g := newGrouped(t, claim.Config{HandlerTimeout: 2 * time.Second})
	results := g.handle(func(ctx context.Context, id string) error {
		deadline, _ := ctx.Deadline()
		assert.Greater(t, time.Until(deadline), 200*time.Millisecond, "its time begins with its turn")
		if err := g.effect(ctx, id); err != nil {
			return err
		}
		if id == "b" || id == "d" {
			<-ctx.Done()
			if id == "d" {
				tx, _ := pgtx.From(ctx)
				_, err := tx.Exec(ctx, `select 1`)
				return err
			}
		}
		return nil
	}, letters(5)...)
	for i, r := range results {
		if i == 1 || i == 3 {
			require.ErrorIs(t, r.err, context.DeadlineExceeded)
		} else {
			assert.True(t, r.acked(), "%d: %v", i, r)
		}
	}
	assert.Equal(t, map[string]int{"a": 1, "c": 1, "e": 1}, g.effects())
}

func TestContendedAndCompletedInAGroup(t *testing.T) {
	t.Parallel()
	g := newGrouped(t, claim.Config{})
	end := g.holding(claim.Key{Consumer: "labour/notify", EventID: "b"})
	require.NoError(t, g.claimNow(claim.Key{Consumer: "labour/notify", EventID: "c"}))
	results := g.handle(g.effect, letters(4)...)
	assert.Equal(t, []result{{}, {nacked: true}, {}, {}}, results)
	assert.Equal(t, []string{"a", "d"}, g.ran)
	require.NoError(t, end(nil))
	assert.Equal(t, map[string]int{"a": 1, "b": 1, "c": 1, "d": 1}, g.effects())
}

func TestEqualEventsInAGroupShareOneFate(t *testing.T) {
	t.Parallel()
	g := newGrouped(t, claim.Config{})
	fail := func(ctx context.Context, id string) error {
		if id == "b" {
			return errOops
		}
		return g.effect(ctx, id)
	}
	results := g.handle(fail, "a", "b", "a", "b", "a")
	assert.Equal(t, []string{"a", "b"}, g.ran)
	assert.True(t, results[0].acked() && results[2].acked() && results[4].acked())
	require.ErrorIs(t, results[1].err, errOops)
	assert.Equal(t, result{nacked: true}, results[3])
	assert.Equal(t, map[string]int{"a": 1}, g.effects())

	// Also when the group is dissolved.
	results = g.handle(func(ctx context.Context, id string) error {
		if id == "y" {
			return pgtx.Queue(ctx, `select 1/0`)
		}
		return g.effect(ctx, id)
	}, "x", "y", "x", "y", "z")
	assert.True(t, results[0].acked() && results[2].acked() && results[4].acked(), "%v", results)
	require.ErrorContains(t, results[1].err, "division by zero")
	assert.Equal(t, result{nacked: true}, results[3])
	assert.Equal(t, map[string]int{"a": 1, "x": 1, "z": 1}, g.effects())
}

func withKey(t *testing.T, key, id string) *message.Message {
	msg, _ := deliver(t, id)
	transport.SetKey(msg, key)
	return msg
}

// Nothing overtakes an earlier event of its key that failed or is held by another.
func TestOrderInAGroup(t *testing.T) {
	t.Parallel()
	g := newGrouped(t, claim.Config{Ordered: true})
	end := g.holding(claim.Key{Consumer: "labour/notify", EventID: "q1"})
	fail := func(ctx context.Context, id string) error {
		if id == "k2" {
			return errOops
		}
		return g.effect(ctx, id)
	}
	results := g.handleMessages(fail, withKey(t, "k", "k1"), withKey(t, "q", "q1"), withKey(t, "k", "k2"), withKey(t, "k", "k3"), withKey(t, "q", "q2"), withKey(t, "", "free"), withKey(t, "k", "k4"))
	assert.Equal(t, []string{"k1", "k2", "free"}, g.ran)
	for i, want := range map[int]result{0: {}, 1: {nacked: true}, 3: {nacked: true}, 4: {nacked: true}, 5: {}, 6: {nacked: true}} {
		assert.Equal(t, want, results[i], "%d", i)
	}
	require.ErrorIs(t, results[2].err, errOops)
	require.NoError(t, end(nil))

	// Dissolved, too: k2 works now, but k3 fails at its commit.
	g.ran = nil
	results = g.handleMessages(func(ctx context.Context, id string) error {
		if id == "k3" {
			return pgtx.Queue(ctx, `select 1/0`)
		}
		return g.effect(ctx, id)
	}, withKey(t, "k", "k2"), withKey(t, "k", "k3"), withKey(t, "k", "k4"), withKey(t, "r", "r1"))
	assert.True(t, results[0].acked())
	require.ErrorContains(t, results[1].err, "division by zero")
	assert.Equal(t, result{nacked: true}, results[2], "k4 does not overtake k3")
	assert.True(t, results[3].acked())
	assert.NotContains(t, g.effects(), "k4")
}

func TestGroupConfig(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, n := range []int{-1, 1, 51} {
		_, err := claim.New(f.store, claim.Config{Service: "labour", Group: n})
		require.ErrorContains(t, err, fmt.Sprintf("Config.Group is %d: want 2 to 50, or 0 for none", n))
	}
	_, err := claim.New(front{f.store}, claim.Config{Service: "labour", Deferred: true})
	require.ErrorContains(t, err, "Config.Deferred is true with a claim_test.front: want the store of claim.NewPostgresStore itself")
}

// front is a store in front of another.
type front struct{ claim.Store }

func (f front) Unwrap() claim.Store { return f.Store }

// RunTooOld had each event of a group claimed again alone. Only those that nobody can prove to be new need that.
func TestGroupRunsTooOldEventsAlone(t *testing.T) {
	t.Parallel()
	g := newGrouped(t, claim.Config{RunTooOld: true, Logger: silent})
	g.settles(t.Context(), claim.Key{Consumer: "labour/notify", EventID: mintedAt(0)})
	g.retain()
	ids := []string{mintedAt(0), mintedAt(-100 * day), mintedAt(30 * day), mintedAt(0), uuid.NewString()}
	transactions := map[string]string{}
	handle := func() {
		for _, r := range g.handle(func(ctx context.Context, id string) error {
			tx, _ := pgtx.From(ctx)
			var transaction string
			if err := tx.QueryRow(ctx, `select pg_current_xact_id()::text`).Scan(&transaction); err != nil {
				return err
			}
			transactions[id] = transaction
			return g.effect(ctx, id)
		}, ids...) {
			assert.True(t, r.acked(), r.err)
		}
	}
	for range 3 {
		handle()
		assert.Equal(t, map[string]int{ids[0]: 1, ids[1]: 1, ids[2]: 1, ids[3]: 1, ids[4]: 1}, g.effects())
	}
	assert.Equal(t, transactions[ids[0]], transactions[ids[3]])
	assert.Equal(t, transactions[ids[0]], transactions[ids[4]])
	assert.NotEqual(t, transactions[ids[0]], transactions[ids[1]])
	assert.NotEqual(t, transactions[ids[0]], transactions[ids[2]])
}
