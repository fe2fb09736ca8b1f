package devstack

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/internal/watchdog"
)

// A worker that starts after a crash reads from Kafka that its predecessor runs the task. Start returned then, although no
// task ran.
func TestDebeziumKnowsAStatusFromBeforeTheCrash(t *testing.T) {
	r, err := watchdog.NewRoom("debezium", nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Discard()) })
	d := &Debezium{worker: []string{"group.id=g"}}
	status := ""
	connect := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		assert.Equal(t, "/connectors/outbox/status", r.URL.Path)
		_, _ = io.WriteString(w, status)
	}))
	defer connect.Close()
	d.url = connect.URL + "/connectors/outbox"
	task := func(state string) { // of the worker that has the properties
		status = fmt.Sprintf(`{"tasks": [{"id": 0, "state": %q, "worker_id": %q}]}`, state, d.workerID())
	}

	require.NoError(t, d.prepare(r))
	task("RUNNING")
	require.NoError(t, d.publishes(t.Context()))

	require.NoError(t, d.prepare(r)) // after a crash
	require.ErrorContains(t, d.publishes(t.Context()), "worker 127.0.0.1:2 does not run the connector's task")
	task("UNASSIGNED")
	require.Error(t, d.publishes(t.Context()))
	task("RUNNING")
	require.NoError(t, d.publishes(t.Context()))
}
