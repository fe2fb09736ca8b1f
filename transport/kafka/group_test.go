package kafka_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
)

func subscribe(t testing.TB, tr *kafka.Transport, topic string, config transport.SubscriberConfig) (message.Subscriber, <-chan *message.Message) {
	t.Helper()
	s, err := tr.Subscriber(config)
	require.NoError(t, err)
	messages, err := s.Subscribe(t.Context(), topic)
	require.NoError(t, err)
	return s, messages
}

func next(t testing.TB, messages <-chan *message.Message) *message.Message {
	t.Helper()
	select {
	case msg, ok := <-messages:
		require.True(t, ok, "the subscription ended")
		return msg
	case <-time.After(wait):
		require.Fail(t, "no message came")
		return nil
	}
}

// cluster is a fake with one topic, whose group "c" can be looked at.
type cluster struct {
	*kfake.Cluster
	t          testing.TB
	topic      string
	subscribed string // the topic, or a pattern that it matches
	kgo        *kgo.Client
}

func newCluster(t testing.TB, partitions int32) *cluster {
	t.Helper()
	c := &cluster{Cluster: fake(t), t: t, topic: devtest.Topic(t)}
	c.subscribed = c.topic
	require.NoError(t, c.CreateTopic(c.topic, partitions, nil))
	var err error
	c.kgo, err = kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchMaxBytes(1<<20+12), kgo.ProducerBatchCompression(kgo.NoCompression()))
	require.NoError(t, err)
	t.Cleanup(c.kgo.Close)
	return c
}

// put writes to one partition.
func (c *cluster) put(partition int32, payloads ...string) {
	c.t.Helper()
	for _, payload := range payloads {
		record := &kgo.Record{Topic: c.topic, Partition: partition, Value: []byte(payload), Headers: []kgo.RecordHeader{{Key: "_watermill_message_uuid", Value: []byte(payload)}}}
		require.NoError(c.t, c.kgo.ProduceSync(c.t.Context(), record).FirstErr())
	}
}

// join returns a member of the group.
func (c *cluster) join(config kafka.Config) (*kafka.Transport, <-chan *message.Message) {
	c.t.Helper()
	config.Brokers = c.ListenAddrs()
	tr := connect(c.t, config)
	_, messages := subscribe(c.t, tr, c.subscribed, transport.SubscriberConfig{Consumer: "c"})
	return tr, messages
}

// await waits for a state of the group.
func (c *cluster) await(what string, is func(*kfake.GroupInfo) bool) *kfake.GroupInfo {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), wait)
	defer cancel()
	g, err := c.WaitGroupInfo(ctx, "c", func(g *kfake.GroupInfo) bool { return g != nil && is(g) })
	require.NoError(c.t, err, "%s: %+v", what, c.GroupInfo("c"))
	return g
}

// shared waits until each of the members has this many partitions.
func (c *cluster) shared(members, each int) *kfake.GroupInfo {
	c.t.Helper()
	return c.await(fmt.Sprint(members, " members with ", each, " partitions each"), func(g *kfake.GroupInfo) bool {
		for _, m := range g.Members {
			if len(m.Assignment[c.topic]) != each {
				return false
			}
		}
		return len(g.Members) == members && g.State == "Stable"
	})
}

// committed waits until the group's offset of the partition is this.
func (c *cluster) committed(partition int32, offset int64) {
	c.t.Helper()
	c.await(fmt.Sprint("offset ", offset), func(g *kfake.GroupInfo) bool { return g.Commits[c.topic][partition].Offset == offset })
}

// offset is the group's offset of the partition, 0 when it has none.
func (c *cluster) offset(partition int32) int64 {
	if g := c.GroupInfo("c"); g != nil {
		return g.Commits[c.topic][partition].Offset
	}
	return 0
}

func assigned(config kafka.Assignment) kafka.Config {
	return kafka.Config{Consumer: kafka.ConsumerConfig{Assignment: config}}
}

