package devstack

import (
	"os"
	"os/exec"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/internal/leftover"
	"github.com/millrace-go/millrace/framework/devstack/internal/machine"
	"github.com/millrace-go/millrace/framework/devstack/internal/watchdog"
)

func ask(t *testing.T, dsn, statement string) (answer string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	defer conn.Close(t.Context())
	// By the simple protocol, which poolers take too.
	require.NoError(t, conn.QueryRow(t.Context(), statement, pgx.QueryExecModeSimpleProtocol).Scan(&answer))
	return answer
}

// A crash loses what was not written, and nothing that was committed. That the server starts again says that no process
// of it had survived: PostgreSQL refuses otherwise.
func TestServerCrash(t *testing.T) {
	dir := scratch(t)
	server, err := StartServer(t.Context(), ServerConfig{Settings: map[string]string{"wal_writer_delay": "10s", "autovacuum": "off"}})
	require.NoError(t, err)
	t.Logf("%s at %s", server.Source(), server.Address())
	conn, err := pgx.Connect(t.Context(), server.DSN())
	require.NoError(t, err)
	for _, statement := range []string{
		"create table t (i int)", "insert into t values (1)",
		"set synchronous_commit = off", "insert into t values (2)",
	} {
		_, err = conn.Exec(t.Context(), statement)
		require.NoError(t, err)
	}
	require.NoError(t, server.Crash(t.Context()))
	assert.True(t, closed(server.Address()))
	assert.Error(t, conn.Ping(t.Context()))
	for range 2 {
		require.NoError(t, server.Start(t.Context()))
		assert.Equal(t, "1 of 10s", ask(t, server.DSN(), "select string_agg(i::text, ',') || ' of ' || current_setting('wal_writer_delay') from t"))
		require.NoError(t, server.Crash(t.Context()))
	}
	require.NoError(t, server.Stop())
	require.NoError(t, server.Stop())
	assert.Empty(t, leftover.In(t, dir))
}

// A second Crash once started the server again, and a Start of one that ran killed it and removed its data.
func TestCrashAndStartTwice(t *testing.T) {
	dir := scratch(t)
	server, err := StartServer(t.Context(), ServerConfig{})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, server.Stop()) })
	assert.ErrorContains(t, server.Start(t.Context()), "it is not down")
	assert.Equal(t, "1", ask(t, server.DSN(), "select 1::text"))
	require.NoError(t, server.Crash(t.Context()))
	assert.ErrorContains(t, server.Crash(t.Context()), "it is down already")
	assert.True(t, closed(server.Address()))
	require.NoError(t, server.Start(t.Context()))
	assert.Equal(t, "1", ask(t, server.DSN(), "select 1::text"))
	require.NoError(t, server.Stop())
	assert.Empty(t, leftover.In(t, dir))
}

// What follows a server takes over from it, and can crash and start like any other. Without pg_basebackup it is a copy of the files.
func TestServerStandby(t *testing.T) {
	for name, start := range map[string]func(primary *Server) (*Server, error){
		"with the program": func(primary *Server) (*Server, error) { return primary.Standby(t.Context(), ServerConfig{}) },
		"without": func(primary *Server) (*Server, error) {
			c := primary.cluster
			c.fill = func(_ cluster, r *watchdog.Room) ([]string, error) { return []string{"true"}, primary.copyTo(r) }
			return hooks{freePort: machine.QuietPort}.startPostgres(t.Context(), c)
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := scratch(t)
			primary, err := StartServer(t.Context(), ServerConfig{})
			require.NoError(t, err)
			t.Cleanup(func() { assert.NoError(t, primary.Stop()) })
			ask(t, primary.DSN(), "select pg_create_physical_replication_slot('stays')::text")
			standby, err := start(primary)
			require.NoError(t, err)
			assert.Equal(t, "true", ask(t, standby.DSN(), "select pg_is_in_recovery()::text"))
			assert.Equal(t, "0", ask(t, standby.DSN(), "select count(*)::text from pg_replication_slots"))
			ask(t, primary.DSN(), "select pg_logical_emit_message(true, 'to', 'be followed')::text")
			position := ask(t, primary.DSN(), "select pg_current_wal_flush_lsn()::text")
			require.Eventually(t, func() bool {
				return ask(t, standby.DSN(), "select (pg_last_wal_replay_lsn() >= '"+position+"')::text") == "true"
			}, waitFor, tick)
			require.NoError(t, primary.Crash(t.Context()))
			require.NoError(t, standby.Promote(t.Context()))
			assert.Equal(t, "false", ask(t, standby.DSN(), "select pg_is_in_recovery()::text"))
			require.NoError(t, standby.Stop())
			require.NoError(t, primary.Stop())
			assert.Empty(t, leftover.In(t, dir))
		})
	}
}

