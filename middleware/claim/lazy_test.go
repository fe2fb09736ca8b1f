package claim_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
)

// lazyHandler is a handler that needs no message.
func lazyHandler(h func(ctx context.Context) error) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) { return nil, h(msg.Context()) }
}

func (f *fixture) lazy(cfg claim.Config) message.HandlerMiddleware {
	cfg.Lazy, cfg.Logger = true, silent
	return f.middleware(cfg)
}

// What a lazy claim costs: nothing beside the handler's own statements, and COMMIT.
func TestLazyRoundTrips(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.exec(`create table ` + f.schema + `.plain (event_id text)`)
	pool, trips := devtest.CountedPool(t)
	counted := &fixture{t: t, pool: pool, schema: f.schema, store: claim.NewPostgresStore(pool, claim.Schema(f.schema))}
	insert, plain := `insert into `+f.schema+`.effect values ($1)`, `insert into `+f.schema+`.plain values ('x')`
	queue := func(ctx context.Context) error { return pgtx.Queue(ctx, insert, "1") }
	exec := func(ctx context.Context) error { return counted.effect(ctx, "1") }
	in := func(h func(ctx context.Context, tx pgx.Tx) error) func(ctx context.Context) error {
		return func(ctx context.Context) error {
			tx, _ := pgtx.From(ctx)
			return h(ctx, tx)
		}
	}
	held, done := outbox.NewID(), outbox.NewID()
	end := f.holding(claim.Key{Consumer: "labour/notify", EventID: held})
	require.NoError(t, f.claimNow(claim.Key{Consumer: "labour/notify", EventID: done}))
	publisher, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: f.schema})
	require.NoError(t, err)
	for what, c := range map[string]struct {
		id      string
		cfg     claim.Config
		handler func(ctx context.Context) error
		want    int
	}{
		"nothing":               {handler: func(context.Context) error { return nil }, want: 1},
		"it queues":             {handler: queue, want: 1},
		"it queues and orders":  {handler: queue, want: 1, cfg: claim.Config{Ordered: true}},
		"it queues, and defers": {handler: queue, want: 1 + 1, cfg: claim.Config{Deferred: true}}, // the flush
		"it publishes and queues": {handler: func(ctx context.Context) error {
			msg := message.NewMessageWithContext(ctx, outbox.NewID(), nil)
			return errors.Join(queue(ctx), publisher.Publish("follow-ups", msg))
		}, want: 1},
		"a statement": {handler: exec, want: 1 + 1},
		"two statements, and it queues": {handler: func(ctx context.Context) error {
			return errors.Join(exec(ctx), exec(ctx), queue(ctx))
		}, want: 2 + 1},
		"a statement without arguments": {handler: in(func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, plain+";")
			return err
		}), want: 1 + 1},
		"several statements in one text": {handler: in(func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, plain+"; "+plain)
			return err
		}), want: 1 + 1 + 1},
		"a row": {handler: in(func(ctx context.Context, tx pgx.Tx) error {
			return tx.QueryRow(ctx, `select $1::text`, "1").Scan(new(string))
		}), want: 1 + 1},
		"a batch": {handler: in(func(ctx context.Context, tx pgx.Tx) error {
			b := &pgx.Batch{}
			b.Queue(insert, "1")
			b.Queue(insert, "2")
			return tx.SendBatch(ctx, b).Close()
		}), want: 1 + 1},
		"a nested Run": {handler: func(ctx context.Context) error {
			return pgtx.Run(ctx, pool, func(ctx context.Context, _ pgx.Tx) error { return exec(ctx) })
		}, want: 1 + 1},
		"it ensures its claim, and queues": {handler: func(ctx context.Context) error {
			return errors.Join(claim.Ensure(ctx), claim.Ensure(ctx), queue(ctx))
		}, want: 1 + 1},
		// pgx has forgotten the statements of the batch that failed: one to deallocate them, one to prepare them. Behind BEGIN, ROLLBACK.
		"a duplicate":                  {id: done, handler: queue, want: 1 + 2},
		"a duplicate with a statement": {id: done, handler: exec, want: 1 + 2 + 1},
		"one that is held":             {id: held, handler: queue, want: 1 + 2},
	} {
		h := counted.lazy(c.cfg)(lazyHandler(c.handler))
		deliverOne := func() {
			id := c.id
			if id == "" {
				id = outbox.NewID()
			}
			msg, _ := deliver(t, id)
			transport.SetKey(msg, "key")
			_, err := h(msg)
			require.NoError(t, err, what)
		}
		deliverOne() // the nested Run learns which statements the connection knows
		assert.Equal(t, c.want, trips.Of(deliverOne), what)
	}
	require.NoError(t, end(nil))
}

