package kafka_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
)

// transactions opens those of a number, over a transport of their own.
func transactions(t testing.TB, config kafka.Config, name string, number int) transport.Transactions {
	t.Helper()
	p, err := connect(t, config).PlainPublisher()
	require.NoError(t, err)
	x := p.(transport.TransactionalPublisher).Transactions(name, number)
	t.Cleanup(func() { require.NoError(t, x.Close()) })
	return x
}

// take takes them, once the topic of notes is there: brokers learn of a new one by and by.
func take(t testing.TB, x transport.Transactions) (note string) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		found, err := x.Take(t.Context())
		require.NoError(c, err)
		note = string(found)
	}, 2*wait, tick)
	return note
}

// ready creates the topic, and returns when the partition of the messages takes some.
func ready(t testing.TB, brokers []string, topic string) {
	t.Helper()
	require.NoError(t, batcher(t, connect(t, kafka.Config{Brokers: brokers})).Publish(topic, newMessage("key", "ready")))
}

// commit publishes one message for each payload.
func commit(t testing.TB, x transport.Transactions, topic, note string, payloads ...string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	msgs := make([]*message.Message, len(payloads))
	for i, p := range payloads {
		msgs[i] = newMessage("key", p)
	}
	results := x.Publish(ctx, topic, msgs, []byte(note))
	require.Len(t, results, len(msgs))
	for _, err := range results[1:] {
		require.Equal(t, results[0] == nil, err == nil, "all or nothing")
	}
	return results[0]
}

func copyingOf(t testing.TB, brokers []string) *copying {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return &copying{brokers: brokers, admin: kadm.NewClient(client)}
}

// TestTransactionsAreFenced: whoever takes them commits, nobody else does, and knows what was committed last.
func TestTransactionsAreFenced(t *testing.T) {
	t.Parallel()
	test := func(t *testing.T, brokers []string) {
		config, topic := kafka.Config{Brokers: brokers}, devtest.Topic(t)
		first, other := transactions(t, config, topic, 3), transactions(t, config, topic, 4)
		ready(t, brokers, topic)
		require.Empty(t, take(t, first))
		require.Empty(t, take(t, other))
		require.NoError(t, commit(t, first, topic, "one", "a", "b"))
		require.NoError(t, commit(t, other, topic, "other's", "o"))
		require.NoError(t, commit(t, first, topic, "two", "c"))

		second := transactions(t, config, topic, 3)
		require.Equal(t, "two", take(t, second))
		require.ErrorIs(t, commit(t, first, topic, "late", "late"), transport.ErrUnavailable)
		require.NoError(t, commit(t, second, topic, "three", "d"))
		require.Equal(t, "three", take(t, first), "what it has failed to commit is gone")
		require.ErrorIs(t, commit(t, second, topic, "late", "late"), transport.ErrUnavailable)
		require.NoError(t, commit(t, first, topic, "four", "e"))
		require.Equal(t, "other's", take(t, other))
		require.Equal(t, []string{"ready", "a", "b", "o", "c", "d", "e"}, copyingOf(t, brokers).read(t, topic))
	}
	onBoth(t, test)
	t.Run("version 1", func(t *testing.T) {
		t.Parallel()
		test(t, fake(t, kfake.MaxVersions(kversion.V3_7_0())).ListenAddrs())
	})
}

// TestTransactionsOfAnotherPrefixAreNotFenced is the control: the transactional ID is what refuses an earlier holder. With an ID of its own, one
// that was held up commits what others have published meanwhile.
func TestTransactionsOfAnotherPrefixAreNotFenced(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, brokers []string) {
		topic := devtest.Topic(t)
		prefixed := func(prefix string) transport.Transactions {
			return transactions(t, kafka.Config{Brokers: brokers, Transaction: kafka.Transaction{IDPrefix: prefix}}, topic, 3)
		}
		first, second := prefixed("first"), prefixed("second")
		ready(t, brokers, topic)
		require.Empty(t, take(t, first))
		require.NoError(t, commit(t, first, topic, "one", "a"))
		require.Equal(t, "one", take(t, second))
		require.NoError(t, commit(t, second, topic, "two", "b"))
		require.NoError(t, commit(t, first, topic, "late", "b"))
		require.Equal(t, []string{"ready", "a", "b", "b"}, copyingOf(t, brokers).read(t, topic))
	})
}

