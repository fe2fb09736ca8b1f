package setting

import (
	"testing"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/stretchr/testify/require"
)

func TestTransforms(t *testing.T) {
	t.Parallel()
	require.Empty(t, Transforms(nil))
	require.Equal(t, []string{"JavaScript function redact", "AI inference by endpoint", "of an unknown kind"}, Transforms([]*pubsubpb.MessageTransform{
		{Transform: &pubsubpb.MessageTransform_JavascriptUdf{JavascriptUdf: &pubsubpb.JavaScriptUDF{FunctionName: "redact"}}},
		{Disabled: true, Transform: &pubsubpb.MessageTransform_JavascriptUdf{JavascriptUdf: &pubsubpb.JavaScriptUDF{FunctionName: "old"}}},
		{Transform: &pubsubpb.MessageTransform_AiInference{AiInference: &pubsubpb.AIInference{Endpoint: "endpoint"}}},
		{},
	}))
}
