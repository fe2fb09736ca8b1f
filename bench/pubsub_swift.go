package main

import (
	"context"
	"net"
	"slices"
	"sync"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"cloud.google.com/go/pubsub/v2/pstest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// swiftBatch is how many messages go into one response at most.
const swiftBatch = 250

// swift is pstest with subscriptions of its own. Those of pstest look every 10 ms whether a stream takes a message, hand
// out about one each time, and go through all that are stored for it: whoever consumes gets 90 a second. These are queues,
// which hand out what they have as fast as the client reads, in the order of publishing, as the service does for one
// client. They have no leases that end, so they are for consumers that live. It is safe for concurrent use.
type swift struct {
	*pstest.GServer // topics and what is published
	fake            *pstest.Server
	server          *grpc.Server
	address         string
	serving         sync.WaitGroup

	mu     sync.Mutex
	queues map[string]*queue // by the subscription's name
}

// queue is a subscription. Its fields are guarded by swift.mu.
type queue struct {
	proto   *pubsubpb.Subscription
	pending []*pubsubpb.ReceivedMessage
	leased  map[string]*pubsubpb.ReceivedMessage // by ack ID
	nacked  int                                  // deliveries
	filled  chan struct{}                        // has one when there may be something pending
}

func startSwift() (*swift, error) {
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	fake := pstest.NewServer()
	s := &swift{GServer: &fake.GServer, fake: fake, server: grpc.NewServer(), address: l.Addr().String(), queues: map[string]*queue{}}
	pubsubpb.RegisterPublisherServer(s.server, s)
	pubsubpb.RegisterSubscriberServer(s.server, s)
	s.serving.Go(func() { _ = s.server.Serve(l) }) // ends with stop
	return s, nil
}

func (s *swift) stop() error {
	s.server.Stop()
	s.serving.Wait()
	return s.fake.Close()
}

// unsettled counts the messages that are not acked, and the deliveries that were nacked.
func (s *swift) unsettled() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.queues {
		n += len(q.pending) + len(q.leased) + q.nacked
	}
	return n
}

// Publish implements pubsubpb.PublisherServer.
func (s *swift) Publish(ctx context.Context, request *pubsubpb.PublishRequest) (*pubsubpb.PublishResponse, error) {
	s.mu.Lock() // also for the order of two requests
	defer s.mu.Unlock()
	response, err := s.GServer.Publish(ctx, request) // gives each message its ID
	if err != nil {
		return nil, err
	}
	for _, q := range s.queues {
		if q.proto.Topic == request.Topic {
			for _, m := range request.Messages {
				q.pending = append(q.pending, &pubsubpb.ReceivedMessage{AckId: m.MessageId, Message: m})
			}
			q.wake()
		}
	}
	return response, nil
}

// CreateSubscription implements pubsubpb.SubscriberServer.
func (s *swift) CreateSubscription(_ context.Context, sub *pubsubpb.Subscription) (*pubsubpb.Subscription, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.queues[sub.Name]; ok {
		return nil, status.Errorf(codes.AlreadyExists, "subscription %q", sub.Name)
	}
	s.queues[sub.Name] = &queue{proto: sub, leased: map[string]*pubsubpb.ReceivedMessage{}, filled: make(chan struct{}, 1)}
	return sub, nil
}

// GetSubscription implements pubsubpb.SubscriberServer.
func (s *swift) GetSubscription(_ context.Context, request *pubsubpb.GetSubscriptionRequest) (*pubsubpb.Subscription, error) {
	q, err := s.queue(request.Subscription)
	if err != nil {
		return nil, err
	}
	return q.proto, nil
}

func (s *swift) queue(name string) (*queue, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q, ok := s.queues[name]
	if !ok {
		return nil, status.Errorf(codes.NotFound, "subscription %q", name)
	}
	return q, nil
}

// Pull implements pubsubpb.SubscriberServer: it answers at once.
func (s *swift) Pull(_ context.Context, request *pubsubpb.PullRequest) (*pubsubpb.PullResponse, error) {
	q, err := s.queue(request.Subscription)
	if err != nil {
		return nil, err
	}
	return &pubsubpb.PullResponse{ReceivedMessages: s.take(q, int(request.MaxMessages))}, nil
}

func (s *swift) take(q *queue, limit int) []*pubsubpb.ReceivedMessage {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := min(limit, len(q.pending))
	taken := slices.Clone(q.pending[:n])
	q.pending = q.pending[n:]
	for _, m := range taken {
		q.leased[m.AckId] = m
	}
	return taken
}

// wake is called with the lock held.
func (q *queue) wake() {
	select {
	case q.filled <- struct{}{}:
	default:
	}
}

// Acknowledge implements pubsubpb.SubscriberServer.
func (s *swift) Acknowledge(_ context.Context, request *pubsubpb.AcknowledgeRequest) (*emptypb.Empty, error) {
	q, err := s.queue(request.Subscription)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range request.AckIds {
		delete(q.leased, id)
	}
	return &emptypb.Empty{}, nil
}

// ModifyAckDeadline implements pubsubpb.SubscriberServer: a deadline of 0 is a nack.
func (s *swift) ModifyAckDeadline(_ context.Context, request *pubsubpb.ModifyAckDeadlineRequest) (*emptypb.Empty, error) {
	q, err := s.queue(request.Subscription)
	if err != nil || request.AckDeadlineSeconds > 0 {
		return &emptypb.Empty{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range request.AckIds {
		if m, ok := q.leased[id]; ok {
			delete(q.leased, id)
			q.pending = append(q.pending, m)
			q.nacked++
		}
	}
	q.wake()
	return &emptypb.Empty{}, nil
}

// StreamingPull implements pubsubpb.SubscriberServer. It takes no acks: Google's client sends them by calls of their own.
func (s *swift) StreamingPull(stream pubsubpb.Subscriber_StreamingPullServer) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	q, err := s.queue(first.Subscription)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	pings := make(chan struct{})
	s.serving.Go(func() { // Recv ends with this call
		defer cancel()
		for {
			if _, err := stream.Recv(); err != nil {
				return
			}
			select {
			case pings <- struct{}{}:
			case <-ctx.Done():
				return
			}
		}
	})
	for {
		messages := s.take(q, swiftBatch)
		if len(messages) == 0 {
			select {
			case <-q.filled:
				continue
			case <-pings: // the client wants an answer, of whatever kind
			case <-ctx.Done():
				return nil
			}
		}
		if err := stream.Send(&pubsubpb.StreamingPullResponse{
			ReceivedMessages:       messages,
			SubscriptionProperties: &pubsubpb.StreamingPullResponse_SubscriptionProperties{MessageOrderingEnabled: q.proto.EnableMessageOrdering},
		}); err != nil {
			return err
		}
	}
}
