package kafka_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
)

func attempt(msg *message.Message) int { return transport.DeliveryFrom(msg.Context()).Attempt() }

func later(msg *message.Message) {
	transport.DeliveryFrom(msg.Context()).RetryAfter(10 * time.Millisecond)
	msg.Nack()
}

// buries is a configuration whose consumers send what fails to the topic.
func buries(dead string, attempts int) kafka.Config {
	return kafka.Config{
		Consumer: kafka.ConsumerConfig{
			DeadLetter: kafka.DeadLetter{Topic: dead, MaxAttempts: attempts},
			Retry:      kafka.Retry{Min: 10 * time.Millisecond},
		},
		Consumers: map[string]kafka.ConsumerConfig{"dead-letters": {}},
	}
}

// TestDeadLetter: a message that is nacked too often goes to the dead-letter topic as it came, with the reasons, and its
// key goes on. Contention is no failure.
func TestDeadLetter(t *testing.T) {
	t.Parallel()
	dead, topic := devtest.Topic(t), devtest.Topic(t)
	config := buries(dead, 3)
	config.Brokers = brokers(t)
	tr := connect(t, config)
	_, messages := subscribe(t, tr, topic, transport.SubscriberConfig{Consumer: "c", Ordered: true, Concurrency: 1})
	_, deads := subscribe(t, tr, dead, transport.SubscriberConfig{Consumer: "dead-letters"})
	poison := newMessage("a", "a1")
	poison.Metadata["name"] = "value"
	require.NoError(t, batcher(t, tr).Publish(topic, poison, newMessage("a", "a2"), newMessage("b", "b1")))

	var attempts []int
	var others []string
	for len(attempts) < 4 || len(others) < 2 {
		msg := next(t, messages)
		if string(msg.Payload) != "a1" {
			others = append(others, string(msg.Payload))
			msg.Ack()
			continue
		}
		attempts = append(attempts, attempt(msg))
		if len(attempts) == 2 {
			later(msg)
		} else {
			msg.Nack()
		}
	}
	require.Equal(t, []int{1, 2, 3, 4}, attempts)
	require.Equal(t, []string{"b1", "a2"}, others)

	msg := next(t, deads)
	require.Equal(t, poison.UUID, msg.UUID)
	require.Equal(t, "a1", string(msg.Payload))
	require.NotEmpty(t, msg.Metadata[kafka.DeadPartitionMetadata])
	delete(msg.Metadata, kafka.DeadPartitionMetadata)
	require.Equal(t, message.Metadata{
		transport.KeyMetadata:      "a",
		"name":                     "value",
		kafka.DeadReasonMetadata:   "attempts",
		kafka.DeadConsumerMetadata: "c",
		kafka.DeadTopicMetadata:    topic,
		kafka.DeadAttemptsMetadata: "4",
		kafka.DeadOffsetMetadata:   "0",
	}, msg.Metadata)
	msg.Ack()
}

// TestForeignRecord: what no publisher of ours can write is a message too, is retried like any, and reaches the dead
// letters as it is, so that nobody loops on it.
func TestForeignRecord(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	dead := devtest.Topic(t)
	require.NoError(t, c.CreateTopic(dead, 1, nil))
	foreign := &kgo.Record{
		Topic: c.topic, Key: []byte("\xff\x00"), Value: []byte("\x00\xfe"),
		Headers: []kgo.RecordHeader{{Key: "\xff", Value: []byte("\x00")}, {Key: "empty"}},
	}
	large := &kgo.Record{Topic: c.topic, Value: bytes.Repeat([]byte("x"), 1_044_200)} // no room for the reasons
	require.NoError(t, c.kgo.ProduceSync(t.Context(), foreign, &kgo.Record{Topic: c.topic}, large).FirstErr())
	c.put(0, "good")
	_, messages := c.join(buries(dead, 2))
	nacks := 0
	for nacks < 6 {
		msg := next(t, messages)
		if msg.UUID == "good" {
			msg.Ack()
			continue
		}
		require.Empty(t, msg.UUID)
		nacks++
		msg.Nack()
	}
	c.committed(0, 4)
	got := read(t, c.ListenAddrs(), dead, 3)
	byLength := map[int]*kgo.Record{}
	for _, r := range got {
		byLength[len(r.Value)] = r
	}
	r := byLength[2]
	require.NotNil(t, r)
	require.Equal(t, foreign.Key, r.Key)
	require.Equal(t, foreign.Value, r.Value)
	require.Contains(t, r.Headers, foreign.Headers[0])
	require.Contains(t, r.Headers, kgo.RecordHeader{Key: kafka.DeadReasonMetadata, Value: []byte("attempts")})
	require.NotNil(t, byLength[0])
	require.NotNil(t, byLength[len(large.Value)])
}

// TestDeadLetterTopicOutOfReach: the message is tried on, and is done only when it has arrived.
func TestDeadLetterTopicOutOfReach(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	dead := devtest.Topic(t)
	require.NoError(t, c.CreateTopic(dead, 1, nil))
	denied := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: dead, Err: kerr.TopicAuthorizationFailed, Count: -1})
	c.put(0, "poison", "good")
	_, messages := c.join(buries(dead, 2))
	for range 3 {
		msg := next(t, messages)
		if msg.UUID == "good" {
			msg.Ack()
		} else {
			msg.Nack()
		}
	}
	msg := next(t, messages)
	require.Equal(t, "poison", msg.UUID)
	require.Equal(t, 3, attempt(msg))
	require.Zero(t, c.offset(0))
	denied.Remove()
	msg.Nack()
	require.Len(t, read(t, c.ListenAddrs(), dead, 1), 1)
	c.committed(0, 2)
}

// TestWithoutDeadLetters a message is retried for ever, and the rest of its partition is not held up.
func TestWithoutDeadLetters(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	c.put(0, "poison")
	for i := range 50 {
		c.put(0, fmt.Sprint(i))
	}
	_, messages := c.join(kafka.Config{Consumer: kafka.ConsumerConfig{Retry: kafka.Retry{Min: time.Millisecond, Max: 2 * time.Millisecond}}})
	attempts, others := 0, 0
	for attempts < 20 || others < 50 {
		msg := next(t, messages)
		if msg.UUID != "poison" {
			others++
			msg.Ack()
			continue
		}
		attempts++
		require.Equal(t, attempts, attempt(msg))
		msg.Nack()
	}
	require.Zero(t, c.offset(0))
	next(t, messages).Ack()
	c.committed(0, 51)
}

// TestDeadLetterTopicIsChecked: a dead-letter topic that cannot be used is told when the consumer starts, not when the first
// message fails.
func TestDeadLetterTopicIsChecked(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	for dead, want := range map[string]string{c.topic: "is the same", devtest.Topic(t): "the topic is missing"} {
		tr := connect(t, kafka.Config{
			Brokers: c.ListenAddrs(), Topics: kafka.Topics{Missing: kafka.CheckOnly},
			Consumer: kafka.ConsumerConfig{DeadLetter: kafka.DeadLetter{Topic: dead}},
		})
		s, err := tr.Subscriber(transport.SubscriberConfig{Consumer: "c"})
		require.NoError(t, err)
		_, err = s.Subscribe(t.Context(), c.topic)
		require.ErrorContains(t, err, "DeadLetter.Topic")
		require.ErrorContains(t, err, want)
	}
}
