package setting

import (
	"net/url"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
)

// Push says how Pub/Sub calls the service, as pubsub.Push describes it.
type Push struct {
	Endpoint       string
	ServiceAccount string // "": the requests have no token
	Audience       string
	Unwrapped      bool
}

// config returns the push configuration of the subscription with that ID. nil means pull.
func (p *Push) config(subscriptionID string) *pubsubpb.PushConfig {
	if p == nil {
		return nil
	}
	config := &pubsubpb.PushConfig{PushEndpoint: p.Endpoint + "/" + url.PathEscape(subscriptionID)} // the ID may contain "%"
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