// A refused claim lets nothing of the handler reach the database, by whatever way it tries first, and whatever it makes of
// the error. A sequence shows it: no rollback sets it back.
func TestLazyRefusalExecutesNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.exec(`create sequence ` + f.schema + `.executed`)
	f.exec(`create table ` + f.schema + `.copied (n bigint default nextval('` + f.schema + `.executed'), event_id text)`)
	statement := `insert into ` + f.schema + `.copied (event_id) values ('x')`
	withArgs := `insert into ` + f.schema + `.copied (event_id) values ($1)`
	done, held := outbox.NewID(), outbox.NewID()
	require.NoError(t, f.claimNow(claim.Key{Consumer: "labour/notify", EventID: done}))
	end := f.holding(claim.Key{Consumer: "labour/notify", EventID: held})
	for name, first := range map[string]func(ctx context.Context, tx pgx.Tx) error{
		"nothing": func(context.Context, pgx.Tx) error { return nil },
		"Exec":    func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, withArgs, "x"); return err },
		"a text":  func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, statement); return err },
		"texts": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, statement+"; "+statement)
			return err
		},
		"Query": func(ctx context.Context, tx pgx.Tx) error {
			rows, err := tx.Query(ctx, withArgs+` returning n`, "x")
			if err == nil {
				_, err = pgx.CollectRows(rows, pgx.RowTo[int])
			}
			return err
		},
		"QueryRow": func(ctx context.Context, tx pgx.Tx) error {
			return tx.QueryRow(ctx, withArgs+` returning n`, "x").Scan(new(int))
		},
		"SendBatch": func(ctx context.Context, tx pgx.Tx) error {
			b := &pgx.Batch{}
			b.Queue(withArgs, "x")
			return tx.SendBatch(ctx, b).Close()
		},
		"CopyFrom": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.CopyFrom(ctx, pgx.Identifier{f.schema, "copied"}, []string{"event_id"}, pgx.CopyFromRows([][]any{{"x"}}))
			return err
		},
		"Prepare": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Prepare(ctx, "lazy", withArgs)
			return err
		},
		"LargeObjects": func(ctx context.Context, tx pgx.Tx) error {
			large := tx.LargeObjects()
			_, err := large.Create(ctx, 0)
			return err
		},
		"Conn": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Conn().Exec(ctx, statement)
			return err
		},
		"Queue": func(ctx context.Context, _ pgx.Tx) error { return pgtx.Queue(ctx, withArgs, "x") },
		"a nested Run": func(ctx context.Context, _ pgx.Tx) error {
			return pgtx.Run(ctx, f.pool, func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, withArgs, "x"); return err })
		},
		"Ensure": func(ctx context.Context, _ pgx.Tx) error { return claim.Ensure(ctx) },
		"a statement that PostgreSQL does not understand, and Conn": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `insert into nowhere values ($1)`, "x")
			_, _ = tx.Conn().Exec(ctx, statement)
			return err
		},
		"a COMMIT of its own": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, withArgs, "x")
			_, _ = tx.Conn().Exec(ctx, `select 1; rollback; begin`)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			for how, then := range map[string]func(err error) error{
				"returned":  func(err error) error { return err },
				"swallowed": func(error) error { return nil },
				"replaced":  func(error) error { return errOops },
				"a panic":   func(error) error { panic("oops") },
			} {
				h := f.lazy(claim.Config{MaxAttempts: 1})(lazyHandler(func(ctx context.Context) error {
					tx, _ := pgtx.From(ctx)
					return then(first(ctx, tx))
				}))
				msg, _ := deliver(t, done)
				_, err := h(msg)
				require.NoError(t, err, how)
				assert.False(t, nacked(msg), "acked as a duplicate, %s", how)
				msg, d := deliver(t, held)
				_, err = h(msg)
				require.NoError(t, err, how)
				assert.True(t, nacked(msg), "contended, %s", how)
				assert.Positive(t, d.retryAfter)
			}
		})
	}
	require.NoError(t, end(nil))
	assert.Empty(t, f.failed())
	assert.Zero(t, f.count("copied"))
	assert.Equal(t, map[string]int{done: 1, held: 1}, f.effects())
	var executed bool
	require.NoError(t, f.pool.QueryRow(t.Context(), `select is_called from `+f.schema+`.executed`).Scan(&executed))
	assert.False(t, executed)
	_, err := f.pool.Exec(t.Context(), statement)
	require.NoError(t, err)
	require.NoError(t, f.pool.QueryRow(t.Context(), `select is_called from `+f.schema+`.executed`).Scan(&executed))
	assert.True(t, executed, "the control")
}

