package framework_test

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
)

// readiness is what /readyz answers.
type readiness struct {
	Ready  bool
	Checks []struct {
		Name, Problem string
		OK            bool
	}
}

func (r readiness) problems() map[string]string {
	found := map[string]string{}
	for _, c := range r.Checks {
		if !c.OK {
			found[c.Name] = c.Problem
		}
	}
	return found
}

// TestReady: a service is ready on each broker, is not while an event waits that nobody relays or the tables are gone, and
// is again when they are back.
func TestReady(t *testing.T) {
	t.Parallel()
	for _, broker := range []string{"memory", "pubsub", "kafka"} {
		t.Run(broker, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, broker)
			cfg := w.config()
			cfg.Outbox.Relay = 1 // Apart, and nowhere
			cfg.Health.Require = []string{"backlog", "broker", "relays"}
			cfg.Health.Timeout = 10 * time.Second // a busy machine is no fault of the service
			svc := w.service(cfg)
			defer w.start(svc)()
			ask := func() (code int, r readiness) {
				code, body := get(t, svc, "/readyz", nil)
				require.NoError(t, json.Unmarshal([]byte(body), &r))
				assert.Equal(t, code == http.StatusOK, r.Ready)
				return code, r
			}
			until := func(check string) string {
				var r readiness
				require.Eventually(t, func() bool {
					_, r = ask()
					_, found := r.problems()[check]
					return found == (check != "") && r.Ready == (check == "")
				}, wait, 100*time.Millisecond, "%v", r)
				return r.problems()[check]
			}
			until("")
			_, r := ask()
			assert.Len(t, r.Checks, 6)

			require.NoError(t, svc.Tx(t.Context(), func(ctx context.Context, _ pgx.Tx) error {
				return publish(ctx, w.topic("one"), "key", "value")
			}))
			_, err := w.pool.Exec(t.Context(), strings.ReplaceAll(`update {s}.outbox set created_at = now() - interval '1 hour'`, "{s}", w.schema))
			require.NoError(t, err)
			assert.Contains(t, until("relays"), "see that one runs")
			assert.Contains(t, until("backlog"), "which no relay holds")
			_, err = w.pool.Exec(t.Context(), strings.ReplaceAll(`delete from {s}.outbox`, "{s}", w.schema))
			require.NoError(t, err)
			until("")

			_, err = w.pool.Exec(t.Context(), strings.ReplaceAll(`alter table {s}.outbox_shard rename to away`, "{s}", w.schema))
			require.NoError(t, err)
			until("relays")
			_, err = w.pool.Exec(t.Context(), strings.ReplaceAll(`alter table {s}.away rename to outbox_shard`, "{s}", w.schema))
			require.NoError(t, err)
			until("")

			// An outbox that cannot be counted in time, as while a backup keeps its dead rows, is no reason to take services out.
			_, err = w.pool.Exec(t.Context(), strings.ReplaceAll(`alter table {s}.outbox_shard rename to away;
				create view {s}.outbox_shard as select a.* from {s}.away a, pg_sleep(5)`, "{s}", w.schema))
			require.NoError(t, err)
			require.Eventually(t, func() bool {
				code, r := ask()
				require.Equal(t, http.StatusOK, code, r)
				return strings.HasPrefix(r.Checks[3].Problem, "not known: ")
			}, wait, 100*time.Millisecond)
			_, err = w.pool.Exec(t.Context(), strings.ReplaceAll(`drop view {s}.outbox_shard; alter table {s}.away rename to outbox_shard`, "{s}", w.schema))
			require.NoError(t, err)
		})
	}
}

// TestReadOnlyDatabase: a database that answers and takes no writes, after a failover, say, is of no use.
func TestReadOnlyDatabase(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "memory")
	cfg := w.config()
	require.NoError(t, w.service(cfg).Close()) // which has migrated
	cfg.Postgres.Migrate, cfg.Postgres.DSN = false, with(t, cfg.Postgres.DSN, "default_transaction_read_only=on")
	cfg.Outbox.Relay = framework.Apart    // a relay of its own would end the service at once
	cfg.Health.Timeout = 20 * time.Second // of a busy machine
	svc := w.service(cfg)
	w.start(svc)
	code, body := get(t, svc, "/readyz", nil)
	assert.Equal(t, http.StatusServiceUnavailable, code)
	assert.Contains(t, body, "PostgreSQL takes no writes")
}

