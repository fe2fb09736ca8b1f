package pubsub_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"cloud.google.com/go/pubsub/v2/pstest"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub"
)

// exactlyOnce is a transport with exactly-once delivery whose calls pass through one more option.
func exactlyOnce(t testing.TB, m *meter, options []option.ClientOption, more option.ClientOption) *pubsub.Transport {
	return connect(t, pubsub.Config{
		ClientOptions: append([]option.ClientOption{more}, options...), MeterProvider: m.provider,
		Subscription: pubsub.SubscriptionConfig{ExactlyOnce: true},
	})
}

// leasesEnd makes the server believe that every lease has ended.
func leasesEnd(server *pstest.Server) {
	server.SetTimeNowFunc(func() time.Time { return time.Now().Add(time.Minute) })
}

// nextAfterLeases ends leases until a message comes: the server may send it on a stream that is gone already, whose end it has not
// seen.
func nextAfterLeases(t *testing.T, server *pstest.Server, messages <-chan *message.Message) *message.Message {
	t.Helper()
	for ahead := time.Minute; ahead < 20*time.Minute; ahead += time.Minute {
		server.SetTimeNowFunc(func() time.Time { return time.Now().Add(ahead) })
		select {
		case msg := <-messages:
			return msg
		case <-time.After(5 * time.Second):
		}
	}
	require.Fail(t, "no message came")
	return nil
}

// TestRefusedAckIsVisible: with exactly-once delivery a late ack does not go unseen, and the message comes again.
func TestRefusedAckIsVisible(t *testing.T) {
	t.Parallel()
	server, options := fake(t)
	topic := devtest.Topic(t)
	var refused atomic.Bool
	m := newMeter()
	tr := exactlyOnce(t, m, options, calls("Acknowledge", func(any) error {
		if refused.CompareAndSwap(false, true) {
			return status.Error(codes.FailedPrecondition, "too late")
		}
		return nil
	}))
	_, messages := subscribe(t, tr, topic, transport.SubscriberConfig{Consumer: "c"})
	require.NoError(t, batcher(t, tr).Publish(topic, newMessage("", "1")))
	next(t, messages).Ack()
	require.Eventually(t, func() bool { return tr.AckFailures() == 1 }, wait, 10*time.Millisecond)
	leasesEnd(server)
	next(t, messages).Ack()
	require.Eventually(t, func() bool { return acked(server) == 1 }, wait, time.Millisecond)
	require.Equal(t, int64(1), tr.AckFailures())
	require.Equal(t, int64(1), m.collect(t)["millrace.pubsub.ack.failures ack"])
}

// TestAckThatSucceedsInTheEnd is no failure, and the message does not come again.
func TestAckThatSucceedsInTheEnd(t *testing.T) {
	t.Parallel()
	server, options := fake(t)
	topic := devtest.Topic(t)
	var tries atomic.Int64
	m := newMeter()
	tr := exactlyOnce(t, m, options, calls("Acknowledge", func(any) error {
		switch tries.Add(1) {
		case 1:
			return status.Error(codes.Unavailable, "try again")
		case 2, 3:
			return status.Error(codes.Internal, "try again")
		}
		return nil
	}))
	s, messages := subscribe(t, tr, topic, transport.SubscriberConfig{Consumer: "c"})
	require.NoError(t, batcher(t, tr).Publish(topic, newMessage("", "1")))
	next(t, messages).Ack()
	require.NoError(t, s.Close(), "it waits for what becomes of the ack")
	require.Equal(t, 1, acked(server))
	require.Equal(t, 1, server.Messages()[0].Deliveries)
	require.Equal(t, int64(4), tries.Load())
	require.Zero(t, tr.AckFailures())
	require.NotContains(t, m.collect(t), "millrace.pubsub.ack.failures ack")
}

// TestRefusedNackIsVisible: the message comes again when its lease has ended, which takes longer than the nack says.
func TestRefusedNackIsVisible(t *testing.T) {
	t.Parallel()
	server, options := fake(t)
	topic := devtest.Topic(t)
	m := newMeter()
	tr := exactlyOnce(t, m, options, calls("ModifyAckDeadline", func(request any) error {
		if request.(*pubsubpb.ModifyAckDeadlineRequest).AckDeadlineSeconds == 0 {
			return status.Error(codes.FailedPrecondition, "too late")
		}
		return nil
	}))
	_, messages := subscribe(t, tr, topic, transport.SubscriberConfig{Consumer: "c"})
	require.NoError(t, batcher(t, tr).Publish(topic, newMessage("", "1")))
	next(t, messages).Nack()
	require.Eventually(t, func() bool { return m.collect(t)["millrace.pubsub.ack.failures nack"] == 1 }, wait, 10*time.Millisecond)
	require.Zero(t, tr.AckFailures(), "no ack")
	leasesEnd(server)
	next(t, messages).Ack()
	require.Eventually(t, func() bool { return acked(server) == 1 }, wait, time.Millisecond)
}