// The handler's first statement says why.
func TestLazyRefusalTellsItsReason(t *testing.T) {
	t.Parallel()
	f, key := newFixture(t), claim.Key{Consumer: "labour/notify", EventID: outbox.NewID()}
	end := f.holding(key)
	var got []error
	h := f.lazy(claim.Config{})(lazyHandler(func(ctx context.Context) error {
		got = append(got, f.effect(ctx, "x"), f.effect(ctx, "x"), claim.Ensure(ctx))
		return nil
	}))
	once := func() {
		got = nil
		msg, _ := deliver(t, key.EventID)
		_, err := h(msg)
		require.NoError(t, err)
	}
	once()
	for _, err := range got {
		require.ErrorIs(t, err, claim.ErrContended)
	}
	require.NoError(t, end(nil))
	once()
	for _, err := range got {
		require.ErrorIs(t, err, claim.ErrCompleted)
	}
}

// A handler that fails before its first statement: whose the event is must be known before the failure counts.
func TestLazyHandlerThatFailsBeforeItsClaim(t *testing.T) {
	t.Parallel()
	for name, h := range map[string]func(ctx context.Context) error{
		"an error": func(context.Context) error { return errOops },
		"a panic":  func(context.Context) error { panic(errOops) },
		"after it queued": func(ctx context.Context) error {
			return errors.Join(pgtx.Queue(ctx, `select 1`), errOops)
		},
		"a statement that cannot be prepared": func(ctx context.Context) error {
			tx, _ := pgtx.From(ctx)
			_, err := tx.Exec(ctx, `select $1 from nowhere`, "x")
			return errors.Join(err, errOops)
		},
		"its deadline": func(ctx context.Context) error {
			<-ctx.Done()
			return errOops
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			guard := f.lazy(claim.Config{Ordered: true, HandlerTimeout: 3 * time.Second})
			fails := func(id, key string) (*message.Message, error) {
				msg, _ := deliver(t, id)
				transport.SetKey(msg, key)
				_, err := guard(lazyHandler(h))(msg)
				return msg, err
			}
			require.NoError(t, f.claimNow(claim.Key{Consumer: "labour/notify", EventID: "done"}))
			end := f.holding(claim.Key{Consumer: "labour/notify", EventID: "held"})
			f.keep("dead", "labour/notify", "blocked", "dead", "error", "oops")

			msg, err := fails("done", "a")
			require.NoError(t, err)
			assert.False(t, nacked(msg), "a duplicate is acked")
			msg, err = fails("held", "b")
			require.NoError(t, err)
			assert.True(t, nacked(msg), "contended")
			_, err = fails("behind", "blocked")
			require.NoError(t, err, "it waits behind the dead letter")
			_, err = fails("fresh", "c")
			require.ErrorIs(t, err, errOops)
			require.NoError(t, end(nil))
			assert.Equal(t, map[string]string{"dead": "dead", "behind": "blocked", "fresh": "nacked"}, f.states())
		})
	}
}

// An event that needs a second look is claimed before its handler runs again.
func TestLazyClaimOfARareEvent(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	consumes := func(id string, cfg claim.Config) error {
		msg, _ := deliver(t, id)
		_, err := f.lazy(cfg)(f.handler)(msg)
		return err
	}
	require.NoError(t, consumes("1", claim.Config{}))
	f.exec(`truncate ` + f.schema + `.consumer, ` + f.schema + `.processed restart identity`)
	other := claim.NewPostgresStore(f.pool, claim.Schema(f.schema))
	require.NoError(t, other.Do(t.Context(), claim.Key{Consumer: "b", EventID: "2"}, func(context.Context) error { return nil }))
	require.NoError(t, consumes("2", claim.Config{}), "the consumer's number has changed")

	ancient := mintedAt(-40 * day)
	f.exec(`update ` + f.schema + `.consumer set floor = now() - interval '30 days'`)
	require.NoError(t, consumes(ancient, claim.Config{}), "a dead letter")
	assert.Equal(t, map[string]string{ancient: "dead"}, f.states())
	ancient = mintedAt(-41 * day)
	for range 2 {
		require.NoError(t, consumes(ancient, claim.Config{RunTooOld: true}))
	}
	future := mintedAt(30 * day)
	require.ErrorIs(t, consumes(future, claim.Config{}), claim.ErrClock)

	f.midnight()
	today := mintedAt(0)
	for range 2 {
		require.NoError(t, consumes(today, claim.Config{}), "its day is made")
	}
	assert.Equal(t, map[string]int{"1": 1, "2": 1, ancient: 1, today: 1}, f.effects())
}