func TestPgBouncer(t *testing.T) {
	_, err := pgBouncerProgram(nil)
	needs(t, "pgbouncer", err)
	dir := scratch(t)
	server, err := StartServer(t.Context(), ServerConfig{})
	require.NoError(t, err)
	bouncer, err := server.PgBouncer(t.Context(), 1)
	require.NoError(t, err)
	assert.Equal(t, "1", ask(t, bouncer.DSN(), "select 1::text"))
	require.NoError(t, bouncer.Stop())
	require.NoError(t, server.Stop())
	assert.Empty(t, leftover.In(t, dir))
}

func TestDisk(t *testing.T) {
	dir := scratch(t)
	disk, err := StartDisk(t.Context(), 1)
	needs(t, "mount", err)
	require.NoError(t, err)
	write := func() error { return os.WriteFile(disk.Dir()+"/file", make([]byte, 1000), 0o600) }
	require.NoError(t, write())
	require.NoError(t, disk.Fill())
	require.NoError(t, os.Remove(disk.Dir()+"/file"))
	require.NoError(t, disk.Fill())
	assert.Error(t, write())
	require.NoError(t, disk.Free())
	assert.NoError(t, write())
	require.NoError(t, disk.Stop())
	assert.Empty(t, leftover.In(t, dir))
}

func TestServerRelease(t *testing.T) {
	scratch(t)
	t.Setenv("TMPDIR", "") // the binaries stay where the next run finds them
	for _, release := range []string{OldestPostgres, NewestPostgres} {
		server, err := StartServer(t.Context(), ServerConfig{Release: release})
		require.NoError(t, err)
		assert.Contains(t, server.Source(), "PostgreSQL "+release+".")
		if tool, err := server.Tool("pg_dump"); err == nil { // an older one would refuse the server
			line, err := exec.CommandContext(t.Context(), tool, "--version").Output()
			require.NoError(t, err)
			assert.GreaterOrEqual(t, machine.CompareVersions(machine.FindVersion(string(line)), release), 0, "%s", line)
		} else {
			require.ErrorIs(t, err, ErrAbsent)
		}
		require.NoError(t, server.Stop())
	}
	_, err := StartServer(t.Context(), ServerConfig{Release: "9"})
	assert.ErrorContains(t, err, `"9"`)
}

// The variable chooses the version of whatever does not ask for one itself.
func TestPostgresVersion(t *testing.T) {
	scratch(t)
	t.Setenv("TMPDIR", "") // the binaries stay where the next run finds them
	t.Setenv(releaseVariable, NewestPostgres)
	stack, err := Start(t.Context(), Postgres)
	require.NoError(t, err)
	assert.Contains(t, stack.Services()[0].Source, "PostgreSQL "+NewestPostgres+".")
	require.NoError(t, stack.Stop())
	server, err := StartServer(t.Context(), ServerConfig{})
	require.NoError(t, err)
	assert.Contains(t, server.Source(), "PostgreSQL "+NewestPostgres+".")
	require.NoError(t, server.Stop())

	t.Setenv(releaseVariable, "9")
	_, err = Start(t.Context(), Postgres)
	assert.ErrorContains(t, err, `no PostgreSQL "9": want 15 to 18 in ServerConfig.Release or MILLRACE_POSTGRES_VERSION`)
}