// TestReadyBesideAPausedTopic: events that wait for an operator make no service unready, and the answer names their topic.
func TestReadyBesideAPausedTopic(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "memory")
	cfg := w.config()
	cfg.Health.Timeout = 20 * time.Second // of a busy machine
	svc := w.service(cfg)                 // which has migrated
	require.NoError(t, outboxadmin.PauseTopic(t.Context(), w.pool, w.schema, w.topic("one"), outboxadmin.By{Actor: "ada"}))
	defer w.start(svc)()
	require.NoError(t, svc.Tx(t.Context(), func(ctx context.Context, _ pgx.Tx) error {
		return publish(ctx, w.topic("one"), "key", "value")
	}))
	done, err := w.pool.Exec(t.Context(), strings.ReplaceAll(`update {s}.outbox set created_at = now() - interval '1 hour'`, "{s}", w.schema))
	require.NoError(t, err)
	require.EqualValues(t, 1, done.RowsAffected())
	var r readiness
	require.Eventually(t, func() bool {
		code, body := get(t, svc, "/readyz", nil)
		require.NoError(t, json.Unmarshal([]byte(body), &r))
		return code == http.StatusOK && strings.Contains(r.Checks[3].Problem, "topic "+w.topic("one")+" was paused")
	}, wait, 100*time.Millisecond, "%v", &r)
	assert.Equal(t, "backlog", r.Checks[3].Name)
	assert.True(t, r.Checks[3].OK)
}

// TestReadyWhenAStopBegins: a probe whose checks take long learns at once that the service stops.
func TestReadyWhenAStopBegins(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "memory")
	cfg := w.config()
	cfg.Health.Timeout = time.Hour
	linger := time.Second
	cfg.HTTP.Linger = &linger
	cfg.Outbox.Relay = framework.Apart
	svc := w.service(cfg)
	stop := w.start(svc)
	lock, err := w.pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { require.NoError(t, lock.Rollback(context.WithoutCancel(t.Context()))) }()
	_, err = lock.Exec(t.Context(), `lock table `+w.schema+`.migration`)
	require.NoError(t, err)
	var code int
	var body string
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		code, body = get(t, svc, "/readyz", nil)
	}()
	w.eventually("a check that waits", func() bool {
		return w.get(`select count(*) from pg_locks where relation = '{s}.migration'::regclass and not granted`) > 0
	})
	stop()
	next(t, asked)
	assert.Equal(t, http.StatusServiceUnavailable, code)
	assert.Contains(t, body, "the service stops")
}

// TestReadyWhileTheDatabaseIsSlow: a check of the tables that takes too long says nothing about them. Tables that are gone make the
// service unready.
func TestReadyWhileTheDatabaseIsSlow(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "memory")
	cfg := w.config()
	cfg.Health.Timeout = 10 * time.Second // within which a busy machine answers what does not wait for the lock
	cfg.Outbox.Relay = framework.Apart
	svc := w.service(cfg)
	defer w.start(svc)()
	lock, err := w.pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = lock.Exec(t.Context(), `lock table `+w.schema+`.migration`)
	require.NoError(t, err)
	code, body := get(t, svc, "/readyz", nil)
	assert.Equal(t, http.StatusOK, code, body)
	assert.Contains(t, body, `{"name":"schema","ok":true}`)
	assert.Contains(t, body, "not known: ")
	require.NoError(t, lock.Rollback(t.Context()))
	// A part that is still starting checks its own tables. This service has no relay, so nothing but /readyz checks the outbox.
	_, err = w.pool.Exec(t.Context(), `delete from `+w.schema+`.migration where component = 'outbox'`)
	require.NoError(t, err)
	w.eventually("not ready", func() bool {
		code, body = get(t, svc, "/readyz", nil)
		return code == http.StatusServiceUnavailable
	})
	assert.Contains(t, body, "the tables are missing")
}
