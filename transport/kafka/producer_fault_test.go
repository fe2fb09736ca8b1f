package kafka_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
)

// numbered returns n messages of a key, whose payloads are numbers from first on.
func numbered(key string, first, n int) []*message.Message {
	batch := make([]*message.Message, n)
	for i := range batch {
		batch[i] = newMessage(key, fmt.Sprint(first+i))
	}
	return batch
}

// requireNumbered requires that the topic has the key's messages, once each and in order.
func requireNumbered(t *testing.T, got []string, n int) {
	t.Helper()
	want := make([]string, n)
	for i := range want {
		want[i] = fmt.Sprint(i)
	}
	require.Equal(t, want, got)
}

// sometimes is the fate of a third of the produce requests.
func sometimes(what fate) func(kmsg.Key, int) fate {
	return func(kind kmsg.Key, _ int) fate {
		if kind == kmsg.Produce && rand.IntN(3) == 0 {
			return what
		}
		return pass
	}
}

// TestFaultsOfPublishing: whatever goes wrong for a while, each message arrives once and in the order of its key, and no
// caller hears of it.
func TestFaultsOfPublishing(t *testing.T) {
	t.Parallel()
	const topic, keys, calls, n = "topic", 4, 5, 5
	answered := func(err *kerr.Error) func(*kfake.Cluster) {
		return func(cluster *kfake.Cluster) {
			var latest kmsg.Request
			failing := false
			cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: topic, Err: err, Count: -1, When: func(request kmsg.Request) bool {
				if request != latest { // it is asked for each partition
					latest, failing = request, rand.IntN(3) == 0
				}
				return failing
			}})
		}
	}
	for name, c := range map[string]struct {
		decide  func(kmsg.Key, int) fate
		prepare func(*kfake.Cluster)
		moves   bool
	}{
		"the answer is lost":                 {decide: sometimes(loseAnswer)},
		"the answer is late":                 {decide: sometimes(delayAnswer)},
		"the connection breaks in a request": {decide: sometimes(loseRequest)},
		"the leader moves":                   {moves: true},
		"not the leader":                     {prepare: answered(kerr.NotLeaderForPartition)},
		"too few replicas":                   {prepare: answered(kerr.NotEnoughReplicas)},
		"too few replicas, too late":         {prepare: answered(kerr.NotEnoughReplicasAfterAppend)},
		"the replicas are slow":              {prepare: answered(kerr.RequestTimedOut)},
		"the sequence is unknown":            {prepare: answered(kerr.OutOfOrderSequenceNumber)},
		"the producer is unknown":            {prepare: answered(kerr.UnknownProducerID)},
		"the epoch is over":                  {prepare: answered(kerr.InvalidProducerEpoch)},
		"no identity is to be had": {prepare: func(cluster *kfake.Cluster) {
			cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.InitProducerID}, TopLevel: true, Err: kerr.CoordinatorLoadInProgress, Count: 2})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := fake(t, kfake.NumBrokers(2), kfake.SeedTopics(2, topic))
			if c.prepare != nil {
				c.prepare(cluster)
			}
			if c.moves {
				c.decide = func(kind kmsg.Key, n int) fate { // to the other broker, at every second request
					for partition := range int32(2) {
						if kind == kmsg.Produce {
							_ = cluster.MoveTopicPartition(topic, partition, int32(n/2%2))
						}
					}
					return pass
				}
			}
			p := batcher(t, connect(t, kafka.Config{Brokers: cluster.ListenAddrs(), Dial: newFaultNet(c.decide).dial}))
			var running sync.WaitGroup
			for key := range keys {
				running.Go(func() {
					for call := range calls {
						for _, err := range p.PublishBatch(t.Context(), topic, numbered(fmt.Sprint(key), call*n, n)) {
							assertNoError(t, err)
						}
					}
				})
			}
			running.Wait()
			records := read(t, cluster.ListenAddrs(), topic, keys*calls*n)
			for key := range keys {
				requireNumbered(t, payloads(records, fmt.Sprint(key)), calls*n)
			}
		})
	}
}

