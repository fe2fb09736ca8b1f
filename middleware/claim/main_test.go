package claim_test

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"hash/crc32"
	"maps"
	"os"
	"path"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
)

func TestMain(m *testing.M) {
	for name, process := range map[string]func() error{consumerProcess: runConsumerProcess, victimProcess: runVictimProcess} {
		if os.Getenv(name) == "" {
			continue
		}
		if err := process(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if err := flag.Set("rapid.checks", "40"); err != nil { // in each of four modes, and each with a database
		panic(err)
	}
	devtest.Main(m)
}

// fixture is a claim store in a schema of its own, with a table that handlers write to.
type fixture struct {
	t      testing.TB
	pool   *pgxpool.Pool
	schema string
	store  *claim.PostgresStore
	mode   claim.Config // what the Claims that it makes are like
}

// modes are the ways to claim.
var modes = map[string]claim.Config{"eager": {}, "lazy": {Lazy: true}, "grouped": {Group: 4}, "deferred": {Deferred: true}}

// perMode runs the test in each mode, with a fixture whose Claims are of that mode.
func perMode(t *testing.T, test func(t *testing.T, f *fixture)) {
	t.Parallel()
	inModes(t, "", test)
}

// modesOfCase returns the modes in which one case of many is run: all where storms are, else one. Which one differs from case to case, so
// that together they are run in each. A test without cases has no name.
func modesOfCase(name string) map[string]claim.Config {
	if name == "" {
		return modes
	}
	all, some := slices.Sorted(maps.Keys(modes)), map[string]claim.Config{}
	first := int(crc32.ChecksumIEEE([]byte(name)) % uint32(len(all)))
	for i := range devtest.Storm(len(all), 1) {
		mode := all[(first+i)%len(all)]
		some[mode] = modes[mode]
	}
	return some
}

// inModes runs one case of a test in the modes of modesOfCase.
func inModes(t *testing.T, name string, test func(t *testing.T, f *fixture)) {
	for mode, cfg := range modesOfCase(name) {
		t.Run(path.Join(name, mode), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.mode = cfg
			test(t, f)
		})
	}
}

// inMode returns cfg in the fixture's mode.
func (f *fixture) inMode(cfg claim.Config) claim.Config {
	cfg.Service = cmp.Or(cfg.Service, "labour")
	cfg.Lazy, cfg.Group, cfg.Deferred = cfg.Lazy || f.mode.Lazy, max(cfg.Group, f.mode.Group), cfg.Deferred || f.mode.Deferred
	return cfg
}

func newFixture(t testing.TB) *fixture {
	return prepare(&fixture{t: t, pool: devtest.Pool(t), schema: devtest.Schema(t)})
}

// newLonelyFixture is newFixture in a database of its own.
func newLonelyFixture(t testing.TB) *fixture {
	f := &fixture{t: t, pool: devtest.PoolOn(t, devtest.Database(t)), schema: "lonely"}
	_, err := f.pool.Exec(t.Context(), `create schema lonely`)
	require.NoError(t, err)
	return prepare(f)
}

// beside is a fixture in another schema of the same database, with sessions of its own.
func (f *fixture) beside(t testing.TB, schema string) *fixture {
	return prepare(&fixture{t: t, pool: devtest.PoolOn(t, f.pool.Config().ConnString()), schema: schema})
}

func prepare(f *fixture) *fixture {
	t := f.t
	f.store = claim.NewPostgresStore(f.pool, claim.Schema(f.schema))
	require.NoError(t, outbox.Migrate(t.Context(), f.pool, f.schema))
	require.NoError(t, claim.Migrate(t.Context(), f.pool, f.schema))
	_, err := f.pool.Exec(t.Context(), `create table `+f.schema+`.effect (event_id text not null)`)
	require.NoError(t, err)
	return f
}

func (f *fixture) middleware(cfg claim.Config) message.HandlerMiddleware {
	if cfg.Consumer == nil {
		cfg.Consumer = func(string) string { return "notify" }
	}
	c, err := claim.New(f.store, f.inMode(cfg))
	require.NoError(f.t, err)
	return c.Middleware
}

// effect writes in the handler's transaction.
func (f *fixture) effect(ctx context.Context, id string) error {
	tx, ok := pgtx.From(ctx)
	require.True(f.t, ok, "the handler's context carries the transaction")
	_, err := tx.Exec(ctx, `insert into `+f.schema+`.effect values ($1)`, id)
	return err
}

// killConnection ends the connection of the handler's transaction, as a server that crashes does.
func (f *fixture) killConnection(ctx context.Context) {
	tx, _ := pgtx.From(ctx)
	pid := tx.Conn().PgConn().PID()
	// It waits until the process is gone, which holds its locks until then.
	_, err := f.pool.Exec(context.Background(), `select pg_terminate_backend($1, 20000)`, pid)
	require.NoError(f.t, err)
	require.Eventually(f.t, func() bool {
		_, err := tx.Exec(context.Background(), `select 1`)
		return err != nil && tx.Conn().IsClosed()
	}, time.Minute, time.Millisecond)
}

func (f *fixture) handler(msg *message.Message) ([]*message.Message, error) {
	return nil, f.effect(msg.Context(), msg.UUID)
}

func (f *fixture) count(table string) (n int) {
	require.NoError(f.t, f.pool.QueryRow(context.Background(), `select count(*) from `+f.schema+`.`+table).Scan(&n))
	return n
}

// effects returns how often each event took effect.
func (f *fixture) effects() map[string]int {
	rows, err := f.pool.Query(context.Background(), `select event_id, count(*) from `+f.schema+`.effect group by 1`)
	require.NoError(f.t, err)
	effects := map[string]int{}
	var id string
	var n int
	_, err = pgx.ForEachRow(rows, []any{&id, &n}, func() error { effects[id] = n; return nil })
	require.NoError(f.t, err)
	return effects
}

// delivery remembers what was asked of it.
type delivery struct {
	transport.Rejection
	retryAfter time.Duration
}

func (*delivery) Attempt() int                 { return 1 }
func (d *delivery) RetryAfter(t time.Duration) { d.retryAfter = t }
func (*delivery) Handled()                     {}

func deliver(t testing.TB, id string) (*message.Message, *delivery) {
	d := &delivery{}
	return message.NewMessageWithContext(transport.WithDelivery(t.Context(), d), id, nil), d
}

func nacked(msg *message.Message) bool {
	select {
	case <-msg.Nacked():
		return true
	default:
		return false
	}
}
