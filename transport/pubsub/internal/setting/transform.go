package setting

import (
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"

	"github.com/millrace-go/millrace/transport/pubsub/internal/wire"
)

// TransformRemedy says what a message transform must keep.
const TransformRemedy = "see that it returns each message that a consumer needs, with all its attributes (" + wire.IDAttribute +
	" is the event's ID, unless event_id of the consumer says otherwise), or disable it"

// Transforms returns what the enabled message transforms of a topic or a subscription are, for people to read.
func Transforms(all []*pubsubpb.MessageTransform) (names []string) {
	for _, t := range all {
		switch {
		case t.GetDisabled():
		case t.GetJavascriptUdf() != nil:
			names = append(names, "JavaScript function "+t.GetJavascriptUdf().GetFunctionName())
		case t.GetAiInference() != nil:
			names = append(names, "AI inference by "+t.GetAiInference().GetEndpoint())
		default: // one that is newer than this client
			names = append(names, "of an unknown kind")
		}
	}
	return names
}
