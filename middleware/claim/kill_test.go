package claim_test

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
)

const (
	victimProcess = "MILLRACE_TEST_VICTIM" // the schema: makes this test binary a consumer that kills itself
	victimPoint   = "MILLRACE_TEST_VICTIM_POINT"
	victimMode    = "MILLRACE_TEST_VICTIM_MODE"
	victimAttempt = "MILLRACE_TEST_VICTIM_ATTEMPT" // of the event "2": "first", or "second", which comes from the table
)

// killed is where a process dies, and how.
type killed struct {
	point string
	armed atomic.Bool // the event that it dies of is in hand
}

func (k *killed) at(point string) {
	if k.point != point || !k.armed.Load() {
		return
	}
	self := os.Process{Pid: os.Getpid()}
	_ = self.Kill()
	select {}
}

type committing struct{}

// TraceBatchStart sees the commit, which the follow-up event travels with.
func (k *killed) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	last := data.Batch.QueuedQueries[len(data.Batch.QueuedQueries)-1]
	if last.SQL != "commit" {
		return ctx
	}
	k.at("before commit")
	return context.WithValue(ctx, committing{}, true)
}

func (k *killed) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

func (k *killed) TraceBatchEnd(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchEndData) {
	if ctx.Value(committing{}) != nil && data.Err == nil {
		k.at("after commit")
	}
}

func (k *killed) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}
func (k *killed) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func runVictimProcess() error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	schema := os.Getenv(victimProcess)
	k := &killed{point: os.Getenv(victimPoint)}
	cfg, err := pgxpool.ParseConfig(os.Getenv(consumerDSN))
	if err != nil {
		return err
	}
	cfg.ConnConfig.Tracer = k
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer pool.Close()
	cfgOfClaim := modes[os.Getenv(victimMode)]
	cfgOfClaim.Service, cfgOfClaim.Logger, cfgOfClaim.Backoff = "labour", silent, func(int) time.Duration { return time.Millisecond }
	c, err := claim.New(claim.NewPostgresStore(pool, claim.Schema(schema)), cfgOfClaim)
	if err != nil {
		return err
	}
	broker, err := newTable(ctx, pool, schema)
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	second := os.Getenv(victimAttempt) == "second"
	var alone sync.Mutex // so that it dies of one event
	router.AddMiddleware(func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			alone.Lock()
			defer alone.Unlock()
			out, err := h(msg)
			k.at("before ack")
			return out, err
		}
	}, c.Middleware)
	router.AddHandler("consumer", "events", c.Subscriber("consumer", broker), "follow-ups", broken{}, func(msg *message.Message) ([]*message.Message, error) {
		fromTable := transport.DeliveryFrom(msg.Context()).Attempt() > 1
		k.armed.Store(msg.UUID == "2" && fromTable == second)
		k.at("claimed")
		tx, _ := pgtx.From(msg.Context())
		if _, err := tx.Exec(msg.Context(), `insert into `+schema+`.effect values ($1)`, msg.UUID); err != nil {
			return nil, err
		}
		k.at("handled")
		if second && !fromTable {
			return nil, errOops
		}
		return []*message.Message{message.NewMessage("after "+msg.UUID, nil)}, nil
	})
	var ending sync.WaitGroup
	ending.Go(func() {
		defer cancel()
		broker.left.Wait()
		look := time.NewTicker(10 * time.Millisecond)
		defer look.Stop()
		for left := 1; left > 0 && err == nil; <-look.C {
			err = pool.QueryRow(ctx, `select count(*) from `+schema+`.claim_failed`).Scan(&left)
		}
	})
	rerr := router.Run(ctx)
	ending.Wait()
	if err == nil {
		err = rerr
	}
	return err
}

// Wherever a process is killed, another one comes to one effect and one follow-up for each event.
func TestKilledProcesses(t *testing.T) {
	t.Parallel()
	for _, attempt := range []string{"first", "second"} {
		for _, point := range []string{"claimed", "handled", "before commit", "after commit", "before ack"} {
			for mode := range modesOfCase(attempt + point) {
				t.Run(mode+", "+attempt+" attempt "+point, func(t *testing.T) { killedProcess(t, mode, attempt, point) })
			}
		}
	}
}

func killedProcess(t *testing.T, mode, attempt, point string) {
	t.Parallel()
	p := newProcesses(t, []string{"1", "2", "3"})
	start := func(point string) *exec.Cmd {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), victimProcess+"="+p.schema, victimPoint+"="+point, victimAttempt+"="+attempt, victimMode+"="+mode,
			consumerDSN+"="+devtest.Pool(t).Config().ConnString())
		cmd.Stderr = t.Output()
		require.NoError(t, cmd.Start())
		t.Cleanup(func() { _ = cmd.Process.Kill() }) // where the test has failed
		_ = cmd.Wait()
		return cmd
	}
	cmd := start(point)
	require.Equal(t, "signal: killed", cmd.ProcessState.String())
	done := slices.Contains([]string{"after commit", "before ack"}, point)
	assert.Equal(t, done, p.effects()["2"] == 1)
	p.exec(`update ` + p.schema + `.claim_failed set due_at = now()`) // the lease of the one that was killed

	cmd = start("")
	require.Zero(t, cmd.ProcessState.ExitCode())
	assert.Equal(t, map[string]int{"1": 1, "2": 1, "3": 1}, p.effects())
	assert.Equal(t, 3, p.count("outbox"))
	assert.Equal(t, 1, p.count("outbox where event_id = 'after 2'"))
	assert.Empty(t, p.failed())
}
