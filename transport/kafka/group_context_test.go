package kafka_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
)

// TestSubscribeObeysItsContext: Subscribe that waits for brokers that do not answer ends with its context, and with Close, which
// does not wait for them either.
func TestSubscribeObeysItsContext(t *testing.T) {
	t.Parallel()
	for _, delivery := range []kafka.Delivery{kafka.AtLeastOnce, kafka.Transactional} {
		for _, ends := range []string{"context", "Close"} {
			t.Run(ends+"/"+delivery.String(), func(t *testing.T) {
				t.Parallel()
				c := newCluster(t, 1)
				stuck, goOn := make(chan struct{}, 100), make(chan struct{})
				defer close(goOn)
				process := newFaultNet(func(kind kmsg.Key, _ int) fate {
					if kind == kmsg.FindCoordinator {
						stuck <- struct{}{}
						<-goOn
					}
					return pass
				})
				config := newest()
				config.Brokers, config.Delivery, config.Dial = c.ListenAddrs(), delivery, process.dial
				tr := connect(t, config)
				s, err := tr.Subscriber(transport.SubscriberConfig{Consumer: "c"})
				require.NoError(t, err)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				result := make(chan error, 1)
				go func() {
					_, err := s.Subscribe(ctx, c.topic)
					result <- err
				}()
				<-stuck
				began, want := time.Now(), context.Canceled
				if ends == "context" {
					cancel()
				} else {
					want = transport.ErrClosed
					require.NoError(t, s.Close())
				}
				require.ErrorIs(t, <-result, want)
				require.Less(t, time.Since(began), wait)
			})
		}
	}
}
