package pubsub

import (
	"context"
	"fmt"
	"slices"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub/internal/wire"
)

// Ping implements transport.Pinger. It tells whether the service answers, which New, whose client connects when it is first used, has not found out. It
// asks for a topic that need not be there, and of which nobody must be allowed to know.
func (t *Transport) Ping(ctx context.Context) error {
	_, err := t.client.TopicAdminClient.GetTopic(ctx, &pubsubpb.GetTopicRequest{Topic: wire.Project(t.config.ProjectID).Topic("millrace-ping")})
	if slices.Contains([]codes.Code{codes.OK, codes.NotFound, codes.PermissionDenied}, status.Code(err)) {
		return nil
	}
	return fmt.Errorf("ask Pub/Sub: look whether it can be reached, and whether Config.Endpoint or PUBSUB_EMULATOR_HOST is right where it is set: %w: %w", transport.ErrUnavailable, err)
}
