package pubsub_test

import (
	"context"
	"net"
	"testing"

	"cloud.google.com/go/iam/apiv1/iampb"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"cloud.google.com/go/pubsub/v2/pstest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub"
)

// policies is an IAM service: the policies by the full name of the resource. One that it does not have may not be read.
type policies struct {
	iampb.UnimplementedIAMPolicyServer
	of map[string]*iampb.Policy
}

func (p policies) GetIamPolicy(_ context.Context, r *iampb.GetIamPolicyRequest) (*iampb.Policy, error) {
	if policy, ok := p.of[r.Resource]; ok {
		return policy, nil
	}
	return nil, status.Error(codes.PermissionDenied, "User not authorized to perform this action.")
}

// withIAM starts Google's fake beside an IAM service, which neither the fake nor the emulator has.
func withIAM(t *testing.T, of map[string]*iampb.Policy) []option.ClientOption {
	t.Helper()
	fake := pstest.NewServer()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := grpc.NewServer()
	pubsubpb.RegisterPublisherServer(server, &fake.GServer)
	pubsubpb.RegisterSubscriberServer(server, &fake.GServer)
	iampb.RegisterIAMPolicyServer(server, policies{of: of})
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		require.NoError(t, <-ended)
		require.NoError(t, fake.Close())
	})
	return plain(listener.Addr().String())
}

// TestExamineDeadLetterRights: Pub/Sub forwards dead letters as its service agent. Where that has no right, messages that fail were
// delivered for ever, and nothing said why.
func TestExamineDeadLetterRights(t *testing.T) {
	t.Parallel()
	const agent = "serviceAccount:service-123@gcp-sa-pubsub.iam.gserviceaccount.com"
	policy := func(role string, members ...string) *iampb.Policy {
		return &iampb.Policy{Bindings: []*iampb.Binding{{Role: "roles/pubsub.viewer", Members: []string{agent}}, {Role: role, Members: members}}}
	}
	const remedy = ` --member="serviceAccount:service-$(gcloud projects describe millrace-test --format='value(projectNumber)')@gcp-sa-pubsub.iam.gserviceaccount.com"`
	topic, dead, consumer := devtest.Topic(t), devtest.Topic(t), "orders.notify"
	sub := topic + "." + consumer
	noPublisher := transport.Problem{
		Symptom: "Pub/Sub cannot forward dead letters of consumer orders.notify: its service agent has no roles/pubsub.publisher in the policy of topic " + dead,
		Cause:   "unless it has the role by a policy of the project, a folder, the organization or a group, a message that has failed 7 times is delivered again for ever",
		Remedy:  "gcloud pubsub topics add-iam-policy-binding " + dead + " --project=millrace-test --role=roles/pubsub.publisher" + remedy,
	}
	noSubscriber := transport.Problem{
		Symptom: "Pub/Sub cannot forward dead letters of consumer orders.notify: its service agent has no roles/pubsub.subscriber in the policy of subscription " + sub,
		Cause:   noPublisher.Cause,
		Remedy:  "gcloud pubsub subscriptions add-iam-policy-binding " + sub + " --project=millrace-test --role=roles/pubsub.subscriber" + remedy,
	}
	for name, c := range map[string]struct {
		topic, sub *iampb.Policy // nil: may not be read
		without    bool          // IAM
		want       []transport.Problem
	}{
		"both rights":         {topic: policy("roles/pubsub.publisher", agent), sub: policy("roles/pubsub.subscriber", "user:a@b", agent)},
		"larger rights":       {topic: policy("roles/pubsub.admin", agent), sub: policy("roles/pubsub.editor", agent)},
		"a role of their own": {topic: policy("projects/p/roles/forwards", agent), sub: policy("roles/pubsub.subscriber", "allUsers")},
		"no rights":           {topic: policy("roles/pubsub.subscriber", agent), sub: &iampb.Policy{}, want: []transport.Problem{noPublisher, noSubscriber}},
		"another's right":     {topic: policy("roles/pubsub.publisher", "serviceAccount:app@p.iam.gserviceaccount.com"), sub: policy("roles/pubsub.subscriber", agent), want: []transport.Problem{noPublisher}},
		"a deleted agent":     {topic: policy("roles/pubsub.publisher", "deleted:"+agent+"?uid=1"), sub: policy("roles/pubsub.subscriber", agent), want: []transport.Problem{noPublisher}},
		"a policy not to read": {topic: policy("roles/pubsub.publisher", agent), want: []transport.Problem{{
			Symptom: "Whether Pub/Sub's service agent has roles/pubsub.subscriber on subscription " + sub + ", which it needs to forward dead letters of consumer orders.notify, could not be asked (it takes pubsub.subscriptions.getIamPolicy): User not authorized to perform this action.",
		}}},
		"an emulator": {without: true, want: []transport.Problem{{
			Symptom: "Whether Pub/Sub may forward dead letters of consumer orders.notify to topic " + dead + " could not be asked: there is no IAM here, as in an emulator",
		}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			of := map[string]*iampb.Policy{}
			for name, p := range map[string]*iampb.Policy{topicName(dead): c.topic, subscriptionName(topic, consumer): c.sub} {
				if p != nil {
					of[name] = p
				}
			}
			options := withIAM(t, of)
			if c.without {
				options = emulator(t)
			}
			tr := connect(t, pubsub.Config{ClientOptions: options, Subscription: pubsub.SubscriptionConfig{DeadLetter: pubsub.DeadLetter{Topic: dead, MaxAttempts: 7}}})
			examine := func(consumer string) []transport.Problem {
				all, err := tr.Examine(t.Context(), topic, consumer)
				require.NoError(t, err)
				return all
			}
			assert.Empty(t, examine(consumer), "there is no subscription yet")
			require.NoError(t, initialize(t, tr, topic, transport.SubscriberConfig{Consumer: consumer}))
			assert.Equal(t, c.want, examine(consumer))
			assert.Empty(t, examine(""))
		})
	}
}

