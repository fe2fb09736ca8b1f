package fakepubsub_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/millrace-go/millrace/framework/devstack/internal/fakepubsub"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, goleak.IgnoreCurrent()) } // OpenCensus, which Google's client imports, starts a goroutine in an init

const (
	topic        = "projects/p/topics/t"
	subscription = "projects/p/subscriptions/s"
	wait         = time.Minute
)

// fake is a server with a topic, and an endpoint that keeps what it gets.
type fake struct {
	t          *testing.T
	publisher  pubsubpb.PublisherClient
	subscriber pubsubpb.SubscriberClient
	endpoint   string
	got        chan push
	close      func()
}

type push struct {
	at     time.Time
	header http.Header
	body   []byte
}

// start runs the fake. answer is the status of the n-th push, from 1.
func start(t *testing.T, answer func(n int) int) *fake {
	t.Helper()
	f := &fake{t: t, got: make(chan push, 1000)}
	var mu sync.Mutex
	n := 0
	endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		assert.NoError(t, err)
		mu.Lock()
		n++
		status := answer(n)
		mu.Unlock()
		f.got <- push{time.Now(), r.Header, body}
		if status == 0 {
			<-r.Context().Done() // it hangs
			return
		}
		w.WriteHeader(status)
	}))
	t.Cleanup(endpoint.Close)
	f.endpoint = endpoint.URL
	server := fakepubsub.Start("127.0.0.1:0")
	f.close = sync.OnceFunc(func() { require.NoError(t, server.Close()) })
	t.Cleanup(f.close)
	conn, err := grpc.NewClient(server.Addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	f.publisher, f.subscriber = pubsubpb.NewPublisherClient(conn), pubsubpb.NewSubscriberClient(conn)
	_, err = f.publisher.CreateTopic(t.Context(), &pubsubpb.Topic{Name: topic})
	require.NoError(t, err)
	return f
}

func (f *fake) subscribe(config *pubsubpb.PushConfig) {
	f.t.Helper()
	_, err := f.subscriber.CreateSubscription(f.t.Context(), &pubsubpb.Subscription{
		Name: subscription, Topic: topic, AckDeadlineSeconds: 10, EnableMessageOrdering: true, PushConfig: config,
	})
	require.NoError(f.t, err)
}

func (f *fake) publish(message *pubsubpb.PubsubMessage) {
	f.t.Helper()
	_, err := f.publisher.Publish(f.t.Context(), &pubsubpb.PublishRequest{Topic: topic, Messages: []*pubsubpb.PubsubMessage{message}})
	require.NoError(f.t, err)
}

func (f *fake) next() push {
	f.t.Helper()
	select {
	case p := <-f.got:
		return p
	case <-time.After(wait):
		require.Fail(f.t, "nothing was pushed")
		return push{}
	}
}

// pulled returns what is left for a consumer that pulls.
func (f *fake) pulled() []string {
	f.t.Helper()
	answer, err := f.subscriber.Pull(f.t.Context(), &pubsubpb.PullRequest{Subscription: subscription, MaxMessages: 10})
	require.NoError(f.t, err)
	var left []string
	for _, m := range answer.GetReceivedMessages() {
		left = append(left, string(m.GetMessage().GetData()))
	}
	return left
}

func always(status int) func(int) int { return func(int) int { return status } }

func TestWrapped(t *testing.T) {
	t.Parallel()
	f := start(t, always(http.StatusNoContent))
	f.subscribe(&pubsubpb.PushConfig{PushEndpoint: f.endpoint})
	f.publish(&pubsubpb.PubsubMessage{Data: []byte("\xff"), Attributes: map[string]string{"name": "value"}, OrderingKey: "key"})
	p := f.next()
	var got map[string]any
	require.NoError(t, json.Unmarshal(p.body, &got))
	message := got["message"].(map[string]any)
	published, err := time.Parse(time.RFC3339Nano, message["publishTime"].(string))
	require.NoError(t, err)
	require.WithinDuration(t, time.Now(), published, wait)
	require.Equal(t, map[string]any{
		"subscription": subscription,
		"message": map[string]any{
			"data": "/w==", "attributes": map[string]any{"name": "value"}, "orderingKey": "key",
			"messageId": "m0", "message_id": "m0", "publishTime": message["publishTime"], "publish_time": message["publishTime"],
		},
	}, got)
	require.Equal(t, "application/json", p.header.Get("Content-Type"))
	require.Empty(t, p.header.Get("Authorization"))
}

