package outboxadmin

import (
	"io/fs"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/outbox/internal/store"
)

// Every statement runs with the privileges of its role: PostgreSQL checks them when it explains one.
func TestGrantsCoverEveryStatement(t *testing.T) {
	t.Parallel()
	pool, schema := devtest.Pool(t), devtest.Schema(t)
	require.NoError(t, outbox.Migrate(t.Context(), pool, schema))
	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	exec := func(sql string) {
		_, err := conn.Exec(t.Context(), sql)
		require.NoError(t, err, sql)
	}
	writer, relay, operator := schema+"_w", schema+"_r", schema+"_o"
	for _, role := range []string{writer, relay, operator} {
		exec(`create role ` + role)
		defer exec(`drop owned by ` + role + `; drop role ` + role)
	}
	defer exec(`reset role`)
	grants, err := Grants(schema, GrantRoles{writer, relay, operator})
	require.NoError(t, err)
	exec(grants)

	publishing := map[string]bool{
		"insert": true, "insert_one": true, "insert_delayed": true, "delayed_cancel": true, "backlog": true, "lock": true, "inspect_backlog": true,
		"replay_insert": true, "topic_states": true, "emit": true, "emit_one": true,
	}
	operating := map[string]bool{"broker_lock": true, "broker_processes": true, "broker_relays": true, "broker_step": true, "landing_report": true, "layout": true}
	statements := map[string]string{} // the operator's, and those of publishers and relays
	for _, from := range []fs.FS{files, store.Files} {
		names, err := fs.Glob(from, "queries/*.sql")
		require.NoError(t, err)
		for _, n := range names {
			name, role := strings.TrimSuffix(path.Base(n), ".sql"), relay
			switch {
			case publishing[name]:
				role = writer
			case from == fs.FS(files), operating[name]:
				role = operator
			}
			if name != "purge" && name != "clean" { // which are the owner's
				statements[name] = role
			}
		}
	}
	for name, role := range statements {
		exec(`set role ` + role)
		statement, err := conn.Conn().Prepare(t.Context(), name, statementOf(name, schema))
		require.NoError(t, err, "%s as %s", name, role)
		arguments := strings.TrimSuffix(strings.Repeat("null,", len(statement.ParamOIDs)), ",")
		if arguments != "" {
			arguments = "(" + arguments + ")"
		}
		_, err = conn.Exec(t.Context(), `explain execute "`+name+`"`+arguments)
		assert.NoError(t, err, "%s as %s", name, role)
		exec(`reset role`)
	}
}

// statementOf is a statement of this package or of the store.
func statementOf(name, schema string) string {
	if _, err := fs.Stat(files, "queries/"+name+".sql"); err == nil {
		return query(name, schema)
	}
	return store.Query(name, schema)
}

// Whatever looks for the failed events of a key reads no more than those.
func TestFailedEventsAreFoundByTheHashOfTheirKey(t *testing.T) {
	t.Parallel()
	pool, schema := devtest.Pool(t), devtest.Schema(t)
	require.NoError(t, outbox.Migrate(t.Context(), pool, schema))
	exec := func(sql string) {
		_, err := pool.Exec(t.Context(), pgschema.Render(sql, schema))
		require.NoError(t, err)
	}
	exec(`insert into {schema}.outbox_failed (state, hash, shard, seq, event_id, topic, key, headers, payload, created_at)
		select 'blocked', n % 1000, 0, n, n, 't', 'key ' || n % 1000, '', '', now() from generate_series(1, 10000) n`)
	exec(`analyze {schema}.outbox_failed`)
	for name, args := range map[string][]any{
		"failed_left":    {0, []int64{7}, []string{"key 7"}},
		"failed_promote": {0, []int64{7}, []string{"key 7"}},
		"failed_fetch":   {0, 200, []int64{}, []string{}, 10, 1000},
		"find_behind":    {0, 7, "key 7", 5007},
	} {
		rows, err := pool.Query(t.Context(), "explain "+statementOf(name, schema), append([]any{pgx.QueryExecModeExec}, args...)...)
		require.NoError(t, err, name)
		plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err, name)
		assert.Regexp(t, `(?s)outbox_failed_key.*Index Cond: .*hash = `, strings.Join(plan, "\n"), name)
	}
}

// However large the archive is, a replay reads no more of it than one of its transactions takes, and a list no more than it searches.
func TestTheArchiveIsReadByItsIndex(t *testing.T) {
	t.Parallel()
	pool, schema := devtest.Pool(t), devtest.Schema(t)
	require.NoError(t, outbox.Migrate(t.Context(), pool, schema))
	for _, sql := range []string{
		`select {schema}.outbox_archive_days('1 day')`,
		`insert into {schema}.outbox_archive (published_at, shard, seq, event_id, topic, key, headers, payload, created_at)
			select now() + n * interval '1 millisecond', 0, n, n, 't', '', '', '', now() from generate_series(1, 50000) n`,
		`analyze {schema}.outbox_archive`,
	} {
		_, err := pool.Exec(t.Context(), pgschema.Render(sql, schema))
		require.NoError(t, err)
	}
	planOf := func(name string, args ...any) string {
		rows, err := pool.Query(t.Context(), "explain "+query(name, schema), append([]any{pgx.QueryExecModeExec}, args...)...)
		require.NoError(t, err)
		plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		return strings.Join(plan, "\n")
	}
	const sorted = `(?s)Limit.*Incremental Sort.*Presorted Key: \S*published_at.*`
	assert.Regexp(t, sorted+`Index Scan using \S*published_at_idx`, planOf("replay_read", time.Now().Add(10*time.Second), time.Now(), 5, 5, time.Now().Add(time.Hour), "t", nil, 10_000, 500, 4<<20))
	assert.Regexp(t, sorted+`Index Scan Backward using \S*published_at_idx`, planOf("archive_list", "t", nil, nil, nil, time.Now().Add(10*time.Second), time.Now(), 5, 5, 10_000, 50))
	assert.Regexp(t, `(?s)Limit.*Index Scan Backward using \S*published_at_idx`, planOf("archive_sample", "t", nil, nil, nil, 10_000))
}

// However many events are delayed, a list of those that are due next reads no more than those.
func TestDelayedEventsAreListedByTheirIndex(t *testing.T) {
	t.Parallel()
	pool, schema := devtest.Pool(t), devtest.Schema(t)
	require.NoError(t, outbox.Migrate(t.Context(), pool, schema))
	for _, sql := range []string{
		`insert into {schema}.outbox_delayed (due_at, hash, event_id, topic, key, headers, payload) select now() + n * interval '1 second', n, n, 't', '', '', '' from generate_series(1, 20000) n`,
		`analyze {schema}.outbox_delayed`,
	} {
		_, err := pool.Exec(t.Context(), pgschema.Render(sql, schema))
		require.NoError(t, err)
	}
	rows, err := pool.Query(t.Context(), "explain "+query("list", schema), pgx.QueryExecModeExec, []string{"delayed"}, nil, nil, 26, false, nil)
	require.NoError(t, err)
	plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	assert.Contains(t, strings.Join(plan, "\n"), "Index Scan using outbox_delayed_due")
}
