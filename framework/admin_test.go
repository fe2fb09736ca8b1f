package framework_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A server for operators has the console, the metrics, and why a check fails; the service's own server tells none of it.
func TestAdmin(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "memory")
	cfg := w.config()
	cfg.Admin.Address = "127.0.0.1:0"
	cfg.Health.Timeout = 10 * time.Second // of a busy machine
	svc := w.service(cfg)
	stop := w.start(svc)
	public, admin := "http://"+svc.Address(), "http://"+svc.AdminAddress()
	for _, path := range []string{"/metrics", "/console/", "/"} {
		code, _ := fetch(t, public+path, nil)
		assert.Equal(t, http.StatusNotFound, code, path)
	}
	for path, want := range map[string]string{"/metrics": "db_client_connection_max", "/console/": "labour", "/": "labour", "/healthz": "alive", "/readyz": `"ready":true`} {
		code, body := fetch(t, admin+path, nil)
		assert.Equal(t, http.StatusOK, code, path)
		assert.Contains(t, body, want, path)
	}

	_, err := w.pool.Exec(t.Context(), `delete from `+w.schema+`.migration where component = 'effect'`)
	require.NoError(t, err)
	var answer string
	w.eventually("not ready", func() bool {
		code, body := fetch(t, admin+"/readyz", nil)
		answer = body
		return code == http.StatusServiceUnavailable
	})
	assert.Contains(t, answer, "the tables are missing, or of another version")
	assert.Contains(t, answer, "version 0 of effect")
	code, body := fetch(t, public+"/readyz", nil)
	assert.Equal(t, http.StatusServiceUnavailable, code)
	assert.Contains(t, body, `{"name":"schema","ok":false}`)
	assert.NotContains(t, body, "version")
	stop()
}

// While the handlers subscribe, only the server for operators answers. A probe that asked it took the service for ready, whose own
// server answers no request yet.
func TestAdminIsNotReadyBeforeTheServiceRuns(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "memory")
	cfg := w.config()
	cfg.Admin.Address = "127.0.0.1:0"
	svc := w.service(cfg)
	hangs := hanging{make(chan struct{}, 1)}
	svc.Router().AddConsumerHandler(w.name("hang"), "a.topic", hangs, ignore)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := runs(ctx, svc)
	next(t, hangs.begun)
	code, _ := fetch(t, "http://"+svc.AdminAddress()+"/healthz", nil)
	assert.Equal(t, http.StatusOK, code)
	code, body := fetch(t, "http://"+svc.AdminAddress()+"/readyz", nil)
	assert.Equal(t, http.StatusServiceUnavailable, code)
	assert.Contains(t, body, "the service starts")
	cancel()
	require.NoError(t, next(t, ended))
}
