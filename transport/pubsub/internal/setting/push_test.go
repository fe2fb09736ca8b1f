package setting

import (
	"net/url"
	"testing"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
)

func TestPushConfig(t *testing.T) {
	t.Parallel()
	require.Nil(t, (*Push)(nil).config("topic.c"))
	for name, c := range map[string]struct {
		push Push
		want *pubsubpb.PushConfig
	}{
		"authenticated": {
			Push{Endpoint: "https://host/push", ServiceAccount: "a@b", Audience: "audience"},
			&pubsubpb.PushConfig{
				PushEndpoint: "https://host/push/topic.c",
				AuthenticationMethod: &pubsubpb.PushConfig_OidcToken_{OidcToken: &pubsubpb.PushConfig_OidcToken{
					ServiceAccountEmail: "a@b", Audience: "audience",
				}},
			},
		},
		"unwrapped": {
			Push{Endpoint: "http://host", Unwrapped: true},
			&pubsubpb.PushConfig{
				PushEndpoint: "http://host/topic.c",
				Wrapper:      &pubsubpb.PushConfig_NoWrapper_{NoWrapper: &pubsubpb.PushConfig_NoWrapper{WriteMetadata: true}},
			},
		},
	} {
		require.True(t, proto.Equal(c.want, c.push.config("topic.c")), name)
	}
}

// A topic's name may have a "%": unescaped, its pushes came to the path of another name, or the URL was none.
func TestPushEndpointEscapes(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"a%41b.c", "100%.c", "a+b~c_d-e.f.c"} {
		endpoint, err := url.Parse((&Push{Endpoint: "https://host/push"}).config(id).PushEndpoint)
		require.NoError(t, err)
		require.Equal(t, "/push/"+id, endpoint.Path)
	}
}
