package pubsub_test

import (
	"context"
	"sync"
	"testing"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/stretchr/testify/require"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
)

// wire notes in which order the broker sends the events of each key, each at its first time.
type wire struct {
	mu    sync.Mutex
	seen  map[string]bool
	order map[string][]string
}

func newWire() *wire { return &wire{seen: map[string]bool{}, order: map[string][]string{}} }

func (w *wire) option() option.ClientOption {
	return option.WithGRPCDialOption(grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		stream, err := open(ctx, desc, cc, method, opts...)
		if err != nil {
			return nil, err
		}
		return &wireStream{stream, w}, nil
	}))
}

func (w *wire) note(m *pubsubpb.PubsubMessage) {
	w.mu.Lock()
	defer w.mu.Unlock()
	id := m.OrderingKey + "/" + string(m.Data)
	if !w.seen[id] {
		w.seen[id] = true
		w.order[m.OrderingKey] = append(w.order[m.OrderingKey], string(m.Data))
	}
}

// requireOrder fails unless the events were handled in the order in which they were sent.
func (w *wire) requireOrder(t *testing.T, got *record) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	require.Equal(t, w.order, got.order)
}

type wireStream struct {
	grpc.ClientStream
	wire *wire
}

func (s *wireStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if response, ok := m.(*pubsubpb.StreamingPullResponse); ok && err == nil {
		for _, received := range response.ReceivedMessages {
			s.wire.note(received.Message)
		}
	}
	return err
}
