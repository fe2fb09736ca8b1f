package claim_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
)

// What a claim costs can be counted, so it is: round trips, beyond those of the handler's own statements.
func TestRoundTripsOfAClaim(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	pool, trips := devtest.CountedPool(t)
	store := claim.NewPostgresStore(pool, claim.Schema(f.schema))
	insert := `insert into ` + f.schema + `.effect values ($1)`
	exec := func(ctx context.Context) error { return f.effect(ctx, "1") }
	queue := func(ctx context.Context) error { return pgtx.Queue(ctx, insert, "1") }
	fresh := func() claim.Key { return claim.Key{Consumer: "labour/notify", EventID: outbox.NewID()} }
	held, done := fresh(), fresh()
	end := f.holding(held)
	require.NoError(t, f.claimNow(done))
	for what, c := range map[string]struct {
		key     func() claim.Key
		handler func(context.Context) error
		want    int
		err     error
	}{
		"the handler does nothing":        {fresh, func(context.Context) error { return nil }, 2, nil},
		"its statement is its own":        {fresh, exec, 2 + 1, nil},
		"it queues its last statement":    {fresh, queue, 1 + 1, nil},
		"its key matters":                 {func() claim.Key { k := fresh(); k.Order = "key"; return k }, queue, 1 + 1, nil},
		"it was delayed":                  {func() claim.Key { k := fresh(); k.Due = time.Now(); return k }, queue, 1 + 1, nil},
		"its ID tells no time":            {func() claim.Key { k := fresh(); k.EventID += "?"; return k }, queue, 1 + 1, nil},
		"a duplicate, and ROLLBACK":       {func() claim.Key { return done }, queue, 2, claim.ErrCompleted},
		"one that is held, and ROLLBACK":  {func() claim.Key { return held }, queue, 2, claim.ErrContended},
		"the handler fails, and ROLLBACK": {fresh, func(context.Context) error { return errOops }, 2, errOops},
	} {
		got := trips.Of(func() { require.ErrorIs(t, store.Do(t.Context(), c.key(), c.handler), c.err) })
		assert.Equal(t, c.want, got, what)
	}
	require.NoError(t, end(nil))
}

// Claims of events that do not fail leave nothing for VACUUM, duplicates and contention included.
func TestClaimsLeaveNoDeadTuples(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	held := claim.Key{Consumer: "labour/notify", EventID: outbox.NewID()}
	pool := devtest.PoolOn(t, f.pool.Config().ConnString())
	f.store = claim.NewPostgresStore(pool, claim.Schema(f.schema))
	end := f.holding(held)
	const claims = 100
	for range claims {
		key := claim.Key{Consumer: "labour/notify", EventID: outbox.NewID()}
		require.NoError(t, f.claimNow(key))
		require.ErrorIs(t, f.claimNow(key), claim.ErrCompleted)
		require.ErrorIs(t, f.claimNow(held), claim.ErrContended)
	}
	require.NoError(t, end(nil))
	pool.Close() // a session that ends has told all
	var inserted, dead int
	require.Eventually(t, func() bool {
		err := f.pool.QueryRow(t.Context(), `select sum(pg_stat_get_tuples_inserted(oid)),
				sum(pg_stat_get_dead_tuples(oid) + pg_stat_get_tuples_updated(oid) + pg_stat_get_tuples_deleted(oid))
			from pg_class where relnamespace = $1::regnamespace and relkind = 'r'
				and (relname ~ '^processed' or relname in ('consumer', 'claim_failed', 'claim_key'))`, f.schema).Scan(&inserted, &dead)
		return err == nil && inserted == claims+2 // and the consumer
	}, time.Minute, 50*time.Millisecond)
	assert.Zero(t, dead)
}

// Retention drops days: a table whose rows it deleted one by one would call this trigger.
func TestRetentionDeletesNoRow(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for range 10 {
		f.settles(t.Context(), claim.Key{Consumer: "labour/notify", EventID: mintedAt(-10 * day)})
	}
	f.exec(`create function ` + f.schema + `.deleted() returns trigger language plpgsql as $$ begin raise 'a row is deleted'; end $$`)
	f.exec(`create trigger deleted before delete on ` + f.schema + `.processed for each row execute function ` + f.schema + `.deleted()`)
	_, err := f.pool.Exec(t.Context(), `delete from `+f.schema+`.processed_old`)
	require.ErrorContains(t, err, "a row is deleted", "the control")
	assert.Equal(t, []string{"processed_old"}, f.retain().Days)
}