func assertNoError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// A request that arrives after its caller has given up does not come between what is published since, and is not taken for
// it either.
func TestLateRequest(t *testing.T) {
	t.Parallel()
	for name, early := range map[string]bool{"before the next": true, "after the next": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := fake(t, kfake.SeedTopics(1, "topic"))
			network := newFaultNet(nth(kmsg.Produce, 2, delayRequest))
			p := batcher(t, connect(t, kafka.Config{Brokers: cluster.ListenAddrs(), Dial: network.dial}))
			requireAll(t, p.PublishBatch(t.Context(), "topic", numbered("k", 0, 1)))
			ctx, cancel := context.WithCancel(t.Context())
			gaveUp := make(chan struct{})
			looks := cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Metadata}, Observe: true, Count: -1, When: func(kmsg.Request) bool {
				cancel()
				<-gaveUp // the engine looks for the leader before its second attempt
				return true
			}})
			results := p.PublishBatch(ctx, "topic", []*message.Message{newMessage("k", "late")})
			close(gaveUp)
			looks.Remove()
			require.ErrorIs(t, results[0], context.Canceled)
			n := 2
			if early {
				network.release(t)
				n++
			}
			requireAll(t, p.PublishBatch(t.Context(), "topic", numbered("k", 1, 1)))
			if !early {
				network.release(t)
			}
			records := read(t, cluster.ListenAddrs(), "topic", n)
			got := payloads(records, "k")
			if early {
				require.Equal(t, "late", got[1])
				got = slices.Delete(got, 1, 2)
			}
			requireNumbered(t, got, 2)
		})
	}
}

// What may have been published, and cannot be known, is not published again: its caller decides.
func TestDoubtIsToldToTheCaller(t *testing.T) {
	t.Parallel()
	cluster := fake(t, kfake.SeedTopics(1, "topic"))
	cluster.Fault(
		kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "topic", Err: kerr.RequestTimedOut},
		kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "topic", Err: kerr.UnknownProducerID},
	)
	p := batcher(t, connect(t, kafka.Config{Brokers: cluster.ListenAddrs()}))
	results := p.PublishBatch(t.Context(), "topic", numbered("k", 0, 1))
	require.ErrorIs(t, results[0], transport.ErrUnavailable)
	require.ErrorContains(t, results[0], "may have been published")
	requireAll(t, p.PublishBatch(t.Context(), "topic", numbered("k", 1, 1)))
	requireNumbered(t, payloads(read(t, cluster.ListenAddrs(), "topic", 2), "k"), 2)
}

// TestGuiltyMessage: of a batch that the broker refuses only those that are to blame are rejected, whether or not it names
// them, and what follows of their key is held back.
func TestGuiltyMessage(t *testing.T) {
	t.Parallel()
	for name, refuse := range map[string]func(*kfake.Cluster){
		"too large": func(cluster *kfake.Cluster) {
			require.NoError(t, cluster.CreateTopic("topic", 1, map[string]string{"max.message.bytes": "2000"}))
			// Who may not ask learns it from the refusal.
			cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.DescribeConfigs}, Resource: "topic", Err: kerr.TopicAuthorizationFailed, Count: -1})
		},
		"invalid": func(cluster *kfake.Cluster) {
			require.NoError(t, cluster.CreateTopic("topic", 1, nil))
			cluster.ControlKey(int16(kmsg.Produce), func(request kmsg.Request) (kmsg.Response, error, bool) {
				return invalid(request.(*kmsg.ProduceRequest), 2), nil, true
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := fake(t)
			refuse(cluster)
			config := kafka.Config{Brokers: cluster.ListenAddrs(), Producer: kafka.ProducerConfig{Compression: kafka.Uncompressed}}
			p := batcher(t, connect(t, config))
			batch := []*message.Message{
				newMessage("a", "0"), newMessage("b", "0"), newMessage("a", "guilty"+strings.Repeat("!", 3000)),
				newMessage("b", "1"), newMessage("a", "held back"), newMessage("", "2"),
			}
			results := p.PublishBatch(t.Context(), "topic", batch)
			require.ErrorIs(t, results[2], transport.ErrRejected)
			require.ErrorIs(t, results[4], transport.ErrNotSent)
			for _, i := range []int{0, 1, 3, 5} {
				require.NoError(t, results[i], "message %d", i)
			}
			requireAll(t, p.PublishBatch(t.Context(), "topic", numbered("a", 1, 2)))
			records := read(t, cluster.ListenAddrs(), "topic", 6)
			requireNumbered(t, payloads(records, "a"), 3)
			requireNumbered(t, payloads(records, "b"), 2)
		})
	}
}

// invalid is the answer to a request that blames one record of it.
func invalid(request *kmsg.ProduceRequest, record int32) *kmsg.ProduceResponse {
	response := request.ResponseKind().(*kmsg.ProduceResponse)
	topic := kmsg.NewProduceResponseTopic()
	topic.Topic = request.Topics[0].Topic
	partition := kmsg.NewProduceResponseTopicPartition()
	partition.ErrorCode = kerr.InvalidRecord.Code
	blame := kmsg.NewProduceResponseTopicPartitionErrorRecord()
	blame.RelativeOffset = record
	partition.ErrorRecords = append(partition.ErrorRecords, blame)
	topic.Partitions = append(topic.Partitions, partition)
	response.Topics = append(response.Topics, topic)
	return response
}