// TestTransactionsOfTopics: a transaction has messages of several topics, or nothing of any.
func TestTransactionsOfTopics(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, brokers []string) {
		config, one, other := kafka.Config{Brokers: brokers}, devtest.Topic(t), devtest.Topic(t)
		x := transactions(t, config, one, 3).(transport.JointTransactions)
		ready(t, brokers, one)
		ready(t, brokers, other)
		publish := func(note string, topics ...string) []error {
			ctx, cancel := context.WithTimeout(t.Context(), wait)
			defer cancel()
			msgs := make([]*message.Message, len(topics))
			for i := range msgs {
				msgs[i] = newMessage("key", fmt.Sprint(note, i))
			}
			return x.PublishTo(ctx, topics, msgs, []byte(note))
		}
		require.Empty(t, take(t, x))
		require.Equal(t, make([]error, 3), publish("x", one, other, one))
		for _, err := range publish("y", one, "no such name", other) {
			require.Error(t, err)
		}
		require.Equal(t, "x", take(t, x))
		require.Equal(t, make([]error, 2), publish("z", other, one))
		require.Equal(t, []string{"ready", "x0", "x2", "z1"}, copyingOf(t, brokers).read(t, one))
		require.Equal(t, []string{"ready", "x1", "z0"}, copyingOf(t, brokers).read(t, other))
	})
}

// TestTransactionsFindTheirNote: it is that of the newest one, however many others have written since, or have been aborted.
func TestTransactionsFindTheirNote(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, brokers []string) {
		config, topic := kafka.Config{Brokers: brokers}, devtest.Topic(t)
		rare, busy := transactions(t, config, topic, 0), transactions(t, config, topic, kafka.NotePartitions) // of one partition
		ready(t, brokers, topic)
		take(t, rare)
		take(t, busy)
		require.NoError(t, commit(t, rare, topic, "the first", "x"))
		for i := range 150 {
			require.NoError(t, commit(t, busy, topic, fmt.Sprint("note ", i), "y"))
		}
		require.Equal(t, "the first", take(t, rare))
		require.Equal(t, "note 149", take(t, busy))
	})
}

// TestTransactionsRefuseMessages that no broker takes: they are told from the others, and nothing is sent.
func TestTransactionsRefuseMessages(t *testing.T) {
	t.Parallel()
	brokers, topic := fake(t).ListenAddrs(), devtest.Topic(t)
	x := transactions(t, kafka.Config{Brokers: brokers}, topic, 0)
	take(t, x)
	fine, large := newMessage("k", "fine"), newMessage("k", string(make([]byte, 2<<20)))
	results := x.Publish(t.Context(), topic, []*message.Message{fine, large}, nil)
	require.ErrorIs(t, results[0], transport.ErrNotSent)
	require.ErrorIs(t, results[1], transport.ErrLimit)
	require.NoError(t, commit(t, x, topic, "", "after"))
	require.Equal(t, []string{"after"}, copyingOf(t, brokers).read(t, topic))
}

// TestTransactionsNeedTheirPartitions: with fewer, a number's note would be looked for where it is not.
func TestTransactionsNeedTheirPartitions(t *testing.T) {
	t.Parallel()
	name := devtest.Topic(t)
	brokers := fake(t, kfake.SeedTopics(2, "millrace.progress."+name)).ListenAddrs()
	x := transactions(t, kafka.Config{Brokers: brokers}, name, 0)
	_, err := x.Take(t.Context())
	require.ErrorIs(t, err, transport.ErrUnavailable)
	require.ErrorContains(t, err, "--partitions 16")
}