// Hashes tell no day. They go in small transactions, so that none is long.
func TestHashesArePrunedInBatches(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.settles(t.Context(), claim.Key{Consumer: "labour/notify", EventID: "recent"})
	f.exec(`insert into ` + f.schema + `.processed select ('ff' || substr(md5(n::text), 3))::uuid, 1, now() - interval '2 days' from generate_series(1, 2500) n`)
	f.exec(`create table ` + f.schema + `.batch (rows int, xid text)`)
	f.exec(`create function ` + f.schema + `.pruned() returns trigger language plpgsql as $$ begin
		insert into ` + f.schema + `.batch select count(*), pg_current_xact_id()::text from gone; return null; end $$`)
	f.exec(`create trigger pruned after delete on ` + f.schema + `.processed_hashed referencing old table as gone
		for each statement execute function ` + f.schema + `.pruned()`)
	assert.Equal(t, int64(2500), f.retain().Hashed)
	var largest, transactions int
	require.NoError(t, f.pool.QueryRow(t.Context(), `select max(rows), count(distinct xid) filter (where rows > 0) from `+f.schema+`.batch`).Scan(&largest, &transactions))
	assert.Equal(t, 1000, largest)
	assert.Equal(t, 3, transactions)
	f.refuses(claim.Key{Consumer: "labour/notify", EventID: "recent"}, claim.ErrCompleted)
}

// A million events, or 200,000 in a short run, have been processed today. A plan that was made when there were none is no worse, and a claim
// writes as much WAL as ever: the row, its index entry and the commit. Whole pages, which PostgreSQL writes once after each
// checkpoint, are written before by the claims that do not count; there is nobody else on the server.
func TestClaimAmongMillions(t *testing.T) {
	t.Parallel()
	server := devtest.Postgres(t, devstack.ServerConfig{Settings: map[string]string{
		"autovacuum": "off", "max_wal_size": "8GB", "checkpoint_timeout": "1h", "plan_cache_mode": "force_generic_plan",
	}})
	pool := devtest.PoolOn(t, server.DSN(), func(cfg *pgxpool.Config) { cfg.MaxConns = 1 })
	f := &fixture{t: t, pool: pool, schema: "millions", store: claim.NewPostgresStore(pool, claim.Schema("millions"))}
	f.exec(`create schema millions`)
	require.NoError(t, outbox.Migrate(t.Context(), pool, f.schema))
	require.NoError(t, claim.Migrate(t.Context(), pool, f.schema))
	claims := func(n int) {
		for range n {
			require.NoError(t, f.store.Do(t.Context(), claim.Key{Consumer: "labour/notify", EventID: outbox.NewID()}, func(context.Context) error { return nil }))
		}
	}
	claims(10) // its statements are prepared and planned
	f.exec(fmt.Sprintf(`insert into millions.processed
		select (lpad(to_hex((extract(epoch from now()) * 1000)::bigint - %[1]d + n), 12, '0') || '7' || substr(md5(n::text), 1, 3) || '8' || substr(md5(n::text), 4, 15))::uuid, 1
		from generate_series(1, %[1]d) n`, devtest.Storm(1_000_000, 200_000)))
	f.exec(`checkpoint`)
	claims(200)
	position := func() (bytes int64) {
		require.NoError(t, pool.QueryRow(t.Context(), `select (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint`).Scan(&bytes))
		return bytes
	}
	const counted = 3000
	before := position()
	claims(counted)
	wal := position() - before
	t.Logf("WAL per claim: %.0f bytes", float64(wal)/counted)
	assert.LessOrEqual(t, wal, int64(320*counted))

	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	plans := 0
	for _, p := range prepared(t, conn.Conn()) {
		if !strings.Contains(p.sql, ".processed") {
			continue
		}
		plans++
		rows, err := conn.Query(t.Context(), `explain execute `+pgx.Identifier{p.name}.Sanitize()+`(`+strings.TrimSuffix(strings.Repeat("null,", p.parameters), ",")+`)`)
		require.NoError(t, err)
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		plan := strings.Join(lines, "\n")
		assert.NotContains(t, plan, "Seq Scan on processed", plan)
		assert.NotContains(t, plan, "Seq Scan on claim_", plan)
	}
	assert.Equal(t, 1, plans, "the claim's own statement was looked at")
}

type statement struct {
	name, sql  string
	parameters int
}

func prepared(t *testing.T, conn *pgx.Conn) []statement {
	rows, err := conn.Query(t.Context(), `select name, statement, cardinality(parameter_types) from pg_prepared_statements`)
	require.NoError(t, err)
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (s statement, err error) {
		return s, row.Scan(&s.name, &s.sql, &s.parameters)
	})
	require.NoError(t, err)
	return all
}