// An outage that outlasts the publish timeout is an error that says so; afterwards all goes on.
func TestOutageOutlastsTheTimeout(t *testing.T) {
	t.Parallel()
	cluster := fake(t, kfake.SeedTopics(1, "topic"))
	network := newFaultNet(nil)
	p := batcher(t, connect(t, kafka.Config{
		Brokers: cluster.ListenAddrs(), Dial: network.dial, Producer: kafka.ProducerConfig{Timeout: 3 * time.Second},
	}))
	requireAll(t, p.PublishBatch(t.Context(), "topic", numbered("k", 0, 1)))
	network.kill()
	for _, err := range p.PublishBatch(t.Context(), "topic", numbered("k", 9, 2)) {
		require.ErrorIs(t, err, transport.ErrUnavailable)
		require.ErrorContains(t, err, "no acknowledgement within 3s")
		require.ErrorContains(t, err, "the latest attempt: ")
	}
	require.ErrorIs(t, p.PublishBatch(t.Context(), "another", numbered("k", 0, 1))[0], transport.ErrUnavailable)
	network.restore()
	requireAll(t, p.PublishBatch(t.Context(), "topic", numbered("k", 1, 1)))
	requireNumbered(t, payloads(read(t, cluster.ListenAddrs(), "topic", 2), "k"), 2)
}

// An outage in which a publisher sends its first message ends when the brokers are back: sarama gives up those that it has
// asked in vain for a producer ID, and would look for them a minute later, with the metadata.
func TestOutageAtTheFirstMessage(t *testing.T) {
	t.Parallel()
	cluster := fake(t, kfake.SeedTopics(1, "topic"))
	network := newFaultNet(nil)
	tr := connect(t, kafka.Config{Brokers: cluster.ListenAddrs(), Dial: network.dial, Producer: kafka.ProducerConfig{Timeout: 3 * time.Second}})
	s, err := tr.Subscriber(transport.SubscriberConfig{Consumer: "c"})
	require.NoError(t, err)
	require.NoError(t, s.(message.SubscribeInitializer).SubscribeInitialize("topic")) // the topic is known before
	p := batcher(t, tr)
	network.kill()
	require.ErrorIs(t, p.PublishBatch(t.Context(), "topic", numbered("k", 9, 1))[0], transport.ErrUnavailable)
	network.restore()
	requireAll(t, p.PublishBatch(t.Context(), "topic", numbered("k", 0, 1)))
}

// A publisher without the right to write hears at once, and for what reason.
func TestPublishWithoutTheRight(t *testing.T) {
	t.Parallel()
	cluster := fake(t, kfake.SeedTopics(1, "topic"))
	cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "topic", Err: kerr.TopicAuthorizationFailed})
	p := batcher(t, connect(t, kafka.Config{Brokers: cluster.ListenAddrs()}))
	results := p.PublishBatch(t.Context(), "topic", numbered("k", 9, 1))
	require.ErrorIs(t, results[0], transport.ErrUnavailable)
	require.ErrorContains(t, results[0], "authorized")
	requireAll(t, p.PublishBatch(t.Context(), "topic", numbered("k", 0, 1)))
}

// queued is a context that tells when the engine has its message: it looks at Done after that.
type queued struct {
	context.Context
	tell func()
}

func (c queued) Done() <-chan struct{} {
	c.tell()
	return c.Context.Done()
}

// TestCallsShareRequests: what gathers while a request is under way goes with the next one.
func TestCallsShareRequests(t *testing.T) {
	t.Parallel()
	cluster := fake(t, kfake.SeedTopics(3, "topic"))
	const callers = 16
	first, all := make(chan struct{}), make(chan struct{})
	network := newFaultNet(func(kind kmsg.Key, n int) fate {
		if kind == kmsg.Produce && n == 1 {
			close(first)
			<-all
		}
		return pass
	})
	p := batcher(t, connect(t, kafka.Config{Brokers: cluster.ListenAddrs(), Dial: network.dial}))
	var running, waiting sync.WaitGroup
	running.Go(func() { requireAll(t, p.PublishBatch(t.Context(), "topic", numbered("first", 0, 1))) })
	<-first
	waiting.Add(callers)
	for c := range callers {
		running.Go(func() {
			batch := numbered(fmt.Sprint(c), 0, 10)
			batch[0].SetContext(queued{t.Context(), sync.OnceFunc(waiting.Done)})
			requireAll(t, p.PublishBatch(t.Context(), "topic", batch))
		})
	}
	waiting.Wait()
	close(all)
	running.Wait()
	require.Equal(t, 2, network.count(kmsg.Produce), "requests")
	read(t, cluster.ListenAddrs(), "topic", 1+callers*10)
}
