package kafka_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
)

// resetting is a topic of two partitions with three records each, an hour between them.
type resetting struct {
	t               *testing.T
	tr              *kafka.Transport
	client          *kgo.Client
	topic, consumer string
}

var firstRecord = time.Now().Add(-3 * time.Hour).Truncate(time.Second)

func newResetting(t *testing.T) *resetting {
	addresses := devtest.Real(t, devstack.Kafka).KafkaBrokers()
	client, err := kgo.NewClient(kgo.SeedBrokers(addresses...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	require.NoError(t, err)
	t.Cleanup(client.Close)
	s := &resetting{t: t, tr: connect(t, kafka.Config{Brokers: addresses}), client: client, topic: devtest.Topic(t), consumer: consumerName(t)}
	_, err = kadm.NewClient(client).CreateTopic(t.Context(), 2, -1, nil, s.topic)
	require.NoError(t, err)
	for i, id := range []string{"a", "b", "c"} {
		for p := range int32(2) {
			require.NoError(t, client.ProduceSync(t.Context(), &kgo.Record{
				Topic: s.topic, Partition: p, Value: []byte(id), Timestamp: firstRecord.Add(time.Duration(i) * time.Hour),
			}).FirstErr())
		}
	}
	return s
}

// consume acks what comes, n messages, and returns their payloads with how often each came.
func (s *resetting) consume(n int) map[string]int {
	s.t.Helper()
	subscriber, messages := subscribe(s.t, s.tr, s.topic, transport.SubscriberConfig{Consumer: s.consumer})
	got := map[string]int{}
	for range n {
		msg := next(s.t, messages)
		got[string(msg.Payload)]++
		msg.Ack()
	}
	require.NoError(s.t, subscriber.Close()) // which commits, and leaves the group
	return got
}

// reset is Reset as an operator does it, who tries again while the group's last member is leaving.
func (s *resetting) reset(to transport.Position) []transport.Move {
	s.t.Helper()
	var moves []transport.Move
	require.EventuallyWithT(s.t, func(c *assert.CollectT) {
		var err error
		moves, err = s.tr.Reset(s.t.Context(), transport.Reset{Topic: s.topic, Consumer: s.consumer, To: to})
		require.NoError(c, err)
	}, 2*wait, 100*time.Millisecond)
	return moves
}

func TestReset(t *testing.T) {
	t.Parallel()
	s := newResetting(t)
	all := map[string]int{"a": 2, "b": 2, "c": 2}
	require.Equal(t, all, s.consume(6))

	require.Equal(t, []transport.Move{{Partition: 0, From: 3, To: 0}, {Partition: 1, From: 3, To: 0}}, s.reset(transport.Position{Earliest: true}))
	require.Equal(t, all, s.consume(6))
	require.Equal(t, []transport.Move{{Partition: 0, From: 3, To: 1}, {Partition: 1, From: 3, To: 1}}, s.reset(transport.Position{Time: firstRecord.Add(30 * time.Minute)}), "between two records")
	require.Equal(t, map[string]int{"b": 2, "c": 2}, s.consume(4))
	require.Equal(t, []transport.Move{{Partition: 0, From: 3, To: 2}, {Partition: 1, From: 3, To: 2}}, s.reset(transport.Position{Time: firstRecord.Add(2 * time.Hour)}), "of a record")
	require.Equal(t, []transport.Move{{Partition: 0, From: 2, To: 3}, {Partition: 1, From: 2, To: 3}}, s.reset(transport.Position{Time: firstRecord.Add(150 * time.Minute)}), "after the last record")
	require.Equal(t, []transport.Move{{Partition: 1, From: 3, To: 2}}, s.reset(transport.Position{Offsets: map[int32]int64{1: 2}}))
	require.Equal(t, map[string]int{"c": 1}, s.consume(1))
	s.reset(transport.Position{Earliest: true})
	require.Equal(t, []transport.Move{{Partition: 0, From: 0, To: 3}, {Partition: 1, From: 0, To: 3}}, s.reset(transport.Position{Latest: true}))
	require.NoError(t, s.client.ProduceSync(t.Context(), &kgo.Record{Topic: s.topic, Partition: 1, Value: []byte("d")}).FirstErr())
	require.Equal(t, map[string]int{"d": 1}, s.consume(1))

	moves, err := s.tr.Reset(t.Context(), transport.Reset{Topic: s.topic, Consumer: s.consumer, To: transport.Position{Earliest: true}, DryRun: true})
	require.NoError(t, err)
	require.Equal(t, []transport.Move{{Partition: 0, From: 3, To: 0}, {Partition: 1, From: 4, To: 0}}, moves)
	require.Equal(t, []transport.Move{{Partition: 0, From: 3, To: 3}, {Partition: 1, From: 4, To: 4}}, s.reset(transport.Position{Latest: true}), "a dry run changes nothing")

	s.consumer += "-new"
	require.Equal(t, []transport.Move{{Partition: 0, From: -1, To: 1}, {Partition: 1, From: -1, To: 1}}, s.reset(transport.Position{Time: firstRecord.Add(time.Hour)}))
	require.Equal(t, map[string]int{"b": 2, "c": 2, "d": 1}, s.consume(5), "a consumer may begin elsewhere than at either end")
}

// TestResetWhileMembersRun: a member would commit its own offsets over those of the reset. It is refused, names the member, and
// changes nothing.
func TestResetWhileMembersRun(t *testing.T) {
	t.Parallel()
	s := newResetting(t)
	subscriber, messages := subscribe(t, s.tr, s.topic, transport.SubscriberConfig{Consumer: s.consumer})
	for range 6 {
		next(t, messages).Ack()
	}
	for _, dry := range []bool{true, false} {
		_, err := s.tr.Reset(t.Context(), transport.Reset{Topic: s.topic, Consumer: s.consumer, To: transport.Position{Earliest: true}, DryRun: dry})
		require.ErrorIs(t, err, transport.ErrConsumerRuns)
		require.ErrorContains(t, err, "(millrace at 127.0.0.1): stop them")
	}
	require.NoError(t, subscriber.Close())
	require.Equal(t, []transport.Move{{Partition: 0, From: 3, To: 3}, {Partition: 1, From: 3, To: 3}}, s.reset(transport.Position{Latest: true}))
}

func TestResetIsRefused(t *testing.T) {
	t.Parallel()
	s := newResetting(t)
	for says, to := range map[string]transport.Position{
		"has no partition 2: want 0 to 1":   {Offsets: map[int32]int64{2: 0}},
		"has no offset 4: want 0 to 3":      {Offsets: map[int32]int64{0: 4}},
		"Kafka has no snapshots":            {Snapshot: "before"},
		"want Earliest, Latest, a Time or ": {},
	} {
		_, err := s.tr.Reset(t.Context(), transport.Reset{Topic: s.topic, Consumer: s.consumer, To: to})
		assert.ErrorContains(t, err, says)
	}
	for says, r := range map[string]transport.Reset{
		"look up topic " + s.topic + "-x": {Topic: s.topic + "-x", Consumer: s.consumer},
		"want 1 to 201 letters":           {Topic: s.topic, Consumer: "a b"},
	} {
		r.To.Earliest = true
		_, err := s.tr.Reset(t.Context(), r)
		assert.ErrorContains(t, err, says)
	}
}