// TestRefusedNoteIsNoEventsFault: the brokers refuse the note, which is no event's fault. Such events became dead.
func TestRefusedNoteIsNoEventsFault(t *testing.T) {
	t.Parallel()
	for name, options := range map[string][]kfake.Opt{"version 1": {kfake.MaxVersions(kversion.V3_7_0())}, "version 2": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster, topic := fake(t, options...), devtest.Topic(t)
			notes := "millrace.progress." + topic
			x := transactions(t, kafka.Config{Brokers: cluster.ListenAddrs()}, topic, 0)
			take(t, x)
			refused := func(remedy string) {
				err := commit(t, x, topic, "note", "a", "b")
				require.ErrorIs(t, err, transport.ErrUnavailable)
				require.NotErrorIs(t, err, transport.ErrRejected)
				require.ErrorContains(t, err, remedy)
			}
			for _, c := range []struct {
				err    *kerr.Error
				remedy string
			}{
				{kerr.MessageTooLarge, "max.message.bytes of the topic " + notes},
				{kerr.InvalidRecord, "the note in " + notes},
				{kerr.TopicAuthorizationFailed, "WRITE on the topic " + notes},
			} {
				fault := cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: notes, Err: c.err, Count: -1})
				refused(c.remedy)
				fault.Remove()
				require.Empty(t, take(t, x))
			}
			if options != nil { // version 2 has no such request
				var allowed atomic.Bool
				cluster.ControlKey(int16(kmsg.AddPartitionsToTxn), func(r kmsg.Request) (kmsg.Response, error, bool) {
					cluster.KeepControl()
					return refuseTopic(r.(*kmsg.AddPartitionsToTxnRequest), notes), nil, !allowed.Load()
				})
				refused("WRITE on the topic " + notes)
				allowed.Store(true)
				require.Empty(t, take(t, x))
			}
			require.NoError(t, commit(t, x, topic, "note", "a"))
			require.Equal(t, []string{"a"}, copyingOf(t, cluster.ListenAddrs()).read(t, topic))
		})
	}
}

// refuseTopic is what Apache Kafka answers if the client has no right to write to one of the topics. A fault of kfake
// refuses all topics of the request.
func refuseTopic(request *kmsg.AddPartitionsToTxnRequest, refused string) kmsg.Response {
	response := request.ResponseKind().(*kmsg.AddPartitionsToTxnResponse)
	for _, of := range request.Topics {
		answer := kmsg.NewAddPartitionsToTxnResponseTopic()
		answer.Topic = of.Topic
		for _, n := range of.Partitions {
			partition := kmsg.NewAddPartitionsToTxnResponseTopicPartition()
			partition.Partition, partition.ErrorCode = n, kerr.OperationNotAttempted.Code
			if of.Topic == refused {
				partition.ErrorCode = kerr.TopicAuthorizationFailed.Code
			}
			answer.Partitions = append(answer.Partitions, partition)
		}
		response.Topics = append(response.Topics, answer)
	}
	return response
}

// TestLargestNote: a note of MaxNote bytes is committed, also where the brokers take less by default.
func TestLargestNote(t *testing.T) {
	t.Parallel()
	test := func(t *testing.T, brokers []string) {
		topic, note := devtest.Topic(t), make([]byte, transport.MaxNote)
		_, _ = rand.NewChaCha8([32]byte{}).Read(note) // nothing can be compressed
		x := transactions(t, kafka.Config{Brokers: brokers}, topic, 0)
		ready(t, brokers, topic)
		take(t, x)
		require.NoError(t, commit(t, x, topic, string(note), "a"))
		require.Equal(t, string(note), take(t, x))
	}
	onBoth(t, test)
	t.Run("brokers that take less", func(t *testing.T) {
		t.Parallel()
		test(t, fake(t, kfake.BrokerConfigs(map[string]string{"message.max.bytes": "100000"})).ListenAddrs())
	})
}

// TestTransactionsLeaveOutWhatIsOutOfReach: a partition has no leader. The messages of its key are told from the others, which
// another transaction publishes. All failed as long as the partition had no leader.
func TestTransactionsLeaveOutWhatIsOutOfReach(t *testing.T) {
	t.Parallel()
	cluster := fake(t, kfake.SeedTopics(3, "topic"))
	gone := leaderless(t, cluster, "topic", 3)
	there, missing := keyInto(t, cluster, 0, 3), keyInto(t, cluster, 1, 3)
	x := transactions(t, kafka.Config{Brokers: cluster.ListenAddrs()}, devtest.Topic(t), 0)
	take(t, x)
	out, fine := newMessage(missing, "out of reach"), newMessage(there, "fine")
	results := x.Publish(t.Context(), "topic", []*message.Message{fine, out}, []byte("both"))
	require.ErrorIs(t, results[0], transport.ErrNotSent)
	require.ErrorIs(t, results[1], transport.ErrUnavailable)
	require.NotErrorIs(t, results[1], transport.ErrRejected)
	require.Empty(t, take(t, x))
	require.NoError(t, x.Publish(t.Context(), "topic", []*message.Message{fine}, []byte("one"))[0])
	require.Equal(t, "one", take(t, x))
	gone.Store(false)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		_, err := x.Take(t.Context())
		require.NoError(c, err)
		require.NoError(c, x.Publish(t.Context(), "topic", []*message.Message{out}, []byte("other"))[0])
	}, 2*wait, tick)
	require.ElementsMatch(t, []string{"fine", "out of reach"}, copyingOf(t, cluster.ListenAddrs()).read(t, "topic"))
}

