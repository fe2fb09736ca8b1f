package kafka_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
)

// TestBuffered: a process held 16 MiB of each partition, so a topic with many partitions and a slow handler took all its memory.
func TestBuffered(t *testing.T) {
	t.Parallel()
	const (
		budget     = 16 << 20
		partitions = 12 // of each of two topics
		records    = 15 // of each partition
		size       = 100_000
	)
	addresses, m := brokers(t), newMeter()
	plain := connect(t, kafka.Config{Brokers: addresses, Topics: kafka.Topics{Partitions: partitions}, Producer: kafka.ProducerConfig{Compression: kafka.Uncompressed}})
	tr := connect(t, kafka.Config{Brokers: addresses, MeterProvider: m.provider, MaxBufferedBytes: budget})
	payload := make([]byte, size)
	var messages [2]<-chan *message.Message
	for i := range messages {
		topic := devtest.Topic(t) + "-" + string(rune('a'+i))
		batch := make([]*message.Message, partitions*records)
		for i := range batch {
			batch[i] = newMessage("", string(payload))
		}
		requireAll(t, batcher(t, plain).PublishBatch(t.Context(), topic, batch))
		_, messages[i] = subscribe(t, tr, topic, transport.SubscriberConfig{Consumer: consumerName(t) + "-" + string(rune('a'+i))})
	}

	m.eventually(t, "millrace.kafka.paused", 2*partitions)
	held := m.collect(t)["millrace.kafka.buffered"]
	require.Greater(t, held, int64(budget/2))
	for left := 2 * partitions * records; left > 0; left-- {
		var msg *message.Message
		select {
		case msg = <-messages[0]:
		case msg = <-messages[1]:
		}
		if left%10 == 0 {
			held = max(held, m.collect(t)["millrace.kafka.buffered"])
		}
		msg.Ack()
	}
	require.Less(t, held, int64(budget*5/4), "what was on its way when the partitions paused comes on top")
	m.eventually(t, "millrace.kafka.lag", 0)
}
