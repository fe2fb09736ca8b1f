package pubsub_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/stretchr/testify/require"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub"
)

const kmsKey = "projects/p/locations/europe-west1/keyRings/r/cryptoKeys/k"

// TestTopicSettings: topics are created with the configuration's settings. What differs in a topic that exists is logged, or
// changed under Update; labels of others stay.
func TestTopicSettings(t *testing.T) {
	t.Parallel()
	_, options := fake(t)
	client := rawClient(t, options)
	settings := pubsub.TopicConfig{
		Labels: pubsub.Labels{"team": "labour", "env": "prod"}, Retention: 24 * time.Hour,
		StorageRegions: []string{"europe-west4", "europe-west1"}, KMSKey: kmsKey,
	}
	topic, dead := devtest.Topic(t), devtest.Topic(t)
	logged, log := newLog()
	with := func(resources pubsub.Resources) *pubsub.Transport {
		return connect(t, pubsub.Config{
			Topic: settings, Resources: resources, Logger: log, ClientOptions: options,
			Subscription: pubsub.SubscriptionConfig{Labels: pubsub.Labels{"team": "labour"}, DeadLetter: pubsub.DeadLetter{Topic: dead}},
		})
	}
	consumer := transport.SubscriberConfig{Consumer: "c"}
	require.NoError(t, initialize(t, with(pubsub.CreateMissing), topic, consumer))
	get := func(topic string) *pubsubpb.Topic {
		have, err := client.TopicAdminClient.GetTopic(t.Context(), &pubsubpb.GetTopicRequest{Topic: topicName(topic)})
		require.NoError(t, err)
		return have
	}
	for _, name := range []string{topic, dead} {
		have := get(name)
		require.Equal(t, map[string]string{"team": "labour", "env": "prod"}, have.Labels)
		require.Equal(t, 24*time.Hour, have.MessageRetentionDuration.AsDuration())
		require.Equal(t, settings.StorageRegions, have.MessageStoragePolicy.AllowedPersistenceRegions)
		require.Equal(t, kmsKey, have.KmsKeyName)
	}
	require.Equal(t, map[string]string{"team": "labour"}, getSubscription(t, client, topic, "c").Labels)
	require.Zero(t, logged.count("not as configured"))

	// Others' topic: what differs is told, and their labels stay.
	topic = devtest.Topic(t)
	_, err := client.TopicAdminClient.CreateTopic(t.Context(), &pubsubpb.Topic{
		Name: topicName(topic), Labels: map[string]string{"goog-terraform-provisioned": "true"}, MessageRetentionDuration: durationpb.New(time.Hour), KmsKeyName: kmsKey,
		MessageStoragePolicy: &pubsubpb.MessageStoragePolicy{AllowedPersistenceRegions: []string{"europe-west1", "europe-west4"}},
	})
	require.NoError(t, err)
	require.NoError(t, initialize(t, with(pubsub.CreateMissing), topic, consumer))
	require.Equal(t, 2, logged.count("a topic is not as configured"))
	for _, setting := range []string{"labels", "message_retention_duration"} {
		require.Equal(t, 1, logged.count("setting="+setting))
	}
	require.NoError(t, initialize(t, with(pubsub.Update), topic, consumer))
	require.Equal(t, map[string]string{"team": "labour", "env": "prod", "goog-terraform-provisioned": "true"}, get(topic).Labels)
	require.Equal(t, 24*time.Hour, get(topic).MessageRetentionDuration.AsDuration())
	require.Equal(t, 2, logged.count("a topic is not as configured"))
}

// TestSubscriptionLabels: labels that are wanted are added to a subscription under Update, and others stay.
func TestSubscriptionLabels(t *testing.T) {
	t.Parallel()
	_, options := fake(t)
	client := rawClient(t, options)
	topic, consumer := devtest.Topic(t), transport.SubscriberConfig{Consumer: "c"}
	with := func(resources pubsub.Resources, labels pubsub.Labels) *pubsub.Transport {
		return connect(t, pubsub.Config{ClientOptions: options, Resources: resources, Subscription: pubsub.SubscriptionConfig{Labels: labels}})
	}
	require.NoError(t, initialize(t, with(pubsub.CreateMissing, pubsub.Labels{"theirs": "1"}), topic, consumer))
	tr := with(pubsub.Update, pubsub.Labels{"team": "labour"})
	all, err := tr.Differences(t.Context(), topic, consumer)
	require.NoError(t, err)
	require.Equal(t, []pubsub.Difference{{Field: "labels", Have: "none", Want: "team=labour", Mutable: true}}, all)
	require.NoError(t, initialize(t, tr, topic, consumer))
	require.Equal(t, map[string]string{"theirs": "1", "team": "labour"}, getSubscription(t, client, topic, "c").Labels)
}

