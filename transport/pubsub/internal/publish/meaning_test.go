package publish

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"

	"cloud.google.com/go/pubsub/v2"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub/internal/conn"
	"github.com/millrace-go/millrace/transport/pubsub/internal/resource"
)

// What an error says of a message decides whether a relay parks it or waits.
func TestMeaningOfErrors(t *testing.T) {
	t.Parallel()
	for code, unavailable := range map[codes.Code]bool{
		codes.Unavailable: true, codes.PermissionDenied: true, codes.NotFound: true, codes.ResourceExhausted: true, codes.DeadlineExceeded: true,
		codes.InvalidArgument: false,
	} {
		err := meaning(status.Error(code, "said the service"))
		require.Equal(t, unavailable, errors.Is(err, transport.ErrUnavailable), code)
		require.NotErrorIs(t, err, transport.ErrRejected)
		require.Equal(t, code, status.Code(err))
	}
	require.ErrorIs(t, meaning(pubsub.ErrOversizedMessage), transport.ErrRejected)
	for _, own := range []error{transport.ErrNotSent, context.DeadlineExceeded, fmt.Errorf("%w: no result: %w", transport.ErrUnavailable, context.DeadlineExceeded)} {
		require.Equal(t, own, meaning(own))
	}
}

// TestOutageThatOutlastsTheClient: Google's client tries for a minute, and then its error is that of its context, whatever
// the service has said. No caller's context has ended.
func TestOutageThatOutlastsTheClient(t *testing.T) {
	t.Parallel()
	down := func(_ context.Context, method string, _, _ any, _ *grpc.ClientConn, _ grpc.UnaryInvoker, _ ...grpc.CallOption) error {
		if strings.HasSuffix(method, "/Publish") {
			return status.Error(codes.Unavailable, "connection refused")
		}
		return nil // the topic exists
	}
	client, err := conn.New(t.Context(), conn.Config{ProjectID: "project", Options: []option.ClientOption{
		option.WithEndpoint("127.0.0.1:1"), option.WithoutAuthentication(),
		option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())),
		option.WithGRPCDialOption(grpc.WithChainUnaryInterceptor(down)),
	}})
	require.NoError(t, err)
	defer func() { require.NoError(t, client.Close()) }()
	resources, err := resource.New(client, resource.Config{Project: "project", Recheck: time.Minute, MeterProvider: noop.NewMeterProvider(), Log: slog.Default()})
	require.NoError(t, err)
	defer resources.Wait(time.Now())
	publisher := New(client, resources, propagation.TraceContext{})
	defer publisher.Stop()
	topic, err := publisher.topic(t.Context(), "topic", nil)
	require.NoError(t, err)
	topic.running.Done()
	topic.client.PublishSettings.Timeout = 300 * time.Millisecond // the minute

	for _, err := range publisher.PublishBatch(t.Context(), "topic", []*message.Message{message.NewMessage("1", nil), message.NewMessage("2", nil)}) {
		require.ErrorIs(t, err, transport.ErrUnavailable)
	}
}
