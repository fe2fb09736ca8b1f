package pubsub

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/grpc"
)

const (
	// endTimeout bounds the wait until the service ends a stream, after this side has ended it.
	endTimeout = time.Second
	// maxAckIDs is how many messages one request gives back. Pub/Sub refuses requests above 512 KiB.
	maxAckIDs = 1000
)

// held is what an ordered subscription has received and neither acked nor nacked, in the order of receipt. While the
// subscription drains, its nacks are kept back: Google's client keeps them in a map, so a request would have them in random
// order, and the service would send later messages of a key to others while an earlier one is still handled here. All of
// them go back in order when the last handler has ended. It is safe for concurrent use.
type held struct {
	mu       sync.Mutex
	received int
	places   map[string]int // by ack ID
	draining bool

	readers sync.WaitGroup // of its streams, while it drains
}

func newHeld() *held { return &held{places: map[string]int{}} }

func (h *held) add(messages []*pubsubpb.ReceivedMessage) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, m := range messages {
		h.received++
		h.places[m.GetAckId()] = h.received
	}
}

func (h *held) drain() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.draining = true
}

func (h *held) drains() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.draining
}

// acked forgets the messages.
func (h *held) acked(ids []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, id := range ids {
		delete(h.places, id)
	}
}

// nacked tells whether the nack is kept back until the end. Otherwise it is to be sent, and nacked forgets the messages.
// They all came from one subscription.
func (h *held) nacked(ids []string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, ok := h.places[ids[0]]; ok && h.draining {
		return true
	}
	for _, id := range ids {
		delete(h.places, id)
	}
	return false
}

// take returns the ack IDs in the order of receipt, and forgets them.
func (h *held) take() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	ids := make([]string, 0, len(h.places))
	for id := range h.places {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b string) int { return cmp.Compare(h.places[a], h.places[b]) })
	clear(h.places)
	return ids
}

// settle is a grpc.UnaryClientInterceptor. It sees what the client acks and nacks.
func (p *pullStreams) settle(ctx context.Context, method string, request, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	switch r := request.(type) {
	case *pubsubpb.AcknowledgeRequest:
		for _, h := range p.held() {
			h.acked(r.AckIds)
		}
	case *pubsubpb.ModifyAckDeadlineRequest:
		if r.AckDeadlineSeconds != 0 || len(r.AckIds) == 0 {
			break // a lease that is renewed
		}
		for _, h := range p.held() {
			if h.nacked(r.AckIds) {
				return nil
			}
		}
	}
	return invoke(ctx, method, request, reply, cc, opts...)
}

// held returns what ordered subscriptions hold.
func (p *pullStreams) held() (all []*held) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, group := range p.groups {
		if group.held != nil {
			all = append(all, group.held)
		}
	}
	return all
}

// giveBack nacks what an ordered subscription still holds, in order. Its streams must have ended, and pullStreams must have
// forgotten it. If the request fails, the messages are delivered again when their leases end.
func (s *subscription) giveBack() {
	s.held.readers.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	for ids := range slices.Chunk(s.held.take(), maxAckIDs) {
		err := s.transport.client.SubscriptionAdminClient.ModifyAckDeadline(ctx, &pubsubpb.ModifyAckDeadlineRequest{Subscription: s.name, AckIds: ids})
		if err != nil {
			s.log.Warn("messages could not be given back: they are delivered again when their leases end", slog.Int("messages", len(ids)), slog.Any("error", err))
			return
		}
	}
}
