package pubsub_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub"
)

// TestCloseOverAFaultyNetwork: a service that shuts down while its network fails, with a handler that runs, an event that is
// being published and a topic that is being created, does so within its drain timeout and what it takes to see that nothing
// answers.
func TestCloseOverAFaultyNetwork(t *testing.T) {
	t.Parallel()
	const drain, bound = time.Second, 10 * time.Second
	endless := []fault{
		{"a black hole", func(_ *testing.T, p *devtest.Proxy) { p.Freeze() }},
		{"connections that a firewall forgot", func(_ *testing.T, p *devtest.Proxy) { p.Strand() }},
		{"latency", func(_ *testing.T, p *devtest.Proxy) { p.Delay(500 * time.Millisecond) }},
		{"a broker that is down", func(_ *testing.T, p *devtest.Proxy) { p.Refuse() }},
	}
	onFaultyNetworks(t, endless, func(t *testing.T, n network, f fault) {
		topic := devtest.Topic(t)
		tr, err := pubsub.New(t.Context(), pubsub.Config{ProjectID: project, ClientOptions: n.faulty, DrainTimeout: drain})
		require.NoError(t, err)
		_, messages := subscribe(t, tr, topic, transport.SubscriberConfig{Consumer: "c"})
		p := batcher(t, tr)
		publishAll(t, p, topic, keyed(1, 2))
		done, stuck := next(t, messages), next(t, messages)
		f.strike(t, n.proxy)

		var publishing sync.WaitGroup
		for _, name := range []string{topic, devtest.Topic(t)} {
			publishing.Go(func() {
				results := p.PublishBatch(context.Background(), name, []*message.Message{newMessage("k", "x"), newMessage("", "y")})
				require.Len(t, results, 2)
			})
		}
		closed := make(chan struct{})
		began := time.Now()
		go func() {
			defer close(closed)
			_ = tr.Close()
		}()
		done.Ack()
		select {
		case <-closed:
			t.Log(time.Since(began))
		case <-time.After(drain + bound):
			t.Error("Close outlives its bound")
		}
		require.Error(t, stuck.Context().Err(), "the handler that does not end is cancelled")
		publishing.Wait()
	})
}
