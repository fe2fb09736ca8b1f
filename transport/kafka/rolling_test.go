package kafka_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
)

const (
	rollingMembers    = 3
	rollingPartitions = 6
	rollingKeys       = 24
	// rollingBacklog is how many rounds of events are published before the oldest of them is handled.
	rollingBacklog = 20
)

// TestRollingFromWatermillKafka: events are published without a pause. Meanwhile the group's members are replaced one by one:
// first watermill-kafka's by Millrace's with Join, then those by members without Join.
func TestRollingFromWatermillKafka(t *testing.T) {
	t.Parallel()
	for _, delivery := range []kafka.Delivery{kafka.AtLeastOnce, kafka.Transactional} {
		t.Run(delivery.String(), func(t *testing.T) {
			t.Parallel()
			r := newRolling(t, delivery)
			r.roll(r.watermill)
		})
	}
}

// TestRollingFromRange is the same with Millrace's own members on Range at the beginning.
func TestRollingFromRange(t *testing.T) {
	t.Parallel()
	r := newRolling(t, kafka.AtLeastOnce)
	r.roll(func(name string) rollingMember {
		member, _ := r.millrace(name, kafka.ConsumerConfig{Assignment: kafka.Range})
		return member
	})
}

// roll starts members with old, replaces them twice, and requires that the group is cooperative at the end.
func (r *rolling) roll(old func(name string) rollingMember) {
	r.t.Helper()
	var members []rollingMember
	for i := range rollingMembers {
		members = append(members, old(fmt.Sprint("old-", i)))
	}
	r.settled("range", len(members))
	for i := range members {
		members[i].stop()
		members[i], _ = r.millrace(fmt.Sprint("joining-", i), kafka.ConsumerConfig{Join: []kafka.Assignment{kafka.Range}})
		protocol := "range"
		if i == len(members)-1 {
			protocol = "cooperative-sticky"
		}
		r.settled(protocol, len(members))
	}
	meters := make([]*meter, len(members))
	for i := range members {
		members[i].stop()
		members[i], meters[i] = r.millrace(fmt.Sprint("joined-", i), kafka.ConsumerConfig{})
		r.settled("cooperative-sticky", len(members))
	}
	before := revocations(r.t, meters)
	more, _ := r.millrace("more", kafka.ConsumerConfig{})
	r.settled("cooperative-sticky", len(members)+1)
	assert.Equal(r.t, int64(1), revocations(r.t, meters)-before, "of %d partitions one goes to a fourth member, and the others are not stopped", rollingPartitions)
	r.finish()
	for _, m := range append(members, more) {
		m.stop()
	}
}

// TestRollingWithoutJoin: a member that does not offer the assignment of the others cannot join them, and says how it could.
func TestRollingWithoutJoin(t *testing.T) {
	t.Parallel()
	c, log := newCluster(t, 1), &logged{}
	theirs := watermillMember(t, c.ListenAddrs(), "c", wkafka.DefaultMarshaler{})
	messages, err := theirs.Subscribe(t.Context(), c.topic)
	require.NoError(t, err)
	c.put(0, "0", "1")
	next(t, messages).Ack()
	_, ours := c.join(kafka.Config{Logger: log.logger()})
	require.Eventually(t, func() bool { return len(log.lines("offer it in ConsumerConfig.Join")) > 0 }, wait, tick)
	next(t, messages).Ack()
	c.committed(0, 2)
	require.NoError(t, theirs.Close())
	c.put(0, "2")
	require.Equal(t, "2", next(t, ours).UUID, "it joins when the others have left")
}

// rolling is a group whose members change, and what they have handled. The events of a key are numbered from 0.
type rolling struct {
	t            testing.TB
	delivery     kafka.Delivery
	addresses    []string
	topic, group string
	admin        *kadm.Client
	publishing   sync.WaitGroup
	enough       chan struct{} // ends the publishing

	mu        sync.Mutex
	more      *sync.Cond
	published int            // rounds: one event of each key
	next      map[string]int // the first event of a key that was not handled
	repeated  int
	holders   map[int32]map[string]int // how many events of a partition each member is handling
	owner     map[int32]string         // the member that last handled an event of the partition
	changes   map[int32]int            // of owner
	wrong     []string
}

