package pubsub

import (
	"context"
	"log/slog"
	"path"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace-go/millrace/transport/pubsub/internal/wire"
)

// watched is the intake with watchTopic beside it.
func (s *subscription) watched(take intake) intake {
	return func(ctx, messages context.Context) {
		var watching sync.WaitGroup
		defer watching.Wait()
		watching.Go(func() { s.watchTopic(ctx) })
		take(ctx, messages)
	}
}

// watchTopic looks at the subscription until ctx ends: whether it was deleted, which a push subscription does not find out
// otherwise, or its topic. Then it gets nothing any more, but may hold messages: only a person can tell when it may go.
func (s *subscription) watchTopic(ctx context.Context) {
	r := s.transport.resources
	deleted := false
	defer func() {
		if deleted {
			r.CountDeleted(s.topic, s.config.Consumer, -1)
		}
	}()
	ticker := time.NewTicker(s.transport.config.Recheck)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		have, err := r.LookUp(ctx, s.topic, s.config.Consumer)
		switch {
		case ctx.Err() != nil, status.Code(err) == codes.PermissionDenied:
			return
		case status.Code(err) == codes.NotFound:
			s.createAgain(ctx)
		case err == nil && have.Topic != wire.Project(s.transport.config.ProjectID).Topic(s.topic):
			s.log.Error("the subscription's topic was deleted: the consumer gets what the subscription still holds, and nothing that is published now",
				slog.String("subscription", s.name), slog.String("topic_of_subscription", have.Topic),
				slog.String("remedy", "delete the subscription when it holds nothing any more (gcloud pubsub subscriptions delete "+path.Base(s.name)+"): it is then created again"))
			if !deleted {
				r.CountDeleted(s.topic, s.config.Consumer, 1)
			}
			deleted = true
		case err == nil && deleted:
			s.log.Info("the subscription has its topic again", slog.String("subscription", s.name))
			r.CountDeleted(s.topic, s.config.Consumer, -1)
			deleted = false
		}
	}
}

// createAgain creates a subscription that was deleted, and its topic when that was, too.
func (s *subscription) createAgain(ctx context.Context) {
	own := s.transport.config.resource(s.topic, s.config)
	s.transport.resources.ForgetSubscription(own)
	if _, err := s.transport.resources.EnsureSubscription(ctx, own); err != nil && ctx.Err() == nil {
		s.log.Error("creating the subscription again", slog.Any("error", err))
	}
}