// The handler of an event that needs a second look runs twice, as does that of a group that dissolves. What the first run had left made
// the second one blind: to Skip, and to middleware that calls the handler twice.
func TestLazyHandlerThatRunsAgain(t *testing.T) {
	t.Parallel()
	retry := func(of error) message.HandlerMiddleware {
		return func(h message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				_, err := h(msg)
				if err != nil && (of == nil || errors.Is(err, of)) {
					_, err = h(msg)
				}
				return nil, err
			}
		}
	}
	for name, c := range map[string]struct {
		inside  message.HandlerMiddleware
		fails   bool // the first call that has its claim
		want    error
		effects int
	}{
		"left out": {inside: func(message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				if err := claim.Ensure(msg.Context()); err != nil {
					return nil, err
				}
				claim.Skip(msg.Context())
				return nil, nil
			}
		}},
		"called twice in the first run":  {inside: retry(nil), effects: 1},
		"called twice in the second run": {inside: retry(errOops), fails: true, want: claim.ErrCalledAgain},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.midnight() // its day is made meanwhile
			cl, err := claim.New(f.store, claim.Config{Service: "labour", Lazy: true, Logger: silent, Consumer: func(string) string { return "notify" }})
			require.NoError(t, err)
			innermost := cl.Handler("notify", func(msg *message.Message) error {
				if err := f.take(msg); err != nil || !c.fails {
					return err
				}
				c.fails = false
				return errOops
			})
			id := outbox.NewID()
			msg, _ := deliver(t, id)
			_, err = cl.Middleware(c.inside(func(msg *message.Message) ([]*message.Message, error) { return nil, innermost(msg) }))(msg)
			require.ErrorIs(t, err, c.want)
			assert.Equal(t, c.effects, f.effects()[id])
		})
	}
}

// Ensure claims at once: what comes behind it happens for no duplicate, what comes before it does.
func TestLazyEnsure(t *testing.T) {
	t.Parallel()
	f, id := newFixture(t), outbox.NewID()
	before, after := 0, 0
	for range 3 {
		msg, _ := deliver(t, id)
		_, err := f.lazy(claim.Config{})(lazyHandler(func(ctx context.Context) error {
			before++
			if err := claim.Ensure(ctx); err != nil {
				return fmt.Errorf("ensure: %w", err)
			}
			after++
			return pgtx.Queue(ctx, `insert into `+f.schema+`.effect values ($1)`, id)
		}))(msg)
		require.NoError(t, err)
		assert.False(t, nacked(msg))
	}
	assert.Equal(t, []int{3, 1}, []int{before, after})
	assert.Equal(t, map[string]int{id: 1}, f.effects())
	require.NoError(t, claim.Ensure(t.Context()), "without a claim")
	require.NoError(t, f.store.Do(t.Context(), claim.Key{Consumer: "labour/notify", EventID: "2"}, claim.Ensure), "in one that is not lazy")
}

// After a process was killed an event is claimed before its handler begins, which may be what kills.
func TestLazyClaimAfterADeath(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.killed()
	c := f.claim(claim.Config{Lazy: true, Logger: silent})
	f.running(c)
	require.True(t, suspicious(c))
	end := f.holding(claim.Key{Consumer: "labour/notify", EventID: "1"})
	began := 0
	h := c.Middleware(lazyHandler(func(context.Context) error { began++; return nil }))
	msg, _ := deliver(t, "1")
	_, err := h(msg)
	require.NoError(t, err)
	assert.True(t, nacked(msg))
	require.NoError(t, end(nil))
	msg, _ = deliver(t, "1")
	_, err = h(msg)
	require.NoError(t, err)
	assert.Zero(t, began)
	msg, _ = deliver(t, "2")
	_, err = h(msg)
	require.NoError(t, err)
	assert.Equal(t, 1, began)
	assert.Zero(t, f.count("claim_start"))
}

