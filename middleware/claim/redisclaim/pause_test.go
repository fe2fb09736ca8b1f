package redisclaim_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/claim/claimtest"
	"github.com/millrace-go/millrace/middleware/claim/redisclaim"
	"github.com/millrace-go/millrace/pgtx"
)

// childVariable makes this test binary a holder of the event's lock: address and prefix, and for one with a record its DSN
// and schema.
const childVariable = "REDISCLAIM_TEST_CHILD"

const childTTL = 500 * time.Millisecond

// child says "running" in its handler, which ends as a line on its standard input says, however its context is, and then
// says how Do ended.
func child() {
	args := strings.Fields(os.Getenv(childVariable))
	cfg := redisclaim.Config{TTL: childTTL, Prefix: args[1]}
	if len(args) > 2 {
		pool, err := pgxpool.New(context.Background(), args[2])
		if err != nil {
			panic(err)
		}
		defer pool.Close()
		cfg.Record = claim.NewPostgresStore(pool, claim.Schema(args[3]))
	}
	client := redis.NewClient(&redis.Options{Addr: args[0], ContextTimeoutEnabled: true})
	defer client.Close()
	store, err := redisclaim.New(client, cfg)
	if err != nil {
		panic(err)
	}
	err = store.Do(context.Background(), event, func(ctx context.Context) error {
		fmt.Println("running")
		line, err := bufio.NewReader(os.Stdin).ReadString('\n')
		if err != nil {
			return err
		}
		if line != "complete\n" {
			return errOops
		}
		if tx, ok := pgtx.From(ctx); ok {
			_, err = tx.Exec(ctx, `insert into `+args[3]+`.claimtest_effect values ($1)`, event.EventID)
		}
		return err
	})
	// A handler that failed may have been quicker than the clock by which the lock was lost.
	lost := errors.Is(err, redisclaim.ErrLockLost) && !errors.Is(err, errOops)
	fmt.Printf("completed=%t lost=%t\n", err == nil, lost)
}

type holder struct {
	t       *testing.T
	process *os.Process
	in      io.Writer
	out     *bufio.Reader
}

// startHolder returns a process whose handler runs.
func startHolder(t *testing.T, args ...string) *holder {
	t.Helper()
	command := exec.CommandContext(t.Context(), os.Args[0])
	command.Env = append(os.Environ(), childVariable+"="+strings.Join(args, " "))
	command.Stderr = os.Stderr
	in, err := command.StdinPipe()
	require.NoError(t, err)
	out, err := command.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, command.Start())
	t.Cleanup(func() {
		_ = command.Process.Kill() // it has ended, unless the test failed
		_ = command.Wait()
	})
	h := &holder{t, command.Process, in, bufio.NewReader(out)}
	require.Equal(t, "running\n", h.line())
	return h
}

func (h *holder) line() string {
	h.t.Helper()
	line, err := h.out.ReadString('\n')
	require.NoError(h.t, err)
	return line
}

func (h *holder) signal(s syscall.Signal) {
	h.t.Helper()
	require.NoError(h.t, h.process.Signal(s))
}

// end makes the handler return and tells how Do ended.
func (h *holder) end(how string) string {
	h.t.Helper()
	_, err := io.WriteString(h.in, how+"\n")
	require.NoError(h.t, err)
	return h.line()
}

// A process that is paused in its handler for longer than its lock lasts finds the event in other hands: it can neither
// complete nor release it.
func TestPausedHolder(t *testing.T) {
	t.Parallel()
	addr := devtest.Real(t, devstack.Redis).RedisAddr()
	client := devtest.RedisOn(t, addr)
	for how, want := range map[string]string{
		"complete": "completed=false lost=true\n", // Redis refused it
		"fail":     "completed=false lost=false\n",
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			prefix := devtest.Topic(t)
			key := prefix + ":claim:6:notify:1"
			first := startHolder(t, addr, prefix)
			store := newStore(t, client, redisclaim.Config{TTL: childTTL, Prefix: prefix})
			require.ErrorIs(t, store.Do(t.Context(), event, never), claim.ErrContended)
			first.signal(syscall.SIGSTOP)
			require.Eventually(t, func() bool { return client.Exists(t.Context(), key).Val() == 0 }, waitFor, tick)

			ctx, endSecond := holding(t, store, event)
			before := client.Get(t.Context(), key).Val()
			require.Contains(t, before, "held:")
			first.signal(syscall.SIGCONT)
			assert.Equal(t, want, first.end(how))
			assert.Equal(t, before, client.Get(t.Context(), key).Val(), "the second's lock")
			require.ErrorIs(t, store.Do(t.Context(), event, never), claim.ErrContended)
			require.NoError(t, ctx.Err())
			require.NoError(t, endSecond(nil))
			require.ErrorIs(t, store.Do(t.Context(), event, never), claim.ErrCompleted)
		})
	}
}

// The control: a holder that was not paused completes and releases.
func TestHolderThatWasNotPaused(t *testing.T) {
	t.Parallel()
	addr := devtest.Start(t, devstack.Redis).RedisAddr()
	prefix := devtest.Topic(t)
	store := newStore(t, devtest.Redis(t), redisclaim.Config{Prefix: prefix})
	assert.Equal(t, "completed=false lost=false\n", startHolder(t, addr, prefix).end("fail"))
	assert.Equal(t, "completed=true lost=false\n", startHolder(t, addr, prefix).end("complete"))
	require.ErrorIs(t, store.Do(t.Context(), event, never), claim.ErrCompleted)
}

// In front of a record the paused holder's transaction holds the event, and its effect is the only one.
func TestPausedHolderWithARecord(t *testing.T) {
	t.Parallel()
	addr := devtest.Real(t, devstack.Redis).RedisAddr()
	client, prefix, schema := devtest.RedisOn(t, addr), devtest.Topic(t), devtest.Schema(t)
	f := claimtest.Postgres(t, devtest.Pool(t), schema)
	first := startHolder(t, addr, prefix, devtest.Start(t, devstack.Postgres).PostgresDSN(), schema)
	first.signal(syscall.SIGSTOP)
	require.Eventually(t, func() bool { return client.Exists(t.Context(), prefix+":claim:6:notify:1").Val() == 0 }, waitFor, tick)
	store := newStore(t, client, redisclaim.Config{Prefix: prefix, Record: f.Store})
	require.ErrorIs(t, store.Do(t.Context(), event, never), claim.ErrContended)
	first.signal(syscall.SIGCONT)
	assert.Equal(t, "completed=true lost=false\n", first.end("complete"))
	require.ErrorIs(t, store.Do(t.Context(), event, never), claim.ErrCompleted)
	assert.Equal(t, map[string]int{event.EventID: 1}, f.Effects())
}
