package claim_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
)

// A handler uses another database too. What goes wrong there was taken for an outage of the claim's database: the event was
// retried for ever, without an attempt.
func TestForeignOutage(t *testing.T) {
	t.Parallel()
	devtest.Long(t)
	raise := func(db pgtx.DB, code string) func(ctx context.Context) error {
		return func(ctx context.Context) error {
			err := pgtx.Run(pgtx.Detached(ctx), db, func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, `do $$ begin raise 'no' using errcode = '`+code+`'; end $$`)
				return err
			})
			return fmt.Errorf("update the other database: %w", err)
		}
	}
	own := func(code string) func(ctx context.Context) error {
		return func(ctx context.Context) error { return raising(code)(nil, ctx) }
	}
	afterSavepoint := func(fail func(ctx context.Context) error) func(f *fixture, _ *pgxpool.Pool) func(ctx context.Context) error {
		return func(f *fixture, _ *pgxpool.Pool) func(context.Context) error {
			return func(ctx context.Context) error {
				err := pgtx.Run(ctx, f.pool, func(ctx context.Context, _ pgx.Tx) error { return own("23505")(ctx) })
				require.ErrorContains(t, err, "23505")
				return fail(ctx)
			}
		}
	}
	nobody, err := pgxpool.New(t.Context(), "postgres://nobody@127.0.0.1:1/none?connect_timeout=1")
	require.NoError(t, err)
	t.Cleanup(nobody.Close)
	for name, c := range map[string]struct {
		handler func(f *fixture, other *pgxpool.Pool) func(ctx context.Context) error
		counted bool
	}{
		"out of reach":  {func(*fixture, *pgxpool.Pool) func(context.Context) error { return raise(nobody, "") }, true},
		"read-only":     {func(_ *fixture, o *pgxpool.Pool) func(context.Context) error { return raise(o, "25006") }, true},
		"a deadlock":    {func(_ *fixture, o *pgxpool.Pool) func(context.Context) error { return raise(o, "40P01") }, true},
		"shutting down": {func(_ *fixture, o *pgxpool.Pool) func(context.Context) error { return raise(o, "57P03") }, true},
		"of another kind": {func(*fixture, *pgxpool.Pool) func(context.Context) error {
			return func(context.Context) error { return &pgconn.PgError{Code: "08006"} }
		}, true},
		"out of reach, after a savepoint": {afterSavepoint(raise(nobody, "")), true},
		"shutting down, after a savepoint": {func(f *fixture, o *pgxpool.Pool) func(context.Context) error {
			return afterSavepoint(raise(o, "57P03"))(f, o)
		}, true},
		"our own: another server is out of reach": {func(*fixture, *pgxpool.Pool) func(context.Context) error { return own("08001") }, true},
		"our own: an argument too few": {func(*fixture, *pgxpool.Pool) func(context.Context) error {
			return func(ctx context.Context) error {
				tx, _ := pgtx.From(ctx)
				_, err := tx.Exec(ctx, `select $1::text, $2::text`, pgx.QueryExecModeExec, "one")
				return err
			}
		}, true},
		"our own: a deadlock":    {func(*fixture, *pgxpool.Pool) func(context.Context) error { return own("40P01") }, false},
		"our own: out of memory": {func(*fixture, *pgxpool.Pool) func(context.Context) error { return own("53200") }, false},
		"our own, in a savepoint": {func(f *fixture, _ *pgxpool.Pool) func(context.Context) error {
			return func(ctx context.Context) error {
				return pgtx.Run(ctx, f.pool, func(ctx context.Context, _ pgx.Tx) error { return own("40001")(ctx) })
			}
		}, false},
		"our own: lost": {func(f *fixture, _ *pgxpool.Pool) func(context.Context) error {
			return func(ctx context.Context) error {
				f.killConnection(ctx)
				return own("22000")(ctx)
			}
		}, false},
	} {
		for mode, cfg := range modesOfCase(name) {
			t.Run(name+"/"+mode, func(t *testing.T) {
				t.Parallel()
				f := newFixture(t)
				h := c.handler(f, devtest.Pool(t))
				cfg.Logger, cfg.MaxAttempts = silent, 1
				guard := f.middleware(cfg)
				msg, _ := deliver(t, outbox.NewID())
				_, err := guard(func(msg *message.Message) ([]*message.Message, error) { return nil, h(msg.Context()) })(msg)
				if !c.counted {
					require.Error(t, err, "the broker keeps the event")
					assert.Empty(t, f.failed())
					return
				}
				require.NoError(t, err)
				require.Len(t, f.failed(), 1)
				assert.Equal(t, "dead", f.failed()[0].State)
			})
		}
	}
}

