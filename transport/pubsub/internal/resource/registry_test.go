package resource

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/millrace-go/millrace/transport"
)

// TestOutageWhileATopicIsCreated: when the half minute of what looks up and creates has ended, no caller's context has.
func TestOutageWhileATopicIsCreated(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, err := New(nil, Config{Recheck: time.Minute, MeterProvider: noop.NewMeterProvider(), Log: slog.Default()})
		require.NoError(t, err)
		defer r.Wait(time.Now())
		settle := func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}
		require.ErrorIs(t, r.once(t.Context(), "topic", settle), transport.ErrUnavailable)

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.Equal(t, context.DeadlineExceeded, r.once(ctx, "topic", settle), "the caller's own")
	})
}
