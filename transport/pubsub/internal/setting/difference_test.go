package setting

import (
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
)

// What the emulator cannot hold, and what Google's service writes in another way than it was told.
func TestDifferences(t *testing.T) {
	t.Parallel()
	want := Subscription{
		AckDeadline: 10 * time.Second,
		DeadLetters: "dead",
		MaxAttempts: 5,
		RetryMin:    DefaultRetryMin,
		RetryMax:    DefaultRetryMax,
		Push:        &Push{Endpoint: "https://host/push", ServiceAccount: "a@b", Audience: "https://host/push"},
	}.Wanted("p", "topic", "c")
	require.Equal(t, "https://host/push/topic.c", want.PushConfig.PushEndpoint)
	for name, c := range map[string]struct {
		change func(*pubsubpb.Subscription)
		want   []Difference
	}{
		"the same": {func(*pubsubpb.Subscription) {}, nil},
		"the service's way": {func(s *pubsubpb.Subscription) {
			s.AckDeadlineSeconds, s.DeadLetterPolicy.MaxDeliveryAttempts, s.RetryPolicy = 0, 0, &pubsubpb.RetryPolicy{}
		}, nil},
		"attributes of push": {func(s *pubsubpb.Subscription) { s.PushConfig.Attributes = map[string]string{"x-goog-version": "v1"} }, nil},
		"wrapper":            {func(s *pubsubpb.Subscription) { s.PushConfig.Wrapper = &pubsubpb.PushConfig_PubsubWrapper_{} }, nil},
		"expires by default": {func(s *pubsubpb.Subscription) { s.ExpirationPolicy = nil }, []Difference{{"expiration_policy", "after 744h0m0s", "never", true}}},
		"expires": {
			func(s *pubsubpb.Subscription) { s.ExpirationPolicy.Ttl = durationpb.New(48 * time.Hour) },
			[]Difference{{"expiration_policy", "after 48h0m0s", "never", true}},
		},
		"retry": {
			func(s *pubsubpb.Subscription) { s.RetryPolicy.MaximumBackoff = durationpb.New(time.Minute) },
			[]Difference{{"retry_policy", "10s to 1m0s", "10s to 10m0s", true}},
		},
		"another account": {
			func(s *pubsubpb.Subscription) { s.PushConfig.GetOidcToken().ServiceAccountEmail = "c@d" },
			[]Difference{{"push_config", "to https://host/push/topic.c, as c@d for audience https://host/push", "to https://host/push/topic.c, as a@b for audience https://host/push", true}},
		},
		"unwrapped": {
			func(s *pubsubpb.Subscription) {
				s.PushConfig.Wrapper = &pubsubpb.PushConfig_NoWrapper_{NoWrapper: &pubsubpb.PushConfig_NoWrapper{}}
				s.PushConfig.AuthenticationMethod = nil
			},
			[]Difference{{"push_config", "to https://host/push/topic.c, without a token, unwrapped, metadata false", "to https://host/push/topic.c, as a@b for audience https://host/push", true}},
		},
		"no push": {func(s *pubsubpb.Subscription) { s.PushConfig = &pubsubpb.PushConfig{} }, []Difference{{"push_config", "none", "to https://host/push/topic.c, as a@b for audience https://host/push", true}}},
		"topic":   {func(s *pubsubpb.Subscription) { s.Topic = "_deleted-topic_" }, []Difference{{"topic", "_deleted-topic_", "projects/p/topics/topic", false}}},
	} {
		have := proto.Clone(want).(*pubsubpb.Subscription)
		c.change(have)
		require.Equal(t, c.want, Differences(want, have), name)
	}
}
