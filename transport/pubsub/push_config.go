package pubsub

import (
	"net/url"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
)

// pushConfig is p as Pub/Sub wants it for the subscription of that ID. It expects p with its defaults; nil means pull.
func pushConfig(p *Push, subscriptionID string) *pubsubpb.PushConfig {
	if p == nil {
		return nil
	}
	config := &pubsubpb.PushConfig{PushEndpoint: p.Endpoint + "/" + url.PathEscape(subscriptionID)} // a "%" may be in it
	if p.ServiceAccount != "" {
		config.AuthenticationMethod = &pubsubpb.PushConfig_OidcToken_{OidcToken: &pubsubpb.PushConfig_OidcToken{
			ServiceAccountEmail: p.ServiceAccount,
			Audience:            p.Audience,
		}}
	}
	if p.Unwrapped {
		// Without the metadata a request has neither the event's ID nor its key.
		config.Wrapper = &pubsubpb.PushConfig_NoWrapper_{NoWrapper: &pubsubpb.PushConfig_NoWrapper{WriteMetadata: true}}
	}
	return config
}
