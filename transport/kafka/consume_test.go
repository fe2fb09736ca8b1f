package kafka_test

import (
	"runtime"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
)

// BenchmarkConsume reports the processor time of this process for a message of 1 KB. Apache Kafka is a process of its own.
func BenchmarkConsume(b *testing.B) {
	for _, delivery := range []kafka.Delivery{kafka.AtLeastOnce, kafka.Transactional} {
		b.Run(delivery.String(), func(b *testing.B) {
			b.Run("loop", func(b *testing.B) { benchmarkConsume(b, delivery, false) })
			b.Run("router", func(b *testing.B) { benchmarkConsume(b, delivery, true) })
		})
	}
}

func benchmarkConsume(b *testing.B, delivery kafka.Delivery, routed bool) {
	tr := connect(b, kafka.Config{Brokers: brokers(b), Delivery: delivery, Producer: kafka.ProducerConfig{Compression: kafka.Uncompressed}})
	in, out := devtest.Topic(b), devtest.Topic(b)+"-out"
	plain, err := tr.PlainPublisher()
	require.NoError(b, err)
	payload := make([]byte, 1024)
	for from := 0; from < b.N; from += 1000 {
		batch := make([]*message.Message, min(1000, b.N-from))
		for i := range batch {
			batch[i] = message.NewMessage(watermill.NewUUID(), payload)
			transport.SetKey(batch[i], strconv.Itoa(i))
		}
		requireAll(b, plain.(transport.BatchPublisher).PublishBatch(b.Context(), in, batch))
	}
	s, err := tr.Subscriber(transport.SubscriberConfig{Consumer: consumerName(b), Concurrency: 500, Ordered: true})
	require.NoError(b, err)
	publisher, err := tr.Publisher()
	require.NoError(b, err)
	var handled atomic.Int64
	all := make(chan struct{})
	handle := func(msg *message.Message) ([]*message.Message, error) {
		var produced []*message.Message
		if delivery == kafka.Transactional {
			output := message.NewMessageWithContext(msg.Context(), msg.UUID, msg.Payload)
			transport.SetKey(output, transport.Key(msg))
			produced = append(produced, output)
		}
		if handled.Add(1) == int64(b.N) {
			close(all)
		}
		return produced, nil
	}
	runtime.GC()
	b.ReportAllocs()
	b.ResetTimer()
	before := processorTime(b)
	if routed {
		router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
		require.NoError(b, err)
		if delivery == kafka.Transactional {
			router.AddMiddleware(middleware.Unit)
			router.AddHandler("copy", in, s, out, publisher, handle)
		} else {
			router.AddConsumerHandler("consume", in, s, func(msg *message.Message) error {
				_, err := handle(msg)
				return err
			})
		}
		done := make(chan error, 1)
		go func() { done <- router.Run(b.Context()) }()
		<-all
		require.NoError(b, router.Close())
		require.NoError(b, <-done)
	} else {
		messages, err := s.Subscribe(b.Context(), in)
		require.NoError(b, err)
		for range b.N {
			msg := <-messages
			produced, _ := handle(msg)
			if len(produced) > 0 {
				require.NoError(b, publisher.Publish(out, produced...))
			}
			msg.Ack()
		}
	}
	require.NoError(b, s.Close())
	b.ReportMetric(float64((processorTime(b)-before).Nanoseconds())/float64(b.N), "cpu-ns/op")
}

// processorTime is what this process has used.
func processorTime(t testing.TB) time.Duration {
	var usage syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
