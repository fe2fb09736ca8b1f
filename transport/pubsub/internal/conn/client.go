// Package conn is Google's client as this transport uses it.
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

// retry tries a call again, for the client's minute, on what the client tries it again. But the waits end at 2 s, not at
// 60 s: everything of a publish request's keys waits with it. And nothing is tried again with a client that was closed.
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

// Scope names the origin of instruments and spans.
const Scope = "github.com/millrace-go/millrace/transport/pubsub"

// FlushTimeout bounds the sending of acks after the last handler has ended.
const FlushTimeout = 3 * time.Second

// Config is how to connect, as pubsub.Config describes it.
type Config struct {
	ProjectID, Endpoint, CredentialsFile string
	Tracing                              bool
	Options                              []option.ClientOption
}

// Client is Google's client, and the pull streams that it opens.
type Client struct {
	*pubsub.Client
	Streams *stream.Streams
	closed  atomic.Bool
}

// Close closes the client. What it has under way fails.
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