// TestSlowHandlersDoNotHoldUpARebalance: watermill-kafka waits for the handler, so that the group throws the member out,
// and a slow message outlives its session. Here a second member gets its partition while handlers of the first are blocked,
// and both stay. What a handler acks after its partition has gone is not committed: the new owner decides.
func TestSlowHandlersDoNotHoldUpARebalance(t *testing.T) {
	t.Parallel()
	for _, assignment := range []kafka.Assignment{kafka.CooperativeSticky, kafka.Range, kafka.RoundRobin} {
		t.Run(assignment.String(), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 2)
			c.put(0, "0")
			c.put(1, "1")
			_, first := c.join(assigned(assignment))
			held := map[string]*message.Message{}
			for range 2 {
				msg := next(t, first)
				held[msg.UUID] = msg
			}
			_, second := c.join(assigned(assignment))
			c.shared(2, 1)

			moved := next(t, second) // it was not done
			require.Contains(t, held, moved.UUID)
			partition, kept := int32(moved.UUID[0]-'0'), int32('1'-moved.UUID[0])
			for _, msg := range held {
				require.NoError(t, msg.Context().Err(), "the handler may go on")
				require.True(t, msg.Ack())
			}
			c.committed(kept, 1)
			c.put(kept, "later")
			msg := next(t, first) // and nothing else: what the member kept was not delivered to it again
			require.Equal(t, "later", msg.UUID)
			msg.Ack()
			c.committed(kept, 2)
			require.Zero(t, c.offset(partition), "a member committed an offset of a partition that it had lost")
			moved.Ack()
			c.committed(partition, 1)
		})
	}
}

// TestManyRebalances: a rolling deployment is one rebalance after another. A member that took them for failures would wait
// longer before each, and all others with it: in the last of these for 10 s each.
func TestManyRebalances(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	c.join(assigned(kafka.Range))
	began := time.Now()
	for range 6 {
		c.shared(1, 2)
		tr, _ := c.join(assigned(kafka.Range))
		c.shared(2, 1)
		require.NoError(t, tr.Close())
	}
	c.shared(1, 2)
	require.Less(t, time.Since(began), 40*time.Second)
}

// TestHandOver: a handler that ends soon after the rebalance began is waited for, so that its message is not delivered twice.
func TestHandOver(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	const n = 200
	tr, first := c.join(kafka.Config{})
	got := make(chan string, 2*n)
	var handlers sync.WaitGroup
	handle := func(messages <-chan *message.Message) {
		handlers.Go(func() {
			for msg := range messages {
				handlers.Go(func() {
					got <- msg.UUID
					msg.Ack()
				})
			}
		})
	}
	handle(first)
	for i := range n {
		c.put(0, fmt.Sprint(i))
		if i == n/2 {
			go func() { _ = tr.Close() }()
			_, second := c.join(kafka.Config{})
			handle(second)
		}
	}
	c.committed(0, n)
	require.Len(t, got, n, "a message was delivered twice or not at all")
}

// TestStaticMember: one that comes back within the session timeout finds its partitions as it left them, and the others
// notice nothing.
func TestStaticMember(t *testing.T) {
	t.Parallel()
	for _, assignment := range []kafka.Assignment{kafka.CooperativeSticky, kafka.Range} {
		t.Run(assignment.String(), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 2)
			static := func(id string) kafka.Config {
				return kafka.Config{Consumer: kafka.ConsumerConfig{InstanceID: id, SessionTimeout: time.Minute, Assignment: assignment}}
			}
			m := newMeter()
			config := static("pod-0")
			config.MeterProvider = m.provider
			_, other := c.join(config)
			tr, _ := c.join(static("pod-1"))
			before := c.shared(2, 1)
			c.put(0, "before 0")
			c.put(1, "before 1")
			next(t, other).Ack()
			rebalances := m.rebalances(t)
			require.NoError(t, tr.Close())
			c.put(0, "0")
			c.put(1, "1")
			msg := next(t, other) // its own
			_, again := c.join(static("pod-1"))
			var got []string
			for len(got) < 2 { // what its predecessor had and did not ack, too
				msg := next(t, again)
				got = append(got, msg.UUID)
				msg.Ack()
			}
			require.ElementsMatch(t, []string{"0", "1"}, []string{msg.UUID, got[1]})
			msg.Ack()
			c.committed(0, 2)
			c.committed(1, 2)
			require.Equal(t, rebalances, m.rebalances(t), "the other member's partition was touched")
			if assignment == kafka.Range { // a cooperative member tells what it owns, which the fake takes for a new subscription
				require.Equal(t, before.Epoch, c.GroupInfo("c").Epoch, "the group rebalanced")
			}
		})
	}
}

