package devstack

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A version that Millrace does not support must not run because it happens to be installed.
func TestUnsupportedPostgresIsRefused(t *testing.T) {
	dir := scratch(t)
	require.NoError(t, os.Chmod(dir, 0o755))
	for _, name := range []string{"initdb", "postgres"} {
		script := "#!/bin/sh\necho 'postgres (PostgreSQL) 14.9'\n"
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(script), 0o755))
		t.Cleanup(func() { assert.NoError(t, os.Remove(path)) })
	}
	t.Setenv(releaseVariable, "14")
	err := (&Stack{hooks: hooks{postgresBin: dir}}).Add(t.Context(), Postgres)
	assert.ErrorContains(t, err, `no PostgreSQL "14": want 15 to 18 in ServerConfig.Release or MILLRACE_POSTGRES_VERSION`)
}