// rollingMember is a member of the group. stop ends it as its service would.
type rollingMember struct{ stop func() }

func newRolling(t testing.TB, delivery kafka.Delivery) *rolling {
	t.Helper()
	r := &rolling{
		t: t, delivery: delivery, addresses: brokers(t), topic: devtest.Topic(t), group: consumerName(t), enough: make(chan struct{}),
		next: map[string]int{}, holders: map[int32]map[string]int{}, owner: map[int32]string{}, changes: map[int32]int{},
	}
	r.more = sync.NewCond(&r.mu)
	client, err := kgo.NewClient(kgo.SeedBrokers(r.addresses...))
	require.NoError(t, err)
	t.Cleanup(client.Close)
	r.admin = kadm.NewClient(client)
	_, err = r.admin.CreateTopic(t.Context(), rollingPartitions, 1, nil, r.topic)
	require.NoError(t, err)
	publisher := batcher(t, connect(t, kafka.Config{Brokers: r.addresses, Producer: kafka.ProducerConfig{Partitioner: kafka.FNV}}))
	r.publishing.Go(func() { r.publish(publisher) })
	t.Cleanup(r.stopPublishing)
	return r
}

// publish publishes rounds of events, as fast as they are handled.
func (r *rolling) publish(publisher message.Publisher) {
	for round := 0; ; round++ {
		r.mu.Lock()
		for r.done() < round-rollingBacklog && !r.over() {
			r.more.Wait()
		}
		r.mu.Unlock()
		if r.over() {
			return
		}
		events := make([]*message.Message, rollingKeys)
		for i := range events {
			events[i] = message.NewMessage(watermill.NewUUID(), []byte(strconv.Itoa(round)))
			transport.SetKey(events[i], fmt.Sprint("key-", i))
		}
		if !assert.NoError(r.t, publisher.Publish(r.topic, events...)) {
			return
		}
		r.mu.Lock()
		r.published++
		r.mu.Unlock()
	}
}

func (r *rolling) over() bool {
	select {
	case <-r.enough:
		return true
	default:
		return false
	}
}

// done is how many rounds are handled. The caller holds mu.
func (r *rolling) done() int {
	if len(r.next) < rollingKeys {
		return 0
	}
	least := r.published
	for _, n := range r.next {
		least = min(least, n)
	}
	return least
}

// handle handles the messages of a member until they end, or quit is closed.
func (r *rolling) handle(member string, messages <-chan *message.Message, quit <-chan struct{}) {
	for {
		select {
		case msg, ok := <-messages:
			if !ok {
				return
			}
			partition := r.take(member, msg)
			r.give(member, partition)
			msg.Ack()
		case <-quit:
			return
		}
	}
}

func (r *rolling) take(member string, msg *message.Message) int32 {
	partition, _ := wkafka.MessagePartitionFromCtx(msg.Context())
	key, _ := wkafka.MessageKeyFromCtx(msg.Context())
	number, err := strconv.Atoi(string(msg.Payload))
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.wrong = append(r.wrong, err.Error())
	}
	if r.holders[partition] == nil {
		r.holders[partition] = map[string]int{}
	}
	r.holders[partition][member]++
	if len(r.holders[partition]) > 1 {
		r.wrong = append(r.wrong, fmt.Sprintf("partition %d is handled by %v at once", partition, r.holders[partition]))
	}
	if r.owner[partition] != member {
		r.owner[partition] = member
		r.changes[partition]++
	}
	switch want := r.next[string(key)]; {
	case number == want:
		r.next[string(key)]++
		r.more.Broadcast()
	case number < want:
		r.repeated++
	default:
		r.wrong = append(r.wrong, fmt.Sprintf("%s handled event %d of %s before event %d", member, number, key, want))
	}
	return partition
}

