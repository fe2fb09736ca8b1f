package outbox_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
)

// The notifier stands in for the process that commits, a plain connection for the relay in another one.
func TestNotifierTellsOtherProcesses(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	n, err := outbox.NewNotifier(f.pool, outbox.NotifierConfig{Schema: f.schema})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	defer func() {
		cancel()
		require.NoError(t, <-done)
	}()

	conn, err := pgx.ConnectConfig(t.Context(), f.pool.Config().ConnConfig)
	require.NoError(t, err)
	defer conn.Close(context.Background())
	_, err = conn.Exec(t.Context(), `listen `+f.schema+`_outbox`)
	require.NoError(t, err)
	wait, cancelWait := context.WithTimeout(t.Context(), time.Minute)
	defer cancelWait()
	published := make(chan struct{})
	defer func() { <-published }()
	go func() { // the notifier may not have begun to listen for commits yet
		defer close(published)
		for wait.Err() == nil {
			f.publish("k", "p")
			select {
			case <-wait.Done():
			case <-time.After(50 * time.Millisecond):
			}
		}
	}()
	_, err = conn.WaitForNotification(wait)
	require.NoError(t, err)
	cancelWait()
}

// A notification alone, from a process that this one knows nothing of, wakes the relay.
func TestRelayListens(t *testing.T) {
	t.Parallel()
	f, broker := newFixture(t), newRecorder()
	f.run(f.newRelay(broker, outbox.RelayConfig{PollInterval: time.Hour}))
	f.publish("k", "the relay is up")
	eventually(t, "up", func() bool { return broker.count() == 1 })
	eventually(t, "listening", func() (listening bool) {
		require.NoError(t, f.pool.QueryRow(t.Context(), `select exists (select from pg_stat_activity where query = $1)`,
			`listen "`+f.schema+`_outbox"`).Scan(&listening))
		return listening
	})
	f.commitSilently("notified")
	_, err := f.pool.Exec(t.Context(), `select pg_notify($1, '')`, f.schema+"_outbox")
	require.NoError(t, err)
	eventually(t, "notified", func() bool { return broker.count() == 2 })
}

func TestNotifierConfig(t *testing.T) {
	t.Parallel()
	_, err := outbox.NewNotifier(nil, outbox.NotifierConfig{Schema: "pg_x"})
	require.ErrorContains(t, err, "pool is nil")
	require.ErrorContains(t, err, `NotifierConfig.Schema is "pg_x"`)
}
