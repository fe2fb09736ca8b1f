// Package stream ends pull streams beneath Google's client, and holds what an ordered subscription gives back in order.
package stream

import (
	"context"
	"sync"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// Streams ends the pull streams of subscriptions that drain: at once, or for an ordered subscription when its last
// handler has ended.
//
// Google's client (v2.6.0) offers two ways to stop receiving, and both harm a rolling deployment. Without
// ShutdownOptions it keeps the stream open until the last handler has ended: the service goes on sending to a client
// that no longer reads, and those messages come to nobody until their lease ends. With a timeout it closes the stream
// first, takes the stream's end for a failure, and stops sending acks. So the stream is ended beneath the client,
// which is told of an empty response instead.
//
// An ordered subscription keeps its stream, because a service may send the later messages of a key elsewhere when the
// stream of an earlier one ends, though that one is still handled here: Google's emulator does. What arrives meanwhile is
// read here, and goes back when the stream has ended (held).
//
// The client does not show which stream belongs to which subscriber, so each of ours asks for a byte budget that no
// other one asks for.
type Streams struct {
	mu     sync.Mutex
	groups map[int]*Group // by byte budget
}

// Group is the streams of one subscription: the client replaces a broken one.
type Group struct {
	budget  int   // in bytes
	held    *Held // nil: not ordered
	quiet   bool
	streams map[*call]struct{}
}

// New returns streams that Intercept and Settle are to see.
func New() *Streams { return &Streams{groups: map[int]*Group{}} }

// Add returns the group of a new subscription, which is ordered if held is not nil. Its byte budget is the largest up to most
// that no other one has.
func (p *Streams) Add(most int, held *Held) *Group {
	p.mu.Lock()
	defer p.mu.Unlock()
	group := &Group{budget: most, held: held, streams: map[*call]struct{}{}}
	for p.groups[group.budget] != nil {
		group.budget--
	}
	p.groups[group.budget] = group
	return group
}

// Quiet ends the group's streams, and those that it may open yet; the streams of an ordered one end with its last message.
// Its intake must have been cancelled before.
func (p *Streams) Quiet(group *Group) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.groups[group.budget] != group {
		return // its intake has ended already
	}
	group.quiet = true
	for stream := range group.streams {
		if group.held != nil {
			group.held.readers.Go(stream.drain)
		} else {
			stream.end()
		}
	}
}

// Remove forgets the group.
func (p *Streams) Remove(group *Group) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.groups, group.budget)
}

// Intercept is a grpc.StreamClientInterceptor.
func (p *Streams) Intercept(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if method != pubsubpb.Subscriber_StreamingPull_FullMethodName {
		return open(ctx, desc, cc, method, opts...)
	}
	ctx, cancel := context.WithCancel(ctx)
	stream, err := open(ctx, desc, cc, method, opts...)
	if err != nil {
		cancel()
		return nil, err
	}
	s := &call{ClientStream: stream, all: p, cancel: cancel, drained: make(chan struct{})}
	context.AfterFunc(ctx, func() { p.forget(s) })
	return s, nil
}

// Budget is how many bytes the subscription is to ask for: it names its streams.
func (g *Group) Budget() int { return g.budget }

func (p *Streams) register(budget int, s *call) {
	p.mu.Lock()
	defer p.mu.Unlock()
	group, ok := p.groups[budget]
	if !ok {
		return // not one of ours
	}
	s.group, s.held = group, group.held
	if group.quiet {
		s.end()
		close(s.drained)
		return
	}
	group.streams[s] = struct{}{}
}

func (p *Streams) forget(s *call) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.group != nil {
		delete(s.group.streams, s)
	}
}

// call is one StreamingPull call, which can be ended without the client's notice.
type call struct {
	grpc.ClientStream
	all    *Streams
	cancel context.CancelFunc
	group  *Group // guarded by Streams.mu
	held   *Held  // set by the first request, before anything is received

	receiving sync.Mutex    // held by what reads the stream
	drained   chan struct{} // closed when drain has read it to its end

	mu         sync.Mutex
	began      bool
	ended      bool
	properties *pubsubpb.StreamingPullResponse_SubscriptionProperties
}

// end ends the call to the service.
func (s *call) end() {
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	s.cancel()
}

// SendMsg sends the client's first request, which names the byte budget, and its pings.
func (s *call) SendMsg(m any) error {
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

// drains tells whether the stream is that of an ordered subscription that drains.
func (s *call) drains() bool { return s.held != nil && s.held.drains() }

// drain reads what the service still sends, until the stream ends.
func (s *call) drain() {
	defer close(s.drained)
	s.receiving.Lock()
	defer s.receiving.Unlock()
	for {
		response := &pubsubpb.StreamingPullResponse{}
		if s.ClientStream.RecvMsg(response) != nil {
			return
		}
		s.held.add(response.ReceivedMessages)
	}
}

// CloseSend ends this side of the stream. The client does so when it has sent its last ack; then the service ends its
// side, and what it sent before was read.
func (s *call) CloseSend() error {
	err := s.ClientStream.CloseSend()
	if s.drains() {
		select {
		case <-s.drained:
		case <-time.After(endTimeout): // the client ends it
		}
	}
	return err
}

// RecvMsg passes responses on. After end, and while drain reads, it returns one that is empty but for the subscription's
// properties, which the client takes from each response.
func (s *call) RecvMsg(m any) error {
	response, ok := m.(*pubsubpb.StreamingPullResponse)
	if !ok {
		return s.ClientStream.RecvMsg(m)
	}
	s.receiving.Lock()
	defer s.receiving.Unlock()
	err := s.ClientStream.RecvMsg(response)
	if err == nil && s.held != nil {
		s.held.add(response.ReceivedMessages)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if (err != nil && s.ended) || s.drains() {
		proto.Reset(response)
		response.SubscriptionProperties = s.properties
		return nil
	}
	if err == nil {
		s.properties = response.SubscriptionProperties
	}
	return err
}