// A handler marks the outage of another database as permanent, after a statement of its own has failed and was rolled back. The mark
// had no effect, because the error was taken for an outage of the claim's database.
func TestForeignOutageIsPermanent(t *testing.T) {
	perMode(t, func(t *testing.T, f *fixture) {
		guard := f.middleware(claim.Config{Logger: silent, MaxAttempts: 10})
		msg, _ := deliver(t, outbox.NewID())
		_, err := guard(func(msg *message.Message) ([]*message.Message, error) {
			err := pgtx.Run(msg.Context(), f.pool, func(ctx context.Context, _ pgx.Tx) error { return raising("23505")(f, ctx) })
			require.Error(t, err)
			return nil, claim.Permanent(&pgconn.PgError{Code: "57P03", Message: "the other database starts"})
		})(msg)
		require.NoError(t, err)
		require.Len(t, f.failed(), 1)
		assert.Equal(t, []string{"dead", "permanent"}, []string{f.failed()[0].State, f.failed()[0].Reason})
	})
}

// A query that crashes its backend loses the connection each time it is tried, and one that needs more locks than the server has fails
// each time. That is an outage only until other events have committed meanwhile. The second kind was retried for ever, and so were a queued
// statement that ends its session and, in a group, a COMMIT without an answer.
func TestOutageOfOneEvent(t *testing.T) {
	t.Parallel()
	devtest.Long(t)
	for name, outage := range map[string]struct {
		fail func(f *fixture, ctx context.Context) error
		text string
	}{
		"lost": {func(f *fixture, ctx context.Context) error {
			f.killConnection(ctx)
			return errOops
		}, "the connection to the database was lost 7 times in a row"},
		"out of memory": {raising("53200"), "the database failed 7 times in a row"},
		"read-only":     {raising("25006"), "the database failed 7 times in a row"},
		"a file":        {raising("58P01"), "the database failed 7 times in a row"},
		"at COMMIT": {func(_ *fixture, ctx context.Context) error {
			return pgtx.Queue(ctx, "select pg_terminate_backend(pg_backend_pid()), pg_sleep(1)")
		}, "the database failed 7 times in a row"},
		"in doubt": {func(_ *fixture, ctx context.Context) error {
			return pgtx.Queue(ctx, "select $1::text", cutMarker)
		}, "the connection to the database was lost 7 times in a row"},
	} {
		for beside, others := range map[string]bool{"others commit": true, "nobody commits": false} {
			inModes(t, name+" "+beside, func(t *testing.T, f *fixture) {
				id := outbox.NewID()
				if name == "in doubt" { // in a database with deferrable constraints, a group sends queued statements before COMMIT
					mode := f.mode
					f = newLonelyFixture(t)
					f.mode = mode
				}
				f.pool = devtest.PoolOn(t, f.pool.Config().ConnString(), func(c *pgxpool.Config) { c.ConnConfig.DialFunc = dialCut })
				f.store = claim.NewPostgresStore(f.pool, claim.Schema(f.schema))
				guard := f.middleware(claim.Config{Logger: silent, MaxAttempts: 2})
				deliveries := 0 // a group calls the handler again, alone
				for began := time.Now(); deliveries < 10; {
					require.Less(t, time.Since(began), 2*time.Minute, "the sessions' locks are not free")
					msg, _ := deliver(t, id)
					_, err := guard(func(msg *message.Message) ([]*message.Message, error) { return nil, outage.fail(f, msg.Context()) })(msg)
					if nacked(msg) { // contended: the server has not ended the session yet
						time.Sleep(5 * time.Millisecond)
						continue
					}
					deliveries++
					if err == nil {
						break
					}
					if others {
						msg, _ := deliver(t, outbox.NewID())
						_, err := guard(f.handler)(msg)
						require.NoError(t, err)
					}
				}
				if !others {
					assert.Equal(t, 10, deliveries)
					assert.Empty(t, f.failed())
					return
				}
				assert.Equal(t, 7, deliveries, "five for nothing, and two attempts")
				require.Len(t, f.failed(), 1)
				row := f.failed()[0]
				assert.Equal(t, []string{"dead", "attempts"}, []string{row.State, row.Reason})
				assert.Contains(t, row.History, outage.text)
			})
		}
	}
}

