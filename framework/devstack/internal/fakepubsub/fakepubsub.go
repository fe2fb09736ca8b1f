// Package fakepubsub is pstest, the fake of Pub/Sub in Google's client library, which in addition pushes: pstest stores a subscription's
// push configuration and does nothing with it.
package fakepubsub

import (
	"context"
	"net/http"
	"sync"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"cloud.google.com/go/pubsub/v2/pstest"
	"google.golang.org/protobuf/proto"
)

const (
	interval    = 10 * time.Millisecond // between two pulls of messages to push; pstest's own streams use the same
	concurrency = 100                   // concurrent requests of one subscription
	nackSeconds = 1                     // until a nacked message is redelivered, as in Google's emulator
)

// Server is a running fake.
type Server struct {
	Addr string // host:port

	fake   *pstest.Server
	client *http.Client
	life   context.Context
	end    context.CancelFunc
	pushes sync.WaitGroup

	mu     sync.Mutex
	closed bool
	stops  map[string]context.CancelFunc // they stop pushing; by the name of the subscription
}

// Start runs a fake at the address, such as 127.0.0.1:0.
func Start(address string) *Server {
	s := &Server{stops: map[string]context.CancelFunc{}}
	s.life, s.end = context.WithCancel(context.Background())
	s.client = &http.Client{
		Transport:     &http.Transport{MaxIdleConnsPerHost: concurrency},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // a redirect is a nack
	}
	s.mu.Lock() // no request is handled before s.fake is set
	defer s.mu.Unlock()
	s.fake = pstest.NewServerWithAddress(address,
		pstest.ServerReactorOption{FuncName: "CreateSubscription", Reactor: s},
		pstest.ServerReactorOption{FuncName: "UpdateSubscription", Reactor: s})
	s.Addr = s.fake.Addr
	return s
}

// Close stops the fake. It returns when no request to an endpoint is running any more.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.end()
	s.pushes.Wait()
	s.client.CloseIdleConnections()
	return s.fake.Close()
}

// React implements pstest.Reactor: it sees a request before pstest, while pstest holds its lock, and leaves the request to pstest.
func (s *Server) React(request any) (handled bool, answer any, err error) {
	switch r := request.(type) {
	case *pubsubpb.Subscription:
		s.follow(r.GetName())
	case *pubsubpb.UpdateSubscriptionRequest:
		s.follow(r.GetSubscription().GetName())
	}
	return false, nil, nil
}

// follow begins to push the subscription's messages. It uses the push configuration that pstest stores after React returns.
func (s *Server) follow(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	if stop := s.stops[name]; stop != nil {
		stop()
	}
	ctx, stop := context.WithCancel(s.life)
	s.stops[name] = stop
	s.pushes.Go(func() {
		defer stop()
		s.push(ctx, name)
	})
}

// push sends the subscription's messages to its endpoint until ctx ends or the subscription is deleted.
func (s *Server) push(ctx context.Context, name string) {
	stored, err := s.fake.GServer.GetSubscription(ctx, &pubsubpb.GetSubscriptionRequest{Subscription: name})
	if err != nil {
		return // pstest has refused the request
	}
	sub := proto.CloneOf(stored)
	if sub.GetPushConfig().GetPushEndpoint() == "" {
		return
	}
	slots := make(chan struct{}, concurrency)
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for ; ctx.Err() == nil; wait(ctx, ticker) {
		free := cap(slots) - len(slots)
		if free == 0 {
			continue
		}
		pulled, err := s.fake.GServer.Pull(ctx, &pubsubpb.PullRequest{
			Subscription: name, MaxMessages: int32(free), ReturnImmediately: true, //nolint:staticcheck // deprecated because a real service may then answer nothing although it has something
		})
		if err != nil {
			return // it was deleted
		}
		for _, shared := range pulled.GetReceivedMessages() {
			message := proto.CloneOf(shared) // pstest counts delivery attempts in the shared message
			slots <- struct{}{}
			s.pushes.Go(func() {
				s.settle(name, message.GetAckId(), s.send(sub, message))
				<-slots
			})
		}
	}
}

func wait(ctx context.Context, ticker *time.Ticker) {
	select {
	case <-ctx.Done():
	case <-ticker.C:
	}
}

// send reports whether the endpoint acknowledged the message before its ack deadline.
func (s *Server) send(sub *pubsubpb.Subscription, message *pubsubpb.ReceivedMessage) (acked bool) {
	ctx, cancel := context.WithTimeout(s.life, time.Duration(sub.GetAckDeadlineSeconds())*time.Second)
	defer cancel()
	request, err := newRequest(ctx, sub, message)
	if err != nil {
		return false
	}
	response, err := s.client.Do(request)
	if err != nil {
		return false
	}
	_ = response.Body.Close()
	switch response.StatusCode { // https://cloud.google.com/pubsub/docs/push#receive_push
	case http.StatusOK, http.StatusCreated, http.StatusAccepted, http.StatusNoContent:
		return true
	}
	return false
}

// settle acks or nacks. It ignores errors, because the subscription may have been deleted meanwhile.
func (s *Server) settle(subscription, id string, acked bool) {
	if acked {
		_, _ = s.fake.GServer.Acknowledge(s.life, &pubsubpb.AcknowledgeRequest{Subscription: subscription, AckIds: []string{id}})
		return
	}
	_, _ = s.fake.GServer.ModifyAckDeadline(s.life, &pubsubpb.ModifyAckDeadlineRequest{
		Subscription: subscription, AckIds: []string{id}, AckDeadlineSeconds: nackSeconds,
	})
}
