package outbox_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
)

func TestTraceContextTravels(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p, err := outbox.NewPublisher(outbox.PublisherConfig{
		Schema:     f.schema,
		Propagator: propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{}),
	})
	require.NoError(t, err)
	member, err := baggage.NewMember("tenant", "a")
	require.NoError(t, err)
	bag, err := baggage.New(member)
	require.NoError(t, err)
	ctx := trace.ContextWithSpanContext(baggage.ContextWithBaggage(t.Context(), bag), trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled,
	}))
	const here = "00-01000000000000000000000000000000-0200000000000000-01"
	for _, c := range []struct {
		name           string
		metadata, want map[string]string
	}{
		{"none", map[string]string{}, map[string]string{"traceparent": here, "baggage": "tenant=a"}},
		{"the caller's own", map[string]string{"traceparent": "00-x"}, map[string]string{"traceparent": "00-x"}},
		{"the caller's own baggage", map[string]string{"baggage": "b=c"}, map[string]string{"traceparent": here, "baggage": "b=c"}},
	} {
		require.NoError(t, pgtx.Run(ctx, f.pool, func(ctx context.Context, _ pgx.Tx) error {
			msg := newMessage(ctx, c.name, "p")
			for k, v := range c.metadata {
				msg.Metadata[k] = v
			}
			before := len(msg.Metadata)
			require.NoError(t, p.Publish(topic, msg))
			assert.Len(t, msg.Metadata, before, "the message stays as it is")
			return nil
		}))
		var headers []byte
		require.NoError(t, f.pool.QueryRow(t.Context(), `select headers from `+f.schema+`.outbox where key = $1`, c.name).Scan(&headers))
		var got map[string]string
		require.NoError(t, json.Unmarshal(headers, &got))
		assert.Equal(t, c.want, got, c.name)
	}
}