// TestTransactionsFindTheirNoteAfterALeaderChange: a new leader does not give records that it does not know to be committed. The
// note was taken to be an older one, or none.
func TestTransactionsFindTheirNoteAfterALeaderChange(t *testing.T) {
	t.Parallel()
	cluster, topic := fake(t), devtest.Topic(t)
	config := kafka.Config{Brokers: cluster.ListenAddrs()}
	first := transactions(t, config, topic, 0)
	take(t, first)
	require.NoError(t, commit(t, first, topic, "one", "a"))
	require.NoError(t, commit(t, first, topic, "two", "b"))
	var unaware atomic.Int32
	cluster.ControlKey(int16(kmsg.Fetch), func(r kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		request := r.(*kmsg.FetchRequest)
		if len(request.Topics) != 1 || request.Topics[0].Topic != "millrace.progress."+topic || unaware.Add(1) > 5 {
			return nil, nil, false
		}
		response := request.ResponseKind().(*kmsg.FetchResponse)
		answer, partition := kmsg.NewFetchResponseTopic(), kmsg.NewFetchResponseTopicPartition()
		answer.Topic, partition.Partition, partition.RecordBatches = request.Topics[0].Topic, request.Topics[0].Partitions[0].Partition, []byte{}
		answer.Partitions = append(answer.Partitions, partition)
		response.Topics = append(response.Topics, answer)
		return response, nil, true
	})
	second := transactions(t, config, topic, 0)
	note, err := second.Take(t.Context())
	require.NoError(t, err)
	require.Equal(t, "two", string(note))
	require.Greater(t, unaware.Load(), int32(5))
}

// TestTransactionsProveTheirNote: a broker may not know yet that another one leads the partition of the notes, and answer with a note
// that is not the newest. So the first transaction commits only at the leader that the note was read from.
func TestTransactionsProveTheirNote(t *testing.T) {
	t.Parallel()
	topics := []string{"one", "two", "three"}
	cluster := fake(t, kfake.NumBrokers(2), kfake.SeedTopics(1, topics...))
	const number = 3
	x := transactions(t, kafka.Config{Brokers: cluster.ListenAddrs()}, "name", number)
	require.Empty(t, take(t, x))
	notes := "millrace.progress.name"
	move := func() {
		now := cluster.LeaderFor(notes, number)
		require.NoError(t, cluster.MoveTopicPartition(notes, number, 1-now))
	}
	// The client asks for a topic when it first publishes to it. This answer tells of all topics, so it learns of the notes' new leader.
	var tellsAll atomic.Bool
	tellsAll.Store(true)
	cluster.ControlKey(int16(kmsg.Metadata), func(request kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		if tellsAll.Load() {
			request.(*kmsg.MetadataRequest).Topics = nil
		}
		return nil, nil, false
	})
	move()
	err := commit(t, x, topics[0], "unproven", "a")
	require.ErrorIs(t, err, transport.ErrUnavailable)
	require.ErrorContains(t, err, "millrace.progress.name, partition 3, has a new leader since the newest note was read")
	require.Empty(t, take(t, x))
	require.NoError(t, commit(t, x, topics[1], "first", "b"))
	move()
	require.NoError(t, commit(t, x, topics[2], "second", "c"), "its own note is the newest")
	require.Equal(t, "second", take(t, x))
	tellsAll.Store(false)
	require.Empty(t, copyingOf(t, cluster.ListenAddrs()).read(t, topics[0]))
}

// TestTransactionsSurviveTheirNotes: a topic of notes that is deleted is made again as a topic of notes. It was made as one of events,
// with too few partitions for any shard to go on.
func TestTransactionsSurviveTheirNotes(t *testing.T) {
	t.Parallel()
	cluster := fake(t, kfake.SeedTopics(1, "topic"))
	p, err := connect(t, kafka.Config{Brokers: cluster.ListenAddrs()}).PlainPublisher()
	require.NoError(t, err)
	open := func(number int) transport.Transactions {
		x := p.(transport.TransactionalPublisher).Transactions("name", number)
		t.Cleanup(func() { require.NoError(t, x.Close()) })
		return x
	}
	busy, idle := open(0), open(1)
	require.Empty(t, take(t, busy))
	require.Empty(t, take(t, idle))
	require.NoError(t, commit(t, busy, "topic", "one", "a"))
	require.NoError(t, cluster.DeleteTopic("millrace.progress.name"))
	require.Error(t, commit(t, busy, "topic", "two", "b"))
	for _, x := range []transport.Transactions{busy, idle} {
		require.Empty(t, take(t, x))
		require.NoError(t, commit(t, x, "topic", "three", "c"))
	}
	require.Len(t, cluster.PartitionInfos("millrace.progress.name"), kafka.NotePartitions)
	require.Equal(t, "compact", *cluster.TopicInfo("millrace.progress.name").Configs["cleanup.policy"])
}