func TestUnwrapped(t *testing.T) {
	t.Parallel()
	for _, metadata := range []bool{true, false} {
		f := start(t, always(http.StatusOK))
		f.subscribe(&pubsubpb.PushConfig{PushEndpoint: f.endpoint, Wrapper: &pubsubpb.PushConfig_NoWrapper_{
			NoWrapper: &pubsubpb.PushConfig_NoWrapper{WriteMetadata: metadata},
		}})
		f.publish(&pubsubpb.PubsubMessage{Data: []byte("\xff"), Attributes: map[string]string{"name": "value"}, OrderingKey: "key"})
		p := f.next()
		require.Equal(t, "\xff", string(p.body))
		want := map[string]string{"Name": "", "X-Goog-Pubsub-Message-Id": "", "X-Goog-Pubsub-Subscription-Name": "", "X-Goog-Pubsub-Ordering-Key": ""}
		if metadata {
			want = map[string]string{"Name": "value", "X-Goog-Pubsub-Message-Id": "m0", "X-Goog-Pubsub-Subscription-Name": subscription, "X-Goog-Pubsub-Ordering-Key": "key"}
			_, err := time.Parse(time.RFC3339Nano, p.header.Get("X-Goog-Pubsub-Publish-Time"))
			require.NoError(t, err)
		}
		for name, value := range want {
			require.Equal(t, value, p.header.Get(name), name)
		}
	}
}

// TestRefused: what is not acknowledged comes again a little later, and the next message of its key waits for it.
func TestRefused(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusServiceUnavailable, http.StatusTooManyRequests, http.StatusFound, http.StatusPartialContent} {
		f := start(t, func(n int) int {
			if n == 1 {
				return status
			}
			return http.StatusAccepted
		})
		f.subscribe(&pubsubpb.PushConfig{PushEndpoint: f.endpoint, Wrapper: &pubsubpb.PushConfig_NoWrapper_{NoWrapper: &pubsubpb.PushConfig_NoWrapper{}}})
		f.publish(&pubsubpb.PubsubMessage{Data: []byte("1"), OrderingKey: "key"})
		f.publish(&pubsubpb.PubsubMessage{Data: []byte("2"), OrderingKey: "key"})
		first, second := f.next(), f.next()
		require.Equal(t, "11", string(first.body)+string(second.body))
		require.GreaterOrEqual(t, second.at.Sub(first.at), 900*time.Millisecond)
		require.Equal(t, "2", string(f.next().body))
	}
}

// TestUnanswered: an endpoint that does not answer within the ack deadline has not got the message.
func TestUnanswered(t *testing.T) {
	t.Parallel()
	f := start(t, func(n int) int {
		if n == 1 {
			return 0
		}
		return http.StatusOK
	})
	f.subscribe(&pubsubpb.PushConfig{PushEndpoint: f.endpoint})
	f.publish(&pubsubpb.PubsubMessage{Data: []byte("1")})
	first, second := f.next(), f.next()
	require.Equal(t, first.body, second.body)
	require.Greater(t, second.at.Sub(first.at), 9*time.Second)
}

// TestConfigurationChanges: from push to pull and back, as by an operator.
func TestConfigurationChanges(t *testing.T) {
	t.Parallel()
	f := start(t, always(http.StatusOK))
	f.subscribe(&pubsubpb.PushConfig{PushEndpoint: f.endpoint})
	update := func(config *pubsubpb.PushConfig) {
		_, err := f.subscriber.UpdateSubscription(t.Context(), &pubsubpb.UpdateSubscriptionRequest{
			Subscription: &pubsubpb.Subscription{Name: subscription, PushConfig: config},
			UpdateMask:   &fieldmaskpb.FieldMask{Paths: []string{"push_config"}},
		})
		require.NoError(t, err)
	}
	f.publish(&pubsubpb.PubsubMessage{Data: []byte("pushed")})
	f.next()
	update(&pubsubpb.PushConfig{})
	f.publish(&pubsubpb.PubsubMessage{Data: []byte("pulled")})
	require.Eventually(t, func() bool { return len(f.pulled()) == 1 }, wait, time.Millisecond)
	require.Empty(t, f.got)

	update(&pubsubpb.PushConfig{PushEndpoint: f.endpoint})
	f.publish(&pubsubpb.PubsubMessage{Data: []byte("pushed again")})
	f.next()
	_, err := f.subscriber.DeleteSubscription(t.Context(), &pubsubpb.DeleteSubscriptionRequest{Subscription: subscription})
	require.NoError(t, err)
	f.subscribe(nil)
	f.publish(&pubsubpb.PubsubMessage{Data: []byte("pulled again")})
	require.Eventually(t, func() bool { return len(f.pulled()) == 1 }, wait, time.Millisecond)
	require.Empty(t, f.got)
}

// TestClose: it does not wait for an endpoint that hangs.
func TestClose(t *testing.T) {
	t.Parallel()
	f := start(t, always(0))
	f.subscribe(&pubsubpb.PushConfig{PushEndpoint: f.endpoint})
	f.publish(&pubsubpb.PubsubMessage{Data: []byte("1")})
	f.next()
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		f.close()
	}()
	select {
	case <-closed:
	case <-time.After(wait):
		require.Fail(t, "it waits for the endpoint")
	}
}
