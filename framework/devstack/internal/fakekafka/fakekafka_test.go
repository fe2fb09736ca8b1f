package fakekafka

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// TestFakeKafkaForgetsTheDead: a member is killed while it waits in its join. The fake by itself keeps it, without a session
// that could time out, so that nobody reads its partitions until the next rebalance, which would take as long as the members
// allow: a minute.
func TestFakeKafkaForgetsTheDead(t *testing.T) {
	t.Parallel()
	t.Run("in a rebalance", func(t *testing.T) {
		t.Parallel()
		f := newDeadMember(t, 45*time.Second)
		f.join()
		f.await("PreparingRebalance", 3)
		f.await("Stable", 2)
	})
	t.Run("when its session is over", func(t *testing.T) {
		t.Parallel()
		newDeadMember(t, 6*time.Second).await("Stable", 1)
	})
}

// deadMember is a group of a living member and a dead one.
type deadMember struct {
	join  func()
	await func(state string, members int)
}

func newDeadMember(t *testing.T, session time.Duration) deadMember {
	t.Helper()
	fake, err := Start(1, 4)
	require.NoError(t, err)
	t.Cleanup(fake.Close)
	client := func(options ...kgo.Opt) *kgo.Client {
		c, err := kgo.NewClient(append(options, kgo.SeedBrokers(fake.Addrs...))...)
		require.NoError(t, err)
		t.Cleanup(c.Close)
		return c
	}
	admin := kadm.NewClient(client())
	_, err = admin.CreateTopic(t.Context(), 2, 1, nil, "topic")
	require.NoError(t, err)
	await := func(state string, members int) {
		t.Helper()
		require.Eventually(t, func() bool {
			described, err := admin.DescribeGroups(t.Context(), "group")
			return err == nil && described["group"].State == state && len(described["group"].Members) == members
		}, time.Minute, 5*time.Millisecond)
	}
	member := []kgo.Opt{
		kgo.ConsumerGroup("group"), kgo.ConsumeTopics("topic"), kgo.Balancers(kgo.RoundRobinBalancer()),
		kgo.HeartbeatInterval(time.Second), kgo.RebalanceTimeout(time.Minute), kgo.SessionTimeout(session),
	}
	client(member...)
	await("Stable", 1)

	join := kmsg.NewPtrJoinGroupRequest()
	join.Group, join.ProtocolType = "group", "consumer"
	join.SessionTimeoutMillis, join.RebalanceTimeoutMillis = int32(session.Milliseconds()), 60_000
	metadata := kmsg.NewConsumerMemberMetadata()
	metadata.Topics = []string{"topic"}
	protocol := kmsg.NewJoinGroupRequestProtocol()
	protocol.Name, protocol.Metadata = kgo.RoundRobinBalancer().ProtocolName(), metadata.AppendTo(nil)
	join.Protocols = []kmsg.JoinGroupRequestProtocol{protocol}
	killed := client()
	named, err := join.RequestWith(t.Context(), killed)
	require.NoError(t, err)
	require.Equal(t, kerr.MemberIDRequired.Code, named.ErrorCode)
	join.MemberID = named.MemberID
	ctx, kill := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = join.RequestWith(ctx, killed)
	}()
	await("PreparingRebalance", 2)
	kill()
	killed.Close()
	<-ended
	await("Stable", 2)

	return deadMember{join: func() { client(member...) }, await: await}
}
