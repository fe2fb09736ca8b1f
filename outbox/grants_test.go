package outbox

import (
	"io/fs"
	"path"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/internal/pgschema"
)

// Every statement runs with the privileges of its role: PostgreSQL checks them when it explains one.
func TestGrantsCoverEveryStatement(t *testing.T) {
	t.Parallel()
	pool, schema := devtest.Pool(t), devtest.Schema(t)
	require.NoError(t, Migrate(t.Context(), pool, schema))
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

	publishing := map[string]bool{"insert": true, "insert_one": true, "insert_delayed": true, "delayed_cancel": true, "backlog": true, "lock": true, "glance": true}
	names, err := fs.Glob(files, "queries/*.sql")
	require.NoError(t, err)
	for _, n := range names {
		name := strings.TrimSuffix(path.Base(n), ".sql")
		role := relay
		switch {
		case publishing[name]:
			role = writer
		case name == "admin_purge":
			continue // the owner's
		case strings.HasPrefix(name, "admin_"), name == "locate", name == "outputs":
			role = operator
		}
		exec(`set role ` + role)
		statement, err := conn.Conn().Prepare(t.Context(), name, pgschema.Query(files, name, schema))
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
