package framework_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

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
	var body string
	require.Eventually(t, func() bool { // a busy database answers too late for one scrape
		var code int
		code, body = get(t, svc, "/metrics", nil)
		return code == http.StatusOK && strings.Contains(body, `millrace_migration_phase{millrace_phase="publish"} 1`)
	}, time.Minute, 100*time.Millisecond)
	assert.Contains(t, body, `millrace_migration_phase{millrace_phase="drain"} 0`)
}
