package stream

import (
	"context"
	"io"
	"testing"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
)

// endedStream is what gRPC makes of a stream whose context has ended.
type endedStream struct {
	grpc.ClientStream
	ctx context.Context
}

func (s *endedStream) SendMsg(any) error {
	if s.ctx.Err() != nil {
		return io.EOF
	}
	return nil
}

func (s *endedStream) RecvMsg(any) error { return s.ctx.Err() }

// TestStreamOpenedWhileDraining: the client opens a broken stream again after the subscription has been closed. An error
// would make it try for ever, because it does not look whether anybody still wants the stream.
func TestStreamOpenedWhileDraining(t *testing.T) {
	t.Parallel()
	streams := New()
	group := streams.Add(64<<20, nil)
	defer streams.Remove(group)
	streams.Quiet(group)
	open := func(ctx context.Context, _ *grpc.StreamDesc, _ *grpc.ClientConn, _ string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
		return &endedStream{ctx: ctx}, nil
	}
	stream, err := streams.Intercept(t.Context(), nil, nil, pubsubpb.Subscriber_StreamingPull_FullMethodName, open)
	require.NoError(t, err)
	require.NoError(t, stream.SendMsg(&pubsubpb.StreamingPullRequest{MaxOutstandingBytes: int64(group.Budget())}))
	require.NoError(t, stream.RecvMsg(&pubsubpb.StreamingPullResponse{}))
}
