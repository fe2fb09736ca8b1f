package receive

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace-go/millrace/transport/pubsub/internal/conn"
)

const (
	// maxLease is how long the lease of one message is renewed: longer than any handler should run. It also ends a
	// longer wish of Delivery.RetryAfter.
	maxLease = time.Hour
	// maxOrderedLease is the same for ordered messages: longer than Pub/Sub keeps any. The later messages of a key wait in
	// Google's client for the first, which is retried in place, and their leases count from their receipt. If one ended
	// meanwhile, another process would get the message, before or at the same time.
	maxOrderedLease = 32 * 24 * time.Hour
	// The waits before a receive that has failed is tried again: the first and the largest. It doubles each time.
	firstReceiveRetry = 100 * time.Millisecond
	lastReceiveRetry  = 30 * time.Second
	// maxAckIDs is how many messages one request gives back. Pub/Sub refuses requests above 512 KiB.
	maxAckIDs = 1000
)

// Pull is the intake by StreamingPull.
func (s *Subscription) Pull(ctx, messages context.Context) {
	s.receive(ctx, messages)
	if s.held != nil {
		s.giveBack()
	}
}

// receive goes on over every failure of the service.
func (s *Subscription) receive(ctx, messages context.Context) {
	streams := s.shared.Client.Streams
	group := streams.Add(s.config.MaxOutstandingBytes, s.held)
	defer streams.Remove(group)
	defer context.AfterFunc(ctx, func() { streams.Quiet(group) })()

	var watch *sync.Once // of one stream
	handle := func(client context.Context, m *pubsub.Message) {
		watch.Do(func() { context.AfterFunc(client, s.giveUp) })
		// The client's context ends with the intake or with the stream, and what was handed to a handler is to finish: only
		// its span goes on.
		s.handle(withSpan(messages, client), m, client.Done())
	}
	retry := firstReceiveRetry
	for {
		began := time.Now()
		watch = &sync.Once{}
		err := s.client(group.Budget()).Receive(ctx, handle)
		if ctx.Err() != nil {
			return
		}
		if s.held != nil {
			s.held.Take() // what a failed stream brought is delivered again
		}
		if time.Since(began) > lastReceiveRetry {
			retry = firstReceiveRetry // it had worked
		}
		s.log.Error("receiving stopped", slog.Any("error", err), slog.Duration("retry_in", retry))
		select {
		case <-ctx.Done():
			return
		case <-time.After(retry):
		}
		retry = min(2*retry, lastReceiveRetry)
		if status.Code(err) == codes.NotFound {
			s.createAgain(ctx)
		}
	}
}

// withSpan returns ctx with the span that from carries. It is not inlined: the stack of a message's goroutine, which
// begins small, has to grow otherwise.
//
//go:noinline
func withSpan(ctx, from context.Context) context.Context {
	if span := trace.SpanFromContext(from); span.SpanContext().IsValid() {
		return trace.ContextWithSpan(ctx, span)
	}
	return ctx
}

// client returns a new client for the subscription, because one client receives only once at a time. The budget, in
// bytes, names its streams.
func (s *Subscription) client(budget int) *pubsub.Subscriber {
	client := s.shared.Client.Subscriber(s.config.Name)
	client.ReceiveSettings = s.receiveSettings(budget)
	return client
}

// lease is how long the lease of one message is renewed.
func (s *Subscription) lease() time.Duration {
	if s.config.Ordered {
		return maxOrderedLease
	}
	return maxLease
}

func (s *Subscription) receiveSettings(budget int) pubsub.ReceiveSettings {
	return pubsub.ReceiveSettings{
		MaxExtension: s.lease(),
		// Both, or exactly-once delivery raises the extension to 60 s and a killed consumer's messages stay away as long.
		MinDurationPerAckExtension: s.config.AckDeadline,
		MaxDurationPerAckExtension: s.config.AckDeadline,
		MaxOutstandingMessages:     s.config.Concurrency + s.config.Prefetch,
		MaxOutstandingBytes:        budget,
		NumGoroutines:              s.config.Streams,
		// No ShutdownOptions: stream.Streams says why. The client's endless wait is bounded by our handle, which returns
		// within the drain timeout.
	}
}

// giveBack nacks what an ordered subscription still holds, in order. If the request fails, the messages are delivered again when
// their leases end.
func (s *Subscription) giveBack() {
	left := s.held.Left()
	ctx, cancel := context.WithTimeout(context.Background(), conn.FlushTimeout)
	defer cancel()
	for ids := range slices.Chunk(left, maxAckIDs) {
		err := s.shared.Client.SubscriptionAdminClient.ModifyAckDeadline(ctx, &pubsubpb.ModifyAckDeadlineRequest{Subscription: s.config.Name, AckIds: ids})
		if err != nil {
			s.log.Warn("messages could not be given back: they are delivered again when their leases end", slog.Int("messages", len(ids)), slog.Any("error", err))
			return
		}
	}
}
