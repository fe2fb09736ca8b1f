// Package conn creates Google's client with this transport's settings.
package conn

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"cloud.google.com/go/pubsub/v2"
	vkit "cloud.google.com/go/pubsub/v2/apiv1"
	"github.com/googleapis/gax-go/v2"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"

	"github.com/millrace-go/millrace/transport/pubsub/internal/stream"
)

// The settings below differ from the defaults of Google's client (v2.6.0): a network failure, and its end, are noticed sooner.

// aliveness detects connections on which nothing arrives any more, as after a firewall's timeout, within 40 s. By default the client
// would take more than five minutes, and forever with an emulator: its own pings end a pull stream in an orderly way, which cannot get
// through either. Google's client for Python pings as often.
var aliveness = keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}

// reconnect retries within 12 s; the default waits up to two minutes.
var reconnect = grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: time.Second, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 10 * time.Second},
	MinConnectTimeout: 20 * time.Second, // the default
}

// retry repeats a call on the errors on which Google's client would, for the client's one minute. But the waits end at 2 s instead of 60
// s, because all messages of a publish request's keys wait for it. Nothing is retried after the client was closed.
func retry(closed *atomic.Bool, on ...codes.Code) []gax.CallOption {
	return []gax.CallOption{gax.WithRetry(func() gax.Retryer {
		return &retryer{closed, gax.OnCodes(on, gax.Backoff{Initial: 100 * time.Millisecond, Max: 2 * time.Second, Multiplier: 2})}
	})}
}

type retryer struct {
	closed *atomic.Bool
	open   gax.Retryer
}

// Retry implements gax.Retryer.
func (r *retryer) Retry(err error) (time.Duration, bool) {
	if r.closed.Load() {
		return 0, false
	}
	return r.open.Retry(err)
}

// Scope is the name of the instrumentation scope of metrics and spans.
const Scope = "github.com/millrace-go/millrace/transport/pubsub"

// FlushTimeout bounds the sending of acks after the last handler has ended.
const FlushTimeout = 3 * time.Second

// Config says how to connect, as pubsub.Config describes it.
type Config struct {
	ProjectID, Endpoint, CredentialsFile string
	Tracing                              bool
	Options                              []option.ClientOption
}

// Client is Google's client with the pull streams that it opens.
type Client struct {
	*pubsub.Client
	Streams *stream.Streams
	closed  atomic.Bool
}

// Close closes the client. Running calls fail.
func (c *Client) Close() error {
	c.closed.Store(true)
	return c.Client.Close()
}

// New returns a client, which connects when it is first used.
func New(ctx context.Context, config Config) (*Client, error) {
	configured, err := config.options()
	if err != nil {
		return nil, err
	}
	c := &Client{Streams: stream.New()}
	options := slices.Concat([]option.ClientOption{
		option.WithGRPCDialOption(grpc.WithChainStreamInterceptor(c.Streams.Intercept)),
		option.WithGRPCDialOption(grpc.WithChainUnaryInterceptor(c.Streams.Settle)),
		option.WithGRPCDialOption(grpc.WithKeepaliveParams(aliveness)),
		option.WithGRPCDialOption(grpc.WithConnectParams(reconnect)),
	}, configured, config.Options)
	c.Client, err = pubsub.NewClientWithConfig(ctx, config.ProjectID, &pubsub.ClientConfig{
		EnableOpenTelemetryTracing: config.Tracing,
		TopicAdminCallOptions: &vkit.TopicAdminCallOptions{
			Publish: retry(&c.closed, codes.Aborted, codes.Canceled, codes.Internal, codes.ResourceExhausted, codes.Unknown, codes.Unavailable, codes.DeadlineExceeded),
		},
		SubscriptionAdminCallOptions: &vkit.SubscriptionAdminCallOptions{
			Acknowledge:       retry(&c.closed, codes.Unavailable),
			ModifyAckDeadline: retry(&c.closed, codes.Unavailable),
		},
	}, options...)
	if err != nil && strings.Contains(err.Error(), "could not parse key") { // Google's client has no error value for it
		return nil, fmt.Errorf("Config.CredentialsFile is %q: %w", config.CredentialsFile, errKey)
	}
	if err != nil {
		return nil, fmt.Errorf("connect to Pub/Sub: %w", err)
	}
	return c, nil
}
