package claim_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"sync"
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
)

const (
	consumerProcess = "MILLRACE_TEST_CONSUMER" // the schema: makes this test binary a consumer
	consumerDSN     = "MILLRACE_TEST_CONSUMER_DSN"
	consumerMode    = "MILLRACE_TEST_CONSUMER_MODE"
	concurrency     = 20
	exitOfHandler   = 3
)

// table is a broker that processes come and go at: whatever is not acked is delivered again, to each new process and
// after each nack, so many at once.
type table struct {
	pool   *pgxpool.Pool
	schema string
	ids    chan string
	left   sync.WaitGroup
}

func newTable(ctx context.Context, pool *pgxpool.Pool, schema string) (*table, error) {
	rows, err := pool.Query(ctx, `select event_id from `+schema+`.broker where not acked order by position`)
	if err != nil {
		return nil, err
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	b := &table{pool: pool, schema: schema, ids: make(chan string, len(ids))}
	for _, id := range ids {
		b.left.Add(1)
		b.ids <- id
	}
	close(b.ids)
	return b, err
}

func (b *table) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	out := make(chan *message.Message)
	var workers sync.WaitGroup
	for range concurrency {
		workers.Go(func() {
			for id := range b.ids {
				for !b.deliver(ctx, id, out) {
					if ctx.Err() != nil {
						return
					}
				}
				b.left.Done()
			}
		})
	}
	go func() {
		workers.Wait()
		<-ctx.Done() // the router takes a closed channel for the end
		close(out)
	}()
	return out, nil
}

// deliver reports whether the event was acked.
func (b *table) deliver(ctx context.Context, id string, out chan<- *message.Message) bool {
	msg := message.NewMessageWithContext(ctx, id, nil)
	select {
	case out <- msg:
	case <-ctx.Done():
		return false
	}
	select {
	case <-msg.Acked():
	case <-msg.Nacked():
		return false
	case <-ctx.Done():
		return false
	}
	_, err := b.pool.Exec(ctx, `update `+b.schema+`.broker set acked = true where event_id = $1`, id)
	return err == nil
}

func (b *table) Close() error { return nil }

// processModes are the ways in which a consumer process claims.
var processModes = map[string]claim.Config{
	"eager": {}, "lazy": {Lazy: true}, "grouped": {Group: 8}, "deferred": {Deferred: true}, "grouped and deferred": {Group: 8, Deferred: true},
	"lazy and deferred": {Lazy: true, Deferred: true},
}

// runConsumerProcess is the process: it handles what the broker has, and ends cleanly when all of it is acked.
func runConsumerProcess() error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	schema := os.Getenv(consumerProcess)
	cfg, err := pgxpool.ParseConfig(os.Getenv(consumerDSN))
	if err != nil {
		return err
	}
	cfg.MaxConns = concurrency / 2
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer pool.Close()
	mode := processModes[os.Getenv(consumerMode)]
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	mode.Service, mode.Logger = "labour", logger
	c, err := claim.New(claim.NewPostgresStore(pool, claim.Schema(schema)), mode)
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
	router.AddMiddleware(c.Middleware)
	router.AddConsumerHandler("consumer", "events", broker, func(msg *message.Message) error {
		tx, _ := pgtx.From(msg.Context())
		_, err := tx.Exec(msg.Context(), `insert into `+schema+`.effect select $1 from pg_sleep(0.02)`, msg.UUID)
		if msg.UUID == "killer" {
			os.Exit(exitOfHandler)
		}
		return err
	})
	var runs sync.WaitGroup
	var runErr error
	runs.Go(func() { runErr = c.Run(ctx) })
	runs.Go(func() {
		broker.left.Wait()
		cancel()
	})
	err = router.Run(ctx)
	cancel()
	runs.Wait()
	if err == nil {
		err = runErr
	}
	return err
}

// processes starts consumers one after another, as a supervisor does.
type processes struct {
	*fixture
	mode string // of processModes
}

