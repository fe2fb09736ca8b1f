package pubsub

import (
	"context"
	"sync"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// pullStreams ends the pull streams of subscriptions that drain.
//
// Google's client (v2.6.0) offers two ways to stop receiving, and both harm a rolling deployment. Without
// ShutdownOptions it keeps the stream open until the last handler has ended: the service goes on sending to a client
// that no longer reads, and those messages come to nobody until their lease ends. With a timeout it closes the stream
// first, takes the stream's end for a failure, and stops sending acks. So the stream is ended beneath the client,
// which is told of an empty response instead.
//
// The client does not show which stream belongs to which subscriber, so each of ours asks for a byte budget that no
// other one asks for.
type pullStreams struct {
	mu      sync.Mutex
	last    int
	streams map[int]*pullGroup // by byte budget
}

// pullGroup is the streams of one subscription: the client replaces a broken one.
type pullGroup struct {
	quiet   bool
	streams map[*pullStream]struct{}
}

// maxOutstandingBytes is the client's own default for the bytes that one subscription holds.
const maxOutstandingBytes = 1_000_000_000

func newPullStreams() *pullStreams {
	return &pullStreams{last: maxOutstandingBytes, streams: map[int]*pullGroup{}}
}

// add returns a byte budget for a new subscription.
func (p *pullStreams) add() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last--
	p.streams[p.last] = &pullGroup{streams: map[*pullStream]struct{}{}}
	return p.last
}

// quiet ends the subscription's streams, and those that it may open yet. Its intake must have been cancelled before.
func (p *pullStreams) quiet(budget int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	group, ok := p.streams[budget]
	if !ok {
		return // its intake has ended already
	}
	group.quiet = true
	for stream := range group.streams {
		stream.end()
	}
}

func (p *pullStreams) remove(budget int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.streams, budget)
}

// intercept is a grpc.StreamClientInterceptor.
func (p *pullStreams) intercept(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if method != pubsubpb.Subscriber_StreamingPull_FullMethodName {
		return open(ctx, desc, cc, method, opts...)
	}
	ctx, cancel := context.WithCancel(ctx)
	stream, err := open(ctx, desc, cc, method, opts...)
	if err != nil {
		cancel()
		return nil, err
	}
	s := &pullStream{ClientStream: stream, all: p, cancel: cancel}
	context.AfterFunc(ctx, func() { p.forget(s) })
	return s, nil
}

func (p *pullStreams) register(budget int, s *pullStream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	group, ok := p.streams[budget]
	if !ok {
		return // not one of ours
	}
	s.budget = budget
	if group.quiet {
		s.end()
		return
	}
	group.streams[s] = struct{}{}
}

func (p *pullStreams) forget(s *pullStream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if group, ok := p.streams[s.budget]; ok {
		delete(group.streams, s)
	}
}

// pullStream is one StreamingPull call, which can be ended without the client's notice.
type pullStream struct {
	grpc.ClientStream
	all    *pullStreams
	cancel context.CancelFunc
	budget int // guarded by pullStreams.mu

	mu         sync.Mutex
	began      bool
	ended      bool
	properties *pubsubpb.StreamingPullResponse_SubscriptionProperties
}

// end ends the call to the service.
func (s *pullStream) end() {
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	s.cancel()
}

// SendMsg sends the client's first request, which names the byte budget, and its pings.
func (s *pullStream) SendMsg(m any) error {
	s.mu.Lock()
	first := !s.began
	s.began = true
	s.mu.Unlock()
	if request, ok := m.(*pubsubpb.StreamingPullRequest); ok && first {
		s.all.register(int(request.MaxOutstandingBytes), s)
	}
	s.mu.Lock()
	ended := s.ended // perhaps by register: after an error the client would open streams for ever
	s.mu.Unlock()
	if ended {
		return nil
	}
	return s.ClientStream.SendMsg(m)
}

// RecvMsg passes responses on. After end it returns one that is empty but for the subscription's properties, which the
// client takes from each response.
func (s *pullStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	response, ok := m.(*pubsubpb.StreamingPullResponse)
	if !ok {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil && s.ended {
		proto.Reset(response)
		response.SubscriptionProperties = s.properties
		return nil
	}
	if err == nil {
		s.properties = response.SubscriptionProperties
	}
	return err
}
