package kafka_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport/kafka"
)

// TestSilentLeaderHoldsUpNoRebalance: a leader does not answer a member that looks for the ends of transactions behind what it has handled.
// At a rebalance the member waited for that answer for up to 20 s, so the group went on without it.
func TestSilentLeaderHoldsUpNoRebalance(t *testing.T) {
	t.Parallel()
	for _, assignment := range []kafka.Assignment{kafka.CooperativeSticky, kafka.Range} {
		t.Run(assignment.String(), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 2)
			writer, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.TransactionalID(devtest.Topic(t)))
			require.NoError(t, err)
			t.Cleanup(writer.Close)
			require.NoError(t, writer.BeginTransaction())
			for n := range int32(2) {
				require.NoError(t, writer.ProduceSync(t.Context(), &kgo.Record{Topic: c.topic, Partition: n, Value: []byte("x")}).FirstErr())
			}
			require.NoError(t, writer.EndTransaction(t.Context(), kgo.TryCommit))

			looks, answer := make(chan struct{}), make(chan struct{})
			looked := sync.OnceFunc(func() { close(looks) })
			c.ControlKey(int16(kmsg.Fetch), func(r kmsg.Request) (kmsg.Response, error, bool) {
				c.KeepControl()
				if r.(*kmsg.FetchRequest).MaxWaitMillis == 0 { // the member's reads of messages wait for them
					looked()
					c.SleepControl(func() { <-answer })
				}
				return nil, nil, false
			})
			t.Cleanup(func() { close(answer) })
			_, first := c.join(assigned(assignment))
			next(t, first).Ack()
			next(t, first).Ack()
			var member string
			for _, m := range c.shared(1, 2).Members {
				member = m.MemberID
			}
			<-looks
			c.join(assigned(assignment))
			members := map[string]bool{}
			for _, m := range c.shared(2, 1).Members {
				members[m.MemberID] = true
			}
			require.Contains(t, members, member, "the member has been removed")
		})
	}
}
