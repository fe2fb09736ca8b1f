package kafka_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/millrace-go/millrace/transport/kafka"
)

// TestTransactionsAreObserved: the answer to the end of a transaction is lost, which had committed it.
func TestTransactionsAreObserved(t *testing.T) {
	t.Parallel()
	const n = 1000
	c := newCopying(t, fake(t, kfake.NumBrokers(3)).ListenAddrs(), n)
	process := newFaultNet(nth(kmsg.EndTxn, 3, loseAnswer))
	meter := newMeter()
	spans := tracetest.NewSpanRecorder()
	p := c.start(t, c.config(kafka.Config{
		Dial:           process.dial,
		MeterProvider:  meter.provider,
		TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)),
	}), nil)
	c.await(t)
	p.stop(t)
	c.exactlyOnce(t)

	got := meter.collect(t)
	ended := int64(process.count(kmsg.EndTxn)) - 1 // and an abort, in case that the lost one has not arrived
	require.Equal(t, int64(1), got["millrace.kafka.transactions failed"])
	require.Equal(t, ended-1, got["millrace.kafka.transactions committed"])
	require.Equal(t, int64(1), got["millrace.kafka.transaction.fences"])
	require.Equal(t, int64(1), got["millrace.kafka.transaction.recoveries committed"])
	require.Equal(t, int64(n), got["millrace.kafka.transaction.messages committed"]+got["millrace.kafka.transaction.messages failed"])

	commits, failed := 0, 0
	for _, span := range spans.Ended() {
		if span.Name() == "commit transaction" {
			commits++
			if span.Status().Code == codes.Error {
				failed++
			}
		}
	}
	require.Equal(t, int(ended), commits)
	require.Equal(t, 1, failed)
}
