package pubsub

import (
	"context"
	"fmt"
	"time"

	"cloud.google.com/go/pubsub/v2"
	vkit "cloud.google.com/go/pubsub/v2/apiv1"
	"github.com/googleapis/gax-go/v2"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
)

// What differs from Google's client (v2.6.0) is how soon a failure of the network is noticed, and its end.

// aliveness finds connections that have become black holes, as a firewall's timeout leaves them: within 40 s. The client
// would take more than five minutes, and for ever with an emulator: its own pings of a pull stream end in a polite end of
// the stream, which the hole swallows too. Google's client for Python asks as often.
var aliveness = keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}

// reconnect tries again within 12 s, where the default goes up to two minutes.
var reconnect = grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: time.Second, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 10 * time.Second},
	MinConnectTimeout: 20 * time.Second, // the default
}

// retryPublish tries a publish request again, for the client's minute, on what the client tries it again. But the waits end
// at 2 s, not at 60 s: everything of the keys in the request waits with it. And a request that was cancelled stays so: its
// client is closed.
func retryPublish() gax.Retryer {
	return gax.OnCodes([]codes.Code{
		codes.Aborted, codes.Internal, codes.ResourceExhausted, codes.Unknown, codes.Unavailable, codes.DeadlineExceeded,
	}, gax.Backoff{Initial: 100 * time.Millisecond, Max: 2 * time.Second, Multiplier: 2})
}

func newClient(ctx context.Context, config Config, streams *pullStreams) (*pubsub.Client, error) {
	options := append([]option.ClientOption{
		option.WithGRPCDialOption(grpc.WithChainStreamInterceptor(streams.intercept)),
		option.WithGRPCDialOption(grpc.WithKeepaliveParams(aliveness)),
		option.WithGRPCDialOption(grpc.WithConnectParams(reconnect)),
	}, config.ClientOptions...)
	client, err := pubsub.NewClientWithConfig(ctx, config.ProjectID, &pubsub.ClientConfig{
		EnableOpenTelemetryTracing: config.Tracing,
		TopicAdminCallOptions:      &vkit.TopicAdminCallOptions{Publish: []gax.CallOption{gax.WithRetry(retryPublish)}},
	}, options...)
	if err != nil {
		return nil, fmt.Errorf("connect to Pub/Sub: %w", err)
	}
	return client, nil
}