// TestARefusedEventLeavesNoOpenTransaction: readers of committed records, and relays that look for their note, wait for the end of every
// transaction. One that wrote its note, and whose event the broker refused, ended only with the next event, or after its timeout.
func TestARefusedEventLeavesNoOpenTransaction(t *testing.T) {
	t.Parallel()
	cluster := fake(t, kfake.SeedTopics(1, "topic"))
	config := kafka.Config{Brokers: cluster.ListenAddrs()}
	config.Transaction.Timeout = 10 * time.Minute
	x := transactions(t, config, "name", 3)
	require.Empty(t, take(t, x))
	fault := cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "topic", Err: kerr.InvalidRecord, Count: -1})
	require.ErrorIs(t, commit(t, x, "topic", "refused", "a"), transport.ErrRejected)
	require.Positive(t, fault.Hits())
	admin := copyingOf(t, cluster.ListenAddrs()).admin
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		ends, err := admin.ListEndOffsets(t.Context(), "millrace.progress.name")
		require.NoError(c, err)
		stable, err := admin.ListCommittedOffsets(t.Context(), "millrace.progress.name")
		require.NoError(c, err)
		end, _ := ends.Lookup("millrace.progress.name", 3)
		committed, _ := stable.Lookup("millrace.progress.name", 3)
		require.Positive(c, end.Offset, "the note was written")
		require.Equal(c, end.Offset, committed.Offset)
	}, wait, tick)
}

// TestTransactionsFindTheirNoteAfterCompaction: the note of an aborted transaction is the last record of a segment, and compaction leaves an
// empty batch of it.
func TestTransactionsFindTheirNoteAfterCompaction(t *testing.T) {
	t.Parallel()
	config, topic := kafka.Config{Brokers: devtest.Real(t, devstack.Kafka).KafkaBrokers()}, devtest.Topic(t)
	notes := "millrace.progress." + topic
	ready(t, config.Brokers, topic)
	take(t, transactions(t, config, topic, 0))
	at := func(value string) kadm.AlterConfig { return kadm.AlterConfig{Op: kadm.SetConfig, Value: &value} }
	segment, lag := at("1000"), at("1000")
	segment.Name, lag.Name = "segment.ms", "max.compaction.lag.ms"
	admin := copyingOf(t, config.Brokers).admin
	changed, err := admin.AlterTopicConfigs(t.Context(), []kadm.AlterConfig{segment, lag}, notes)
	require.NoError(t, err)
	require.NoError(t, changed[0].Err)

	faulty := config
	faulty.Dial = newFaultNet(nth(kmsg.EndTxn, 3, killProcess)).dial
	killed := transactions(t, faulty, topic, 0)
	take(t, killed)
	require.NoError(t, commit(t, killed, topic, "first", "a"))
	require.NoError(t, commit(t, killed, topic, "second", "b"))
	require.ErrorIs(t, commit(t, killed, topic, "aborted", "c"), transport.ErrUnavailable)
	time.Sleep(2 * time.Second) // the end of the transaction belongs to the next segment
	next := transactions(t, config, topic, 0)
	require.Equal(t, "second", take(t, next))
	require.NoError(t, commit(t, next, topic, "third", "d"))

	require.Eventually(t, func() bool {
		reader, err := kgo.NewClient(kgo.SeedBrokers(config.Brokers...), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{notes: {0: kgo.NewOffset().AtStart()}}))
		require.NoError(t, err)
		defer reader.Close()
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		defer cancel()
		found := map[string]bool{}
		for !found["third"] {
			fetches := reader.PollFetches(ctx)
			require.NoError(t, ctx.Err())
			fetches.EachRecord(func(r *kgo.Record) { found[string(r.Value)] = true })
		}
		return !found["first"] && !found["aborted"]
	}, 2*time.Minute, time.Second, "the topic of notes is compacted")
	require.Equal(t, "third", take(t, transactions(t, config, topic, 0)))
}
