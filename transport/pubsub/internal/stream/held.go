package stream

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/grpc"
)

// endTimeout bounds the wait until the service ends a stream, after this side has ended it.
const endTimeout = time.Second

// Held is what an ordered subscription has received and neither acked nor nacked, in the order of receipt. While the
// subscription drains, its nacks are kept back: Google's client keeps them in a map, so a request would have them in random
// order, and the service would send later messages of a key to others while an earlier one is still handled here. All of
// them go back in order when the last handler has ended. It is safe for concurrent use.
type Held struct {
	mu       sync.Mutex
	received int
	places   map[string]int // by ack ID
	draining bool

	readers sync.WaitGroup // of its streams, while it drains
}

// NewHeld returns one that holds nothing.
func NewHeld() *Held { return &Held{places: map[string]int{}} }

func (h *Held) add(messages []*pubsubpb.ReceivedMessage) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, m := range messages {
		h.received++
		h.places[m.GetAckId()] = h.received
	}
}

// Drain keeps nacks back from now on. It is called before the first nack of a subscription that closes.
func (h *Held) Drain() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.draining = true
}

func (h *Held) drains() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.draining
}

// acked forgets the messages.
func (h *Held) acked(ids []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, id := range ids {
		delete(h.places, id)
	}
}

// nacked tells whether the nack is kept back until the end. Otherwise it is to be sent, and nacked forgets the messages.
// They all came from one subscription.
func (h *Held) nacked(ids []string) bool {
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

// Take returns the ack IDs in the order of receipt, and forgets them.
func (h *Held) Take() []string {
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

// Settle is a grpc.UnaryClientInterceptor. It sees what the client acks and nacks.
func (p *Streams) Settle(ctx context.Context, method string, request, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
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
func (p *Streams) held() (all []*Held) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, group := range p.groups {
		if group.held != nil {
			all = append(all, group.held)
		}
	}
	return all
}

// Left waits until the streams of a subscription that drains have ended, and returns the ack IDs of what is to go back, in order.
// Streams must have forgotten its group.
func (h *Held) Left() []string {
	h.readers.Wait()
	return h.Take()
}