// TestCloseDoesNotWaitForALongDeadline: what becomes of an ack is worth a while, not ten minutes.
func TestCloseDoesNotWaitForALongDeadline(t *testing.T) {
	t.Parallel()
	_, options := fake(t)
	topic := devtest.Topic(t)
	var up atomic.Bool
	tr := connect(t, pubsub.Config{
		ClientOptions: append([]option.ClientOption{calls("Acknowledge", func(any) error {
			if up.Load() {
				return nil
			}
			return status.Error(codes.Unavailable, "try again")
		})}, options...),
		Subscription: pubsub.SubscriptionConfig{ExactlyOnce: true, AckDeadline: 600 * time.Second},
		DrainTimeout: time.Second,
	})
	defer up.Store(true) // the client's tries end
	s, messages := subscribe(t, tr, topic, transport.SubscriberConfig{Consumer: "c"})
	require.NoError(t, batcher(t, tr).Publish(topic, newMessage("", "1")))
	next(t, messages).Ack()
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	select {
	case err := <-closed:
		require.NoError(t, err)
	case <-time.After(wait):
		t.Fatal("Close hangs")
	}
	require.Equal(t, int64(1), tr.AckFailures(), "it may not have arrived")
}

// breaker breaks pull streams.
type breaker struct {
	mu      sync.Mutex
	streams []*breakable
	opened  int
}

type breakable struct {
	grpc.ClientStream
	cancel context.CancelFunc
	broken atomic.Pointer[error]
}

func (b *breaker) option() option.ClientOption {
	return option.WithGRPCDialOption(grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		if !strings.HasSuffix(method, "/StreamingPull") {
			return open(ctx, desc, cc, method, opts...)
		}
		ctx, cancel := context.WithCancel(ctx)
		stream, err := open(ctx, desc, cc, method, opts...)
		if err != nil {
			cancel()
			return nil, err
		}
		s := &breakable{ClientStream: stream, cancel: cancel}
		b.mu.Lock()
		defer b.mu.Unlock()
		b.streams = append(b.streams, s)
		b.opened++
		return s, nil
	}))
}

// breakAll ends the streams that are open with the error.
func (b *breaker) breakAll(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.streams {
		s.broken.Store(&err)
		s.cancel()
	}
	b.streams = nil
}

func (b *breaker) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.opened
}

func (s *breakable) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if broken := s.broken.Load(); err != nil && broken != nil {
		return *broken
	}
	return err
}

// TestStreamBreaks while handlers run. What is a short outage to Google's client goes unnoticed; an error that ends its
// receiving costs the acks of those handlers, so that their messages come again. Nothing is lost, and it goes on.
func TestStreamBreaks(t *testing.T) {
	t.Parallel()
	for code, deliveries := range map[codes.Code]int{codes.Unavailable: 1, codes.FailedPrecondition: 2} {
		t.Run(code.String(), func(t *testing.T) {
			t.Parallel()
			for _, eod := range []bool{false, true} {
				server, options := fake(t)
				topic := devtest.Topic(t)
				b := &breaker{}
				tr := connect(t, pubsub.Config{
					ClientOptions: append([]option.ClientOption{b.option()}, options...),
					Subscription:  pubsub.SubscriptionConfig{ExactlyOnce: eod, AckDeadline: 10 * time.Second},
				})
				s, messages := subscribe(t, tr, topic, transport.SubscriberConfig{Consumer: "c"})
				require.NoError(t, batcher(t, tr).Publish(topic, newMessage("", "running")))
				running := next(t, messages)
				b.breakAll(status.Error(code, "broken"))
				opened := func() bool { return b.count() == 2 }
				if deliveries == 1 {
					require.Eventually(t, opened, wait, time.Millisecond)
				}
				require.NoError(t, running.Context().Err(), "the handler goes on")
				running.Ack()
				if deliveries > 1 {
					// Not before: the server would send it on the broken stream, whose end it has not seen.
					require.Eventually(t, opened, wait, time.Millisecond)
					again := nextAfterLeases(t, server, messages)
					require.Equal(t, running.UUID, again.UUID)
					again.Ack()
				}
				require.NoError(t, batcher(t, tr).Publish(topic, newMessage("", "afterwards")))
				msg := next(t, messages)
				require.Equal(t, "afterwards", string(msg.Payload))
				msg.Ack()
				require.Eventually(t, func() bool { return acked(server) == 2 }, wait, time.Millisecond)
				for _, m := range server.Messages() {
					if string(m.Data) == "running" {
						require.True(t, m.Deliveries == deliveries || deliveries > 1 && m.Deliveries > deliveries, m.Deliveries)
					}
				}
				require.NoError(t, s.Close())
				lost := int64(0)
				if eod {
					lost = int64(deliveries - 1)
				}
				require.Equal(t, lost, tr.AckFailures(), "a lost ack is visible where it can be")
			}
		})
	}
}

// TestExactlyOnceDeliversBothOfWhatIsSentTwice: the option is about one message of Pub/Sub's. What a relay sends twice are two of
// them, with one event's ID, and only a claim can tell.
func TestExactlyOnceDeliversBothOfWhatIsSentTwice(t *testing.T) {
	t.Parallel()
	topic := devtest.Topic(t)
	tr := connect(t, pubsub.Config{ClientOptions: emulator(t), Subscription: pubsub.SubscriptionConfig{ExactlyOnce: true}})
	_, messages := subscribe(t, tr, topic, transport.SubscriberConfig{Consumer: "c"})
	event := newMessage("", "1")
	for range 2 {
		require.NoError(t, batcher(t, tr).Publish(topic, event))
	}
	for range 2 {
		msg := next(t, messages)
		require.Equal(t, event.UUID, msg.UUID)
		msg.Ack()
	}
}