// A role whose transactions are not read committed by default: lazy claims begin theirs as the others do.
func TestLazyClaimUnderAnotherIsolationLevel(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"read committed", "repeatable read", "serializable"} {
		t.Run(level, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			pool, trips := devtest.CountedPool(t, func(cfg *pgxpool.Config) {
				cfg.ConnConfig.RuntimeParams["default_transaction_isolation"] = level
			})
			other := &fixture{t: t, pool: pool, schema: f.schema, store: claim.NewPostgresStore(pool, claim.Schema(f.schema))}
			h := other.lazy(claim.Config{})(lazyHandler(func(ctx context.Context) error {
				return pgtx.Queue(ctx, `insert into `+f.schema+`.effect select current_setting('transaction_isolation')`)
			}))
			handle := func() {
				msg, _ := deliver(t, outbox.NewID())
				_, err := h(msg)
				require.NoError(t, err)
				assert.False(t, nacked(msg))
			}
			n := 0
			assert.Equal(t, 1, trips.Of(func() { n++; handle() }))
			assert.Equal(t, map[string]int{"read committed": n}, f.effects())
		})
	}
}

// What is queued may need a BEGIN, may end the transaction without one, or may fail only at COMMIT.
func TestLazyClaimOfWhatNeedsATransaction(t *testing.T) {
	t.Parallel()
	f := newLonelyFixture(t) // groups of other tests see the deferrable constraints of theirs
	f.exec(`create procedure ` + f.schema + `.commits() language plpgsql as $$ begin insert into ` + f.schema + `.effect values ('called'); commit; end $$`)
	f.exec(`create table ` + f.schema + `.late (id int unique deferrable initially deferred)`)
	effect := `insert into ` + f.schema + `.effect values ('queued')`
	handle := func(id string, statements ...string) error {
		msg, _ := deliver(t, id)
		_, err := f.lazy(claim.Config{})(lazyHandler(func(ctx context.Context) error {
			for _, sql := range statements {
				if err := pgtx.Queue(ctx, sql); err != nil {
					return err
				}
			}
			return nil
		}))(msg)
		return err
	}
	require.NoError(t, handle("1", `lock table `+f.schema+`.effect`, `set local search_path = pg_catalog`, effect))
	assert.Equal(t, map[string]int{"queued": 1}, f.effects())
	require.ErrorContains(t, handle("2", effect, `call `+f.schema+`.commits()`), "invalid transaction termination")
	assert.Equal(t, map[string]int{"queued": 1}, f.effects(), "nothing is committed without the record")
	err := handle("3", effect, `insert into `+f.schema+`.late values (1), (1)`)
	require.ErrorContains(t, err, "late_id_key")
	require.NotErrorIs(t, err, pgtx.ErrOutcomeUnknown)
	assert.Equal(t, map[string]int{"queued": 1}, f.effects())
	assert.Equal(t, map[string]string{"2": "nacked", "3": "nacked"}, f.states())
	assert.Equal(t, 1, f.count("processed"))
}

// The claim's tables are missing: nothing is executed without them, and nobody is to blame.
func TestLazyClaimWithoutItsTables(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	h := f.lazy(claim.Config{})(lazyHandler(func(ctx context.Context) error {
		tx, _ := pgtx.From(ctx)
		_, _ = tx.Conn().Exec(ctx, `insert into `+f.schema+`.effect values ('x')`)
		return nil
	}))
	msg, _ := deliver(t, "1")
	_, err := h(msg)
	require.NoError(t, err)
	f.exec(`truncate ` + f.schema + `.effect`)
	f.exec(`alter table ` + f.schema + `.claim_key rename to gone`)
	for _, pool := range []bool{false, true} { // with statements that are prepared, and without
		if pool {
			f.pool.Reset()
		}
		msg, d := deliver(t, outbox.NewID())
		_, err := h(msg)
		require.ErrorContains(t, err, "run claim.Migrate first")
		assert.Positive(t, d.retryAfter)
	}
	assert.Empty(t, f.effects())
	assert.Empty(t, f.failed())
}

func TestLazyConfig(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, err := claim.New(f.store, claim.Config{Lazy: true, Group: 10})
	require.ErrorContains(t, err, "Config.Lazy is true and Config.Group is 10")
	_, err = claim.New(front{f.store}, claim.Config{Lazy: true})
	require.ErrorContains(t, err, "Config.Lazy is true")
	require.ErrorContains(t, err, "want the store of claim.NewPostgresStore itself")
}