func newProcesses(t *testing.T, events []string) *processes {
	p := &processes{fixture: newFixture(t)}
	_, err := p.pool.Exec(t.Context(), `create table `+p.schema+`.broker (position serial, event_id text, acked boolean not null default false)`)
	require.NoError(t, err)
	_, err = p.pool.Exec(t.Context(), `insert into `+p.schema+`.broker (event_id) select unnest($1::text[])`, events)
	require.NoError(t, err)
	return p
}

func (p *processes) start() *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), consumerProcess+"="+p.schema, consumerDSN+"="+devtest.Pool(p.t).Config().ConnString(), consumerMode+"="+p.mode)
	cmd.Stderr = p.t.Output()
	require.NoError(p.t, cmd.Start())
	p.t.Cleanup(func() { _ = cmd.Process.Kill() }) // where the test has failed
	return cmd
}

func events(n int) (ids []string) {
	for i := range n {
		ids = append(ids, fmt.Sprint("event-", i))
	}
	return ids
}

// A handler exits on one event, among others that are in hand with it. After so many starts the event is a dead letter,
// and the others were handled once.
func TestEventThatKillsItsProcess(t *testing.T) {
	t.Parallel()
	for mode := range modes {
		t.Run(mode, func(t *testing.T) { eventThatKillsItsProcess(t, mode) })
	}
}

func eventThatKillsItsProcess(t *testing.T, mode string) {
	t.Parallel()
	ids := events(60)
	p := newProcesses(t, append(ids[:7:7], append([]string{"killer"}, ids[7:]...)...))
	p.mode = mode
	deaths := 0
	for ; deaths < 10; deaths++ {
		cmd := p.start()
		_ = cmd.Wait()
		code := cmd.ProcessState.ExitCode()
		if code == 0 {
			break
		}
		require.Equal(t, exitOfHandler, code)
		assert.Zero(t, p.count("claim_failed"), "nobody is charged before the killer is known")
	}
	// One death before anything was noted, one when it was noted among others, three alone. A process that dies before it is registered
	// is one more, and leaves no row.
	registered := p.count("claim_run")
	assert.Equal(t, 5, registered, "the last one has ended cleanly")
	assert.LessOrEqual(t, deaths, registered+1)
	effects := p.effects()
	assert.Len(t, effects, len(ids))
	assert.Zero(t, doubled(effects))
	assert.NotContains(t, effects, "killer")
	assert.Equal(t, 1, p.count("claim_failed"))
	assert.Equal(t, 1, p.count("claim_failed where event_id = 'killer' and state = 'dead' and reason = 'killed'"))
	// Not none: the server may still carry out what a process sent before it died.
	assert.Zero(t, p.count("claim_start where starts > 1"))
	assert.Zero(t, p.count("broker where not acked"))
}

// Somebody else kills processes, whatever they do: no event is charged for it.
func TestProcessesThatSomebodyElseKills(t *testing.T) {
	t.Parallel()
	for mode := range processModes {
		t.Run(mode, func(t *testing.T) { processesThatSomebodyElseKills(t, mode) })
	}
}

func processesThatSomebodyElseKills(t *testing.T, mode string) {
	t.Parallel()
	ids := events(devtest.Storm(200, 100))
	p := newProcesses(t, ids)
	p.mode = mode
	for range devtest.Storm(6, 3) {
		before := p.count("effect")
		cmd := p.start()
		assert.Eventually(t, func() bool { return p.count("effect") >= before+10 }, time.Minute, time.Millisecond)
		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait()
	}
	assert.Positive(t, p.count("claim_start"), "events were in hand")
	cmd := p.start()
	require.NoError(t, cmd.Wait())
	effects := p.effects()
	assert.Len(t, effects, len(ids))
	assert.Zero(t, doubled(effects))
	for _, table := range []string{"claim_failed", "broker where not acked", "claim_start where starts > 1"} {
		assert.Zero(t, p.count(table), table)
	}
}
