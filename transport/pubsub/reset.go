package pubsub

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub/internal/wire"
)

var _ transport.Resetter = (*Transport)(nil)

// Reset implements transport.Resetter by a seek of the consumer's subscription. Its processes may run meanwhile. Pub/Sub brings
// back only what it has kept, so a seek to the past is refused where it keeps nothing that was acked.
func (t *Transport) Reset(ctx context.Context, r transport.Reset) ([]transport.Move, error) {
	if err := errors.Join(wire.CheckTopic(r.Topic), transport.ValidateConsumer(r.Consumer)); err != nil {
		return nil, err
	}
	name := wire.Project(t.config.ProjectID).Subscription(r.Topic, r.Consumer)
	seek, err := t.seek(name, r.To)
	if err != nil {
		return nil, err
	}
	s, err := t.client.SubscriptionAdminClient.GetSubscription(ctx, &pubsubpb.GetSubscriptionRequest{Subscription: name})
	switch {
	case status.Code(err) == codes.NotFound:
		return nil, fmt.Errorf("there is no subscription %s: start the consumer once, or look at the names of topic and consumer: %w", name, err)
	case err != nil:
		return nil, fmt.Errorf("look up subscription %s: %w", name, err)
	case seek.GetTime() != nil && !r.To.Latest && !s.RetainAckedMessages && s.GetTopicMessageRetentionDuration().AsDuration() == 0:
		return nil, fmt.Errorf("subscription %s keeps no acked messages, so none would come back: from now on keep them by Config.Topic.Retention "+
			"(pubsub.topic.retention), or by \"gcloud pubsub subscriptions update %s --retain-acked-messages\"", name, name)
	case r.DryRun:
		return nil, nil
	}
	if _, err := t.client.SubscriptionAdminClient.Seek(ctx, seek); err != nil {
		return nil, fmt.Errorf("seek subscription %s: %w", name, err)
	}
	return nil, nil
}

func (t *Transport) seek(subscription string, to transport.Position) (*pubsubpb.SeekRequest, error) {
	request := &pubsubpb.SeekRequest{Subscription: subscription}
	at := func(when time.Time) { request.Target = &pubsubpb.SeekRequest_Time{Time: timestamppb.New(when)} }
	switch {
	case to.Earliest:
		at(time.Unix(0, 0)) // before all that a broker may have kept
	case to.Latest:
		at(time.Now().Truncate(time.Millisecond)) // as publish times are, but by this clock
	case to.Time.After(time.Now()):
		return nil, errors.New("reset to a time that is to come: what is published until then would be lost")
	case !to.Time.IsZero():
		at(to.Time)
	case to.Snapshot != "":
		if !strings.Contains(to.Snapshot, "/") {
			to.Snapshot = "projects/" + t.config.ProjectID + "/snapshots/" + to.Snapshot
		}
		request.Target = &pubsubpb.SeekRequest_Snapshot{Snapshot: to.Snapshot}
	case len(to.Offsets) > 0:
		return nil, errors.New("reset to an offset: Pub/Sub has no offsets, want a time or a snapshot")
	default:
		return nil, errors.New("reset to nowhere: want Earliest, Latest, a Time or a Snapshot")
	}
	return request, nil
}
