package main

import (
	"context"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
)

// everywhere runs the test on pstest and on the emulator, where there is one.
func everywhere(t *testing.T, fn func(t *testing.T, p *pubsubbing, b broker)) {
	t.Parallel()
	all := []broker{{"", openFake}}
	stack := devtest.Start(t, devstack.PubSub)
	if stack.Services()[0].Real {
		all = append(all, broker{"emulator", func(ctx context.Context) (*room, error) { return openEmulator(ctx, stack.PubSubHost()) }})
	}
	for _, b := range all {
		t.Run("on "+b.name, func(t *testing.T) {
			t.Parallel()
			env := &environment{size: size{box: 500 * time.Millisecond}, progress: func(string, ...any) {}}
			fn(t, &pubsubbing{rounds{env: env}}, b)
		})
	}
}

// A publisher that loses messages, or publishes twice, gets no figure.
func TestHalfAPublisherIsAnError(t *testing.T) {
	everywhere(t, func(t *testing.T, p *pubsubbing, b broker) {
		calls := 0
		with := func(send func(honest publishing, ctx context.Context, from, to int) error) func(context.Context, *room, []event) (publishing, error) {
			return func(ctx context.Context, r *room, events []event) (publishing, error) {
				honest, err := bare(ctx, r, events)
				return publishing{stop: honest.stop, send: func(ctx context.Context, from, to int) error { return send(honest, ctx, from, to) }}, err
			}
		}
		measure := func(prepare func(context.Context, *room, []event) (publishing, error)) error {
			_, err := p.publishing(b, "somebody", "", 50, prepare).measure(t.Context())
			return err
		}
		require.NoError(t, measure(ours(3)))
		require.ErrorContains(t, measure(with(func(honest publishing, ctx context.Context, from, to int) error {
			return honest.send(ctx, from, to-1)
		})), "2 are missing")
		require.ErrorContains(t, measure(with(func(honest publishing, ctx context.Context, from, to int) error {
			if calls++; calls == 1 {
				to--
				require.NoError(t, honest.send(ctx, from, from+1))
			}
			return honest.send(ctx, from, to)
		})), "published 150 events with 149 IDs")
	})
}

// A consumer that takes too long, nacks what it counts, or counts twice gets no figure.
func TestHalfAConsumerOfABrokerIsAnError(t *testing.T) {
	everywhere(t, func(t *testing.T, p *pubsubbing, b broker) {
		measure := func(start func(context.Context, *room, *sink) (func() error, error)) error {
			_, err := p.consuming(b, "somebody", "", 20, start).measure(t.Context())
			return err
		}
		puller := func(take int) func(context.Context, *room, *sink) (func() error, error) {
			return func(ctx context.Context, r *room, to *sink) (func() error, error) {
				ids, err := r.pull(ctx, take)
				for _, id := range ids {
					to.note(id)
				}
				return func() error { return nil }, err
			}
		}
		require.NoError(t, measure(loop))
		require.NoError(t, measure(puller(20)))
		nothing := func(context.Context, *room, *sink) (func() error, error) { return func() error { return nil }, nil }
		require.ErrorContains(t, measure(nothing), "not all of 20 messages came within 500ms")
		require.ErrorContains(t, measure(func(ctx context.Context, r *room, to *sink) (func() error, error) {
			for len(to.ids) < 20 {
				for _, m := range take(t, r, 20) {
					to.note(m.Message.Attributes[idAttribute])
					answer(t, r, m, false)
				}
			}
			return func() error { return nil }, nil
		}), "were not delivered once and acked")
		require.ErrorContains(t, measure(func(_ context.Context, r *room, to *sink) (func() error, error) {
			ids, err := r.pull(t.Context(), 20)
			for _, id := range append(ids, ids[0]) {
				to.note(id)
			}
			return func() error { return nil }, err
		}), "21 events with 20 IDs")
	})
}

func take(t *testing.T, r *room, limit int32) []*pubsubpb.ReceivedMessage {
	got, err := r.admin.SubscriptionAdminClient.Pull(t.Context(), &pubsubpb.PullRequest{Subscription: r.subscriptionName(), MaxMessages: limit})
	require.NoError(t, err)
	return got.ReceivedMessages
}

// answer acks the message, or nacks it.
func answer(t *testing.T, r *room, m *pubsubpb.ReceivedMessage, ack bool) {
	if ack {
		require.NoError(t, r.admin.SubscriptionAdminClient.Acknowledge(t.Context(), &pubsubpb.AcknowledgeRequest{
			Subscription: r.subscriptionName(), AckIds: []string{m.AckId},
		}))
		return
	}
	require.NoError(t, r.admin.SubscriptionAdminClient.ModifyAckDeadline(t.Context(), &pubsubpb.ModifyAckDeadlineRequest{
		Subscription: r.subscriptionName(), AckIds: []string{m.AckId},
	}))
}

// The queues that stand in for pstest's subscriptions deliver in order and again what was nacked, and tell what was not
// acked.
func TestSwift(t *testing.T) {
	t.Parallel()
	r, err := openFake(t.Context())
	require.NoError(t, err)
	defer func() { require.NoError(t, r.close()) }()
	unsettled := func() int {
		n, err := r.unsettled(t.Context())
		require.NoError(t, err)
		return n
	}
	events := newBacklog(4)
	require.NoError(t, r.subscribe(t.Context(), true))
	require.NoError(t, r.fill(t.Context(), events))
	assert.Equal(t, 4, unsettled())

	got := take(t, r, 2)
	require.Len(t, got, 2)
	answer(t, r, got[0], false)
	answer(t, r, got[1], true)
	assert.Equal(t, 4, unsettled(), "three messages, and that one was nacked")
	var ids []string
	for _, m := range append(got, take(t, r, 10)...) {
		ids = append(ids, m.Message.Attributes[idAttribute])
	}
	assert.Equal(t, []string{events[0].id, events[1].id, events[2].id, events[3].id, events[0].id}, ids)
	assert.Empty(t, take(t, r, 10))
}
