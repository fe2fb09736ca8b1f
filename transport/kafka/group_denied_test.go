package kafka_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
)

// requireDenied requires that Subscribe tells within seconds which right is missing.
func requireDenied(t *testing.T, addresses []string, delivery kafka.Delivery) {
	t.Helper()
	tr := connect(t, kafka.Config{Brokers: addresses, Delivery: delivery})
	s, err := tr.Subscriber(transport.SubscriberConfig{Consumer: "denied"})
	require.NoError(t, err)
	topic := devtest.Topic(t)
	require.NoError(t, s.(interface{ SubscribeInitialize(string) error }).SubscribeInitialize(topic))
	began := time.Now()
	_, err = s.Subscribe(t.Context(), topic)
	require.ErrorContains(t, err, "READ on the group denied")
	require.Less(t, time.Since(began), 20*time.Second)
}

// TestGroupDenied: a service without READ on its group hears that at once. With transactional delivery it was silent for
// three minutes.
func TestGroupDenied(t *testing.T) {
	t.Parallel()
	for _, delivery := range []kafka.Delivery{kafka.AtLeastOnce, kafka.Transactional} {
		t.Run("DESCRIBE, too/"+delivery.String(), func(t *testing.T) {
			t.Parallel()
			cluster := fake(t)
			cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.FindCoordinator}, Group: "denied", Err: kerr.GroupAuthorizationFailed, Count: -1})
			requireDenied(t, cluster.ListenAddrs(), delivery)
		})
		t.Run("while it runs/"+delivery.String(), func(t *testing.T) {
			t.Parallel()
			c, log := newCluster(t, 1), &logged{}
			c.put(0, "1", "2")
			_, messages := c.join(kafka.Config{Delivery: delivery, Logger: log.logger()})
			next(t, messages).Ack()
			denied := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.JoinGroup, kmsg.Heartbeat}, Group: "c", Err: kerr.GroupAuthorizationFailed, Count: -1})
			require.Eventually(t, func() bool { return len(log.lines("READ on the group c")) > 0 }, wait, tick)
			denied.Remove()
			c.committed(0, 1)
		})
	}
}

// TestGroupDeniedByApacheKafka is the same with Kafka's own rights.
func TestGroupDeniedByApacheKafka(t *testing.T) {
	t.Parallel()
	cluster := devtest.Kafka(t, devstack.KafkaConfig{Brokers: 1, Settings: map[string]string{
		"authorizer.class.name":          "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
		"allow.everyone.if.no.acl.found": "true",
	}})
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.Brokers()...))
	require.NoError(t, err)
	defer client.Close()
	deny := kadm.NewACLs().Deny("User:ANONYMOUS").DenyHosts("*").Groups("denied").ResourcePatternType(kadm.ACLPatternLiteral).Operations(kadm.OpRead)
	require.Eventually(t, func() bool { // the authorizer starts with its first rule
		results, err := kadm.NewClient(client).CreateACLs(t.Context(), deny)
		return err == nil && len(results) == 1 && results[0].Err == nil
	}, wait, 10*tick)
	for _, delivery := range []kafka.Delivery{kafka.AtLeastOnce, kafka.Transactional} {
		requireDenied(t, cluster.Brokers(), delivery)
	}
}

// TestGroupDeniedItsTopic: READ is missing on the topic, whose partitions all say so again and again. One warning names it.
func TestGroupDeniedItsTopic(t *testing.T) {
	t.Parallel()
	c, log := newCluster(t, 4), &logged{}
	denied := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Topic: c.topic, Err: kerr.TopicAuthorizationFailed, Count: -1})
	_, messages := c.join(kafka.Config{Logger: log.logger()})
	require.Eventually(t, func() bool { return denied.Hits() >= 4 }, wait, tick)
	require.Eventually(t, func() bool { return len(log.lines("READ on the topic")) > 0 }, wait, tick)
	require.Len(t, log.lines("READ on the topic"), 1)
	denied.Remove()
	c.put(0, "1")
	next(t, messages).Ack()
}
