package framework_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The phase that /metrics names is that of the database.
func TestMigrationMetrics(t *testing.T) {
	t.Parallel()
	v := newVoyage(t, "kafka", "pubsub")
	_, err := v.pool.Exec(t.Context(), `insert into `+v.schema+`.outbox_broker (epoch, from_name, to_name, phase) values (1, 'kafka', 'pubsub', 'publish')`)
	require.NoError(t, err)
	svc := v.service(v.config())
	v.world.start(svc)
	code, body := get(t, svc, "/metrics", nil)
	assert.Equal(t, http.StatusOK, code)
	assert.Contains(t, body, `millrace_migration_phase{millrace_phase="publish"} 1`)
	assert.Contains(t, body, `millrace_migration_phase{millrace_phase="drain"} 0`)
}
