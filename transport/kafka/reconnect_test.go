package kafka_test

import (
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
)

// TestReconnect: the only broker is killed and started again twice, while 100 publishers publish and a subscriber receives. It is Watermill's
// test of that name. The original reads its list of published messages while a goroutine still appends to it, and allows one minute for all.
func TestReconnect(t *testing.T) {
	t.Parallel()
	devtest.Long(t)
	cluster := devtest.Kafka(t, devstack.KafkaConfig{Brokers: 1})
	for _, delivery := range []kafka.Delivery{kafka.AtLeastOnce, kafka.Transactional} {
		t.Run(delivery.String(), func(t *testing.T) {
			const messages, publishers = 10_000, 100
			tr := connect(t, kafka.Config{Brokers: cluster.Brokers(), Delivery: delivery})
			topic := devtest.Topic(t)
			_, received := subscribe(t, tr, topic, transport.SubscriberConfig{Consumer: consumerName(t)})
			publisher, err := tr.PlainPublisher()
			require.NoError(t, err)
			numbers := make(chan int)
			var publishing sync.WaitGroup
			for range publishers {
				publishing.Go(func() {
					for n := range numbers {
						for publisher.Publish(topic, newMessage("", strconv.Itoa(n))) != nil {
							if t.Context().Err() != nil {
								return
							}
						}
					}
				})
			}
			publishing.Go(func() {
				defer close(numbers)
				for n := range messages {
					select {
					case numbers <- n:
					case <-t.Context().Done():
						return
					}
				}
			})
			t.Cleanup(publishing.Wait)

			got, before := map[string]bool{}, 0
			timeout := time.After(3 * wait)
			for len(got) < messages {
				select {
				case msg := <-received:
					before = len(got)
					got[string(msg.Payload)] = true
					msg.Ack()
				case <-timeout:
					require.Fail(t, "messages are missing", "%d of %d came", len(got), messages)
				}
				if n := len(got); n > before && (n == messages/3 || n == messages/2) {
					require.NoError(t, cluster.Kill(t.Context(), 1))
					require.NoError(t, cluster.Start(t.Context(), 1))
				}
			}
		})
	}
}