func TestLabelsInAFile(t *testing.T) {
	t.Parallel()
	var l pubsub.Labels
	require.NoError(t, l.UnmarshalText([]byte("team=labour, env=prod")))
	require.Equal(t, pubsub.Labels{"team": "labour", "env": "prod"}, l)
	text, err := l.MarshalText()
	require.NoError(t, err)
	require.Equal(t, "env=prod,team=labour", string(text))
	require.NoError(t, l.UnmarshalText(nil))
	require.Empty(t, l)
	for _, wrong := range []string{"team", "a=1,a=2", "a=1,"} {
		require.ErrorContains(t, l.UnmarshalText([]byte(wrong)), "want key=value")
	}
}

// TestEndpoint: messages go by the endpoint of the configuration.
func TestEndpoint(t *testing.T) {
	t.Setenv("PUBSUB_EMULATOR_HOST", "")
	server, options := fake(t)
	topic := devtest.Topic(t)
	tr := connect(t, pubsub.Config{Endpoint: server.Addr, ClientOptions: options[1:]}) // all but the endpoint
	publishAll(t, batcher(t, tr), topic, keyed(1, 1))
	require.Len(t, server.Messages(), 1)
}

// TestCredentialsFile: the errors name the field and quote nothing of the file.
func TestCredentialsFile(t *testing.T) {
	t.Setenv("PUBSUB_EMULATOR_HOST", "")
	for content, want := range map[string]string{
		"": "the file cannot be read", "secret": "is not JSON", `{"type": "secret"}`: "the file's type is none of service_account,",
		`{"type": "authorized_user", "client_id": "id", "client_secret": "secret", "refresh_token": "secret"}`: "",
	} {
		file := filepath.Join(t.TempDir(), "credentials.json")
		if content != "" {
			require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
		}
		tr, err := pubsub.New(t.Context(), pubsub.Config{ProjectID: project, CredentialsFile: file})
		if want == "" {
			require.NoError(t, err)
			require.NoError(t, tr.Close())
			continue
		}
		require.ErrorContains(t, err, "Config.CredentialsFile is")
		require.ErrorContains(t, err, want)
		require.NotContains(t, strings.ReplaceAll(err.Error(), file, ""), "secret")
	}
	// The file is what the client takes: beside "no credentials" it is a contradiction.
	file := filepath.Join(t.TempDir(), "credentials.json")
	require.NoError(t, os.WriteFile(file, []byte(`{"type": "service_account"}`), 0o600))
	_, err := pubsub.New(t.Context(), pubsub.Config{ProjectID: project, CredentialsFile: file, ClientOptions: []option.ClientOption{option.WithoutAuthentication()}})
	require.ErrorContains(t, err, "WithoutAuthentication")
}

// requests keeps the first request of each pull stream.
type requests struct {
	mu  sync.Mutex
	all []*pubsubpb.StreamingPullRequest
}

func (r *requests) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.all)
}

type firstRequest struct {
	grpc.ClientStream
	of   *requests
	once sync.Once
}

func (s *firstRequest) SendMsg(m any) error {
	s.once.Do(func() {
		s.of.mu.Lock()
		defer s.of.mu.Unlock()
		s.of.all = append(s.of.all, m.(*pubsubpb.StreamingPullRequest))
	})
	return s.ClientStream.SendMsg(m)
}

// TestStreamsAndOutstandingBytes: each subscription opens its streams and asks for its bytes, less what names it.
func TestStreamsAndOutstandingBytes(t *testing.T) {
	t.Parallel()
	_, options := fake(t)
	var asked requests
	options = append(options, option.WithGRPCDialOption(grpc.WithChainStreamInterceptor(
		func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			stream, err := open(ctx, desc, cc, method, opts...)
			return &firstRequest{ClientStream: stream, of: &asked}, err
		})))
	const most = 20_000_000
	tr := connect(t, pubsub.Config{ClientOptions: options, Subscription: pubsub.SubscriptionConfig{Streams: 3, MaxOutstandingBytes: most}})
	for range 2 {
		subscribe(t, tr, devtest.Topic(t), transport.SubscriberConfig{Consumer: "c"})
	}
	require.Eventually(t, func() bool { return asked.count() == 6 }, wait, 10*time.Millisecond)
	bytes := map[int64]int{}
	asked.mu.Lock()
	defer asked.mu.Unlock()
	for _, request := range asked.all {
		bytes[request.MaxOutstandingBytes]++
	}
	require.Equal(t, map[int64]int{most: 3, most - 1: 3}, bytes)
}