// TestMessageTransforms: Pub/Sub runs them between a publish and a delivery, where nothing of ours sees what they drop. So a consumer that
// starts and the doctor name them.
func TestMessageTransforms(t *testing.T) {
	t.Parallel()
	options := emulator(t)
	client, topic, consumer := rawClient(t, options), devtest.Topic(t), transport.SubscriberConfig{Consumer: "orders.notify"}
	function := func(name string, disabled bool) *pubsubpb.MessageTransform {
		return &pubsubpb.MessageTransform{Disabled: disabled, Transform: &pubsubpb.MessageTransform_JavascriptUdf{JavascriptUdf: &pubsubpb.JavaScriptUDF{
			FunctionName: name, Code: "function " + name + "(message, metadata) { return null; }",
		}}}
	}
	_, err := client.TopicAdminClient.CreateTopic(t.Context(), &pubsubpb.Topic{Name: topicName(topic), MessageTransforms: []*pubsubpb.MessageTransform{function("redact", false), function("old", true)}})
	require.NoError(t, err)
	logged, log := newLog()
	tr := connect(t, pubsub.Config{ClientOptions: options, Logger: log})
	require.NoError(t, initialize(t, tr, topic, consumer))
	require.Equal(t, 1, logged.count("a message transform can drop events"))
	require.Equal(t, 1, logged.count("topic="+topic+` transform="JavaScript function redact" remedy="see that it returns each message`))

	sub := getSubscription(t, client, topic, consumer.Consumer)
	require.NoError(t, client.SubscriptionAdminClient.DeleteSubscription(t.Context(), &pubsubpb.DeleteSubscriptionRequest{Subscription: sub.Name}))
	sub.MessageTransforms = []*pubsubpb.MessageTransform{function("trim", false)}
	_, err = client.SubscriptionAdminClient.CreateSubscription(t.Context(), sub)
	require.NoError(t, err)
	require.NoError(t, initialize(t, connect(t, pubsub.Config{ClientOptions: options, Logger: log, Resources: pubsub.CheckOnly}), topic, consumer))
	require.Equal(t, 1, logged.count("subscription="+topic+`.orders.notify transform="JavaScript function trim"`))

	all, err := tr.Examine(t.Context(), topic, consumer.Consumer)
	require.NoError(t, err)
	require.Len(t, all, 2)
	assert.Equal(t, "a message transform of topic "+topic+" can drop events, or their IDs: JavaScript function redact", all[0].Symptom)
	assert.Equal(t, "a message transform of subscription "+topic+".orders.notify can drop events, or their IDs: JavaScript function trim", all[1].Symptom)
	assert.Contains(t, all[1].Remedy, "_watermill_message_uuid")
	all, err = tr.Examine(t.Context(), topic, "")
	require.NoError(t, err)
	require.Len(t, all, 1)
}