// cutMarker is a parameter that cuts a connection of dialCut: what is written with it is lost, and so are all answers.
const cutMarker = "cut the connection"

type cutConn struct{ net.Conn }

func dialCut(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	return cutConn{conn}, err
}

func (c cutConn) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte(cutMarker)) {
		return len(b), c.Close()
	}
	return c.Conn.Write(b)
}

// raising fails with that code in the handler's own transaction.
func raising(code string) func(f *fixture, ctx context.Context) error {
	return func(_ *fixture, ctx context.Context) error {
		tx, _ := pgtx.From(ctx)
		_, err := tx.Exec(ctx, `do $$ begin raise 'no' using errcode = '`+code+`'; end $$`)
		return err
	}
}

// A handler that ends its goroutine, as a failed assertion of testing does, left its message neither acked nor nacked in a group.
func TestGoexit(t *testing.T) {
	t.Parallel()
	for mode, cfg := range modes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			cfg.Logger, cfg.MaxAttempts = silent, 1
			guard := f.middleware(cfg)
			msg, _ := deliver(t, outbox.NewID())
			ended := make(chan error, 1)
			go func() {
				defer close(ended)
				_, err := guard(func(*message.Message) ([]*message.Message, error) {
					runtime.Goexit()
					return nil, nil
				})(msg)
				ended <- err
			}()
			err, returned := <-ended
			require.True(t, returned, "the middleware returns, so that the router acks or nacks")
			require.NoError(t, err)
			require.Len(t, f.failed(), 1)
			assert.Contains(t, f.failed()[0].Error, "runtime.Goexit")
		})
	}

	t.Run("control", func(t *testing.T) { // the store alone, without the middleware
		t.Parallel()
		f := newFixture(t)
		ended := make(chan error, 1)
		go func() {
			defer close(ended)
			ended <- f.store.Do(context.Background(), claim.Key{Consumer: "labour/notify", EventID: outbox.NewID()}, func(context.Context) error {
				runtime.Goexit()
				return nil
			})
		}()
		_, returned := <-ended
		assert.False(t, returned, "nobody acks or nacks")
		assert.Empty(t, f.failed(), "no attempt is counted")
	})
}

// A query crashes its backend, and with it the server: while the server recovers, no attempt could be recorded, so the event came back
// for ever and crashed the server each time.
func TestEventThatCrashesItsServer(t *testing.T) {
	t.Parallel()
	pool := devtest.PoolOn(t, devtest.Postgres(t, devstack.ServerConfig{}).DSN())
	_, err := pool.Exec(t.Context(), `create schema crashed`)
	require.NoError(t, err)
	f := prepare(&fixture{t: t, pool: pool, schema: "crashed"})
	guard := f.middleware(claim.Config{Logger: silent, MaxAttempts: 1})
	id, crashes := outbox.NewID(), 0
	for settled := false; !settled; {
		msg, _ := deliver(t, id)
		_, err := guard(func(msg *message.Message) ([]*message.Message, error) {
			tx, _ := pgtx.From(msg.Context())
			crashes++
			if err := syscall.Kill(int(tx.Conn().PgConn().PID()), syscall.SIGSEGV); err != nil {
				return nil, claim.Permanent(err)
			}
			_, err := tx.Exec(msg.Context(), `select pg_sleep(60)`)
			return nil, err
		})(msg)
		settled = err == nil && !nacked(msg) // contended: the session before is not gone yet
		require.Less(t, crashes, 12)
		require.Eventually(t, func() bool {
			msg, _ := deliver(t, outbox.NewID())
			_, err := guard(f.handler)(msg)
			return err == nil
		}, time.Minute, 50*time.Millisecond)
	}
	assert.Equal(t, 6, crashes, "five for nothing, and one attempt")
	assert.Equal(t, []string{"dead", "attempts"}, []string{f.failed()[0].State, f.failed()[0].Reason})
}