func (r *rolling) give(member string, partition int32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.holders[partition][member]--; r.holders[partition][member] == 0 {
		delete(r.holders[partition], member)
	}
}

// watermill starts a member on watermill-kafka. Its handler stops before the member does, because a member that closes gives up
// its partitions while handlers run.
func (r *rolling) watermill(name string) rollingMember {
	r.t.Helper()
	s := watermillMember(r.t, r.addresses, r.group, kafka.Marshaler{})
	messages, err := s.Subscribe(r.t.Context(), r.topic)
	require.NoError(r.t, err)
	quit := make(chan struct{})
	var handler sync.WaitGroup
	handler.Go(func() { r.handle(name, messages, quit) })
	return rollingMember{func() {
		close(quit)
		handler.Wait()
		require.NoError(r.t, s.Close())
	}}
}

// millrace starts a member on Millrace.
func (r *rolling) millrace(name string, config kafka.ConsumerConfig) (rollingMember, *meter) {
	r.t.Helper()
	m := newMeter()
	tr := connect(r.t, kafka.Config{Brokers: r.addresses, MeterProvider: m.provider, Delivery: r.delivery, Consumer: config})
	const concurrency = 4
	_, messages := subscribe(r.t, tr, r.topic, transport.SubscriberConfig{Consumer: r.group, Ordered: true, Concurrency: concurrency})
	var handlers sync.WaitGroup
	for range concurrency {
		handlers.Go(func() { r.handle(name, messages, nil) })
	}
	return rollingMember{func() {
		require.NoError(r.t, tr.Close())
		handlers.Wait()
	}}, m
}

// settled waits until the group has this assignment and so many members, each partition has one owner, and every key goes on.
func (r *rolling) settled(protocol string, members int) {
	r.t.Helper()
	require.EventuallyWithT(r.t, func(t *assert.CollectT) {
		described, err := r.admin.DescribeGroups(r.t.Context(), r.group)
		require.NoError(t, err)
		g := described[r.group]
		assert.Equal(t, "Stable", g.State)
		assert.Equal(t, protocol, g.Protocol)
		assert.Len(t, g.Members, members)
		var owned []int32
		for _, m := range g.Members {
			if a, ok := m.Assigned.AsConsumer(); ok {
				for _, topic := range a.Topics {
					owned = append(owned, topic.Partitions...)
				}
			}
		}
		assert.ElementsMatch(t, []int32{0, 1, 2, 3, 4, 5}, owned)
	}, 2*wait, 50*time.Millisecond)
	r.mu.Lock()
	from := r.published
	r.mu.Unlock()
	r.handled(from + 2)
}

// handled waits until so many events of each key are handled.
func (r *rolling) handled(rounds int) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 2*wait)
	defer cancel()
	defer context.AfterFunc(ctx, r.wake)()
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.done() < rounds && ctx.Err() == nil {
		r.more.Wait()
	}
	require.NoError(r.t, ctx.Err(), "of %d rounds %d are handled: %v", r.published, r.done(), r.next)
}

func (r *rolling) stopPublishing() {
	if !r.over() {
		close(r.enough)
		r.wake()
	}
	r.publishing.Wait()
}

// wake lets all waiting goroutines look again.
func (r *rolling) wake() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.more.Broadcast()
}

// finish requires that every event was handled, and nothing went wrong.
func (r *rolling) finish() {
	r.t.Helper()
	r.stopPublishing()
	r.handled(r.published)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.t.Logf("%d events, %d handled again, owners of partitions changed %v", r.published*rollingKeys, r.repeated, r.changes)
	require.Empty(r.t, r.wrong)
	for partition, changes := range r.changes {
		// A partition that two members own goes to and fro with every event.
		require.Less(r.t, changes, 10*rollingMembers, "partition %d changed its owner", partition)
	}
}

// revocations is how many partitions the members have lost.
func revocations(t testing.TB, meters []*meter) (all int64) {
	for _, m := range meters {
		all += m.collect(t)["millrace.kafka.rebalances revoked"]
	}
	return all
}
