package pgschema_test

import (
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/internal/pgschema"
)

func TestMain(m *testing.M) { devtest.Main(m) }

func TestValidate(t *testing.T) {
	for _, c := range []struct {
		name, want string
		ok         bool
	}{
		{"", "millrace", true},
		{"orders_2", "orders_2", true},
		{"_x", "_x", true},
		{strings.Repeat("a", 48), strings.Repeat("a", 48), true},
		{strings.Repeat("a", 49), "", false},
		{"Orders", "", false},
		{"2x", "", false},
		{"pg_x", "", false},
		{`a"b`, "", false},
		{"a b", "", false},
	} {
		got, err := pgschema.Validate(c.name)
		assert.Equal(t, c.want, got, c.name)
		assert.Equal(t, c.ok, err == nil, c.name)
	}
}

func migration(files map[string]string) pgschema.Line {
	fs := fstest.MapFS{}
	for name, sql := range files {
		fs["migrations/"+name] = &fstest.MapFile{Data: []byte(sql)}
	}
	return pgschema.Line{Component: "test", Files: fs, Command: "test.Migrate"}
}

// A migration that fails leaves the schema as it was, and the next run goes on where the last one succeeded.
func TestUpIsAllOrNothing(t *testing.T) {
	t.Parallel()
	pool, schema := devtest.Pool(t), devtest.Schema(t)
	first := map[string]string{"001_one.up.sql": `create table {schema}.one (a int)`}
	require.NoError(t, migration(first).Up(t.Context(), pool, schema))

	broken := map[string]string{"001_one.up.sql": first["001_one.up.sql"], "002_two.up.sql": `create table {schema}.two (a int)`, "003_three.up.sql": `nonsense`}
	err := migration(broken).Up(t.Context(), pool, schema)
	require.ErrorContains(t, err, "migration 3 (three)")
	require.ErrorContains(t, migration(broken).Check(t.Context(), pool, schema), "is at version 1 of test, this program needs 3: run test.Migrate")

	broken["003_three.up.sql"] = `create table {schema}.three (a int)`
	require.NoError(t, migration(broken).Up(t.Context(), pool, schema))
	require.NoError(t, migration(broken).Check(t.Context(), pool, schema))
	_, err = pool.Exec(t.Context(), `select from `+schema+`.two, `+schema+`.three`)
	require.NoError(t, err)
}

func TestMigrationsAreNumberedWithoutGaps(t *testing.T) {
	t.Parallel()
	gap := migration(map[string]string{"001_one.up.sql": "", "003_three.up.sql": ""})
	require.ErrorContains(t, gap.Up(t.Context(), devtest.Pool(t), devtest.Schema(t)), "migrations/003_three.up.sql of test: want number 002")
}