// TestKill: of a member that dies everything comes back that it had not finished, because its offsets never passed that.
func TestKill(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	const n = 40
	for i := range n {
		c.put(int32(i%2), fmt.Sprint(i))
	}
	wire := newFaultNet(nil)
	_, first := c.join(kafka.Config{Dial: wire.dial, DrainTimeout: time.Second, Consumer: kafka.ConsumerConfig{SessionTimeout: 6 * time.Second}})
	var unfinished []*message.Message
	for range n {
		msg := next(t, first)
		if msg.UUID == "10" || msg.UUID == "21" { // the sixth of the one and the eleventh of the other
			unfinished = append(unfinished, msg)
			continue
		}
		msg.Ack()
	}
	c.committed(0, 5)
	c.committed(1, 10)
	wire.kill()
	require.Len(t, unfinished, 2)

	_, second := c.join(kafka.Config{Consumer: kafka.ConsumerConfig{SessionTimeout: 6 * time.Second}})
	want := map[string]bool{}
	for i := 10; i < n; i += 2 {
		want[fmt.Sprint(i)] = true
	}
	for i := 21; i < n; i += 2 {
		want[fmt.Sprint(i)] = true
	}
	for len(want) > 0 {
		msg := next(t, second)
		require.True(t, want[msg.UUID], "%s came again, which was committed", msg.UUID)
		delete(want, msg.UUID)
		msg.Ack()
	}
	c.committed(0, n/2)
	c.committed(1, n/2)
}

// TestDrain: on close the handler that runs finishes, its offset is committed, and the group is left at once.
func TestDrain(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	c.put(0, "1", "2")
	tr, messages := c.join(kafka.Config{})
	msg := next(t, messages)
	closed := make(chan error)
	go func() { closed <- tr.Close() }()
	for range messages { // intake has ended
	}
	require.NoError(t, msg.Context().Err())
	msg.Ack()
	require.NoError(t, <-closed)
	g := c.GroupInfo("c")
	require.Empty(t, g.Members)
	require.EqualValues(t, 1, g.Commits[c.topic][0].Offset)
}

// TestDrainOfASlowHandler: the group is left long before the handler ends, so that the others do not wait. Its ack is of no
// use then; the message is delivered again.
func TestDrainOfASlowHandler(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	c.put(0, "1")
	tr, messages := c.join(kafka.Config{DrainTimeout: wait})
	msg := next(t, messages)
	closed := make(chan error)
	go func() { closed <- tr.Close() }()
	_, second := c.join(kafka.Config{})
	again := next(t, second)
	require.Equal(t, "1", again.UUID)
	require.NoError(t, msg.Context().Err())
	msg.Ack()
	require.NoError(t, <-closed)
	require.Zero(t, c.offset(0))
	again.Ack()
	c.committed(0, 1)
}

// TestTopicIsDeleted: the subscription goes on with the next topic of that name, from its beginning.
func TestTopicIsDeleted(t *testing.T) {
	t.Parallel()
	topic := devtest.Topic(t)
	tr := connect(t, kafka.Config{Brokers: brokers(t), Topics: kafka.Topics{Partitions: 1}})
	_, messages := subscribe(t, tr, topic, transport.SubscriberConfig{Consumer: "c", Concurrency: 1})
	p := batcher(t, tr)
	for range 20 {
		require.NoError(t, p.Publish(topic, newMessage("", "old")))
		next(t, messages).Ack()
	}
	deletes(t, brokers(t))(t, topic)
	require.Eventually(t, func() bool {
		_ = p.Publish(topic, newMessage("", "new"))
		select {
		case msg := <-messages:
			require.Equal(t, "new", string(msg.Payload))
			return msg.Ack()
		default:
			return false
		}
	}, wait, 20*tick)
}
