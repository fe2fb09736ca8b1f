package devstack

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// TestFakeKafkaForgetsTheDead: a member is killed while it waits in its join. The fake keeps it, without a session that
// could time out, so that the next rebalance would take as long as the members allow: a minute.
func TestFakeKafkaForgetsTheDead(t *testing.T) {
	t.Parallel()
	fake, err := fakeKafka(Kafka, 1)()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, fake.stop()) })
	client := func(options ...kgo.Opt) *kgo.Client {
		c, err := kgo.NewClient(append(options, kgo.SeedBrokers(strings.Split(fake.value, ",")...))...)
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
		}, 20*time.Second, 5*time.Millisecond)
	}
	member := []kgo.Opt{
		kgo.ConsumerGroup("group"), kgo.ConsumeTopics("topic"), kgo.Balancers(kgo.RoundRobinBalancer()),
		kgo.HeartbeatInterval(time.Second), kgo.RebalanceTimeout(time.Minute),
	}
	client(member...)
	await("Stable", 1)

	join := kmsg.NewPtrJoinGroupRequest()
	join.Group, join.ProtocolType = "group", "consumer"
	join.SessionTimeoutMillis, join.RebalanceTimeoutMillis = 45_000, 60_000
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

	client(member...)
	await("PreparingRebalance", 3)
	await("Stable", 2) // the dead one has gone
}
