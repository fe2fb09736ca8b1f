package kafka_test

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
)

// TestKilledWhileJoining: the fake never expires a member whose connection broke while it waited in its join, so that the
// next rebalance waits for it as long as a rebalance may. The others must go on soon all the same.
func TestKilledWhileJoining(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	c.put(0, "0")
	c.put(1, "1")
	_, first := c.join(kafka.Config{})
	next(t, first).Ack()
	next(t, first).Ack()
	c.shared(1, 2)

	// The first member hears of the rebalance, and rejoins, only after the second one is dead.
	var killed atomic.Bool
	c.ControlKey(int16(kmsg.Heartbeat), func(r kmsg.Request) (kmsg.Response, error, bool) {
		if killed.Load() {
			return nil, nil, false
		}
		c.KeepControl()
		return r.ResponseKind(), nil, true
	})
	joining := newFaultNet(nil)
	c.join(kafka.Config{Dial: joining.dial, DrainTimeout: time.Second})
	c.await("a second member that waits for the first", func(g *kfake.GroupInfo) bool {
		return g.State == "PreparingRebalance" && len(g.Members) == 2
	})
	joining.kill()
	killed.Store(true)
	c.await("the dead member is in the group", func(g *kfake.GroupInfo) bool { return g.State == "Stable" && len(g.Members) == 2 })

	began := time.Now()
	c.join(kafka.Config{})
	c.shared(2, 1)
	require.Less(t, time.Since(began), 20*time.Second)
}

// TestSlowHandlersStayInTheGroup: members join and leave while every handler of the others holds a message. A member that
// rejoined too late would be thrown out, and come back under another ID.
func TestSlowHandlersStayInTheGroup(t *testing.T) {
	t.Parallel()
	for _, assignment := range []kafka.Assignment{kafka.CooperativeSticky, kafka.Range} {
		t.Run(assignment.String(), func(t *testing.T) {
			t.Parallel()
			testSlowHandlersStayInTheGroup(t, assignment)
		})
	}
}

func testSlowHandlersStayInTheGroup(t *testing.T, assignment kafka.Assignment) {
	const stay, visit, partitions = 10, 10, 20
	topic := devtest.Topic(t)
	group := strings.NewReplacer(".", "-", "/", "-").Replace(topic)
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers(t)...))
	require.NoError(t, err)
	t.Cleanup(client.Close)
	admin := kadm.NewClient(client)
	_, err = admin.CreateTopic(t.Context(), partitions, 1, nil, topic)
	require.NoError(t, err)

	var mu sync.Mutex
	handled := map[string]bool{}
	holding, release := make(chan struct{}, 1000), make(chan struct{})
	var handlers sync.WaitGroup
	join := func(name string) *kafka.Transport {
		tr := connect(t, kafka.Config{Brokers: brokers(t), ClientID: name, Consumer: kafka.ConsumerConfig{Assignment: assignment}})
		_, messages := subscribe(t, tr, topic, transport.SubscriberConfig{Consumer: group, Concurrency: 2})
		handlers.Go(func() {
			for msg := range messages {
				handlers.Go(func() {
					holding <- struct{}{}
					<-release
					mu.Lock()
					defer mu.Unlock()
					handled[msg.UUID] = true
					msg.Ack()
				})
			}
		})
		return tr
	}
	// members returns the IDs of the members by name, once there are so many.
	members := func(n int) map[string]string {
		ids := map[string]string{}
		require.Eventually(t, func() bool {
			clear(ids)
			described, err := admin.DescribeGroups(t.Context(), group)
			if err != nil {
				return false // the group's coordinator is not there yet
			}
			for _, m := range described[group].Members {
				ids[m.ClientID] = m.MemberID
			}
			return described[group].State == "Stable" && len(ids) == n
		}, 2*wait, 50*time.Millisecond, "%v", ids)
		return ids
	}

	var staying []*kafka.Transport
	for i := range stay {
		staying = append(staying, join(fmt.Sprint("stays-", i)))
	}
	before := members(stay)
	var events []*message.Message
	for i := range 10 * partitions {
		events = append(events, newMessage(fmt.Sprint(i), "event"))
	}
	require.NoError(t, batcher(t, staying[0]).Publish(topic, events...))
	for range 2 * stay {
		<-holding
	}
	for i := range visit {
		visitor := join(fmt.Sprint("visits-", i))
		if i%2 == 0 {
			require.NoError(t, visitor.Close())
		}
	}
	after := members(stay + visit/2)
	for name, id := range before {
		require.Equal(t, id, after[name], "%s was thrown out of the group", name)
	}
	close(release)
	require.Eventually(t, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(handled) == len(events)
	}, wait, 20*time.Millisecond, "events were lost")
	for _, tr := range staying {
		require.NoError(t, tr.Close())
	}
}
