package receive

import (
	"context"
	"log/slog"
	"path"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Watched is the intake with watchTopic beside it.
func (s *Subscription) Watched(take Intake) Intake {
	return func(ctx, messages context.Context) {
		var watching sync.WaitGroup
		defer watching.Wait()
		watching.Go(func() { s.watchTopic(ctx) })
		take(ctx, messages)
	}
}

// watchTopic looks at the subscription until ctx ends: whether it was deleted, which a push subscription does not find out
// otherwise, or its topic. Then it gets nothing any more, but may hold messages: only a person can tell when it may go.
func (s *Subscription) watchTopic(ctx context.Context) {
	r := s.shared.Resources
	deleted := false
	defer func() {
		if deleted {
			r.CountDeleted(s.config.Topic, s.config.Consumer, -1)
		}
	}()
	ticker := time.NewTicker(s.config.Recheck)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		have, err := r.LookUp(ctx, s.config.Topic, s.config.Consumer)
		switch {
		case ctx.Err() != nil, status.Code(err) == codes.PermissionDenied:
			return
		case status.Code(err) == codes.NotFound:
			s.createAgain(ctx)
		case err == nil && have.Topic != s.config.Project.Topic(s.config.Topic):
			s.log.Error("the subscription's topic was deleted: the consumer gets what the subscription still holds, and nothing that is published now",
				slog.String("subscription", s.config.Name), slog.String("topic_of_subscription", have.Topic),
				slog.String("remedy", "delete the subscription when it holds nothing any more (gcloud pubsub subscriptions delete "+path.Base(s.config.Name)+"): it is then created again"))
			if !deleted {
				r.CountDeleted(s.config.Topic, s.config.Consumer, 1)
			}
			deleted = true
		case err == nil && deleted:
			s.log.Info("the subscription has its topic again", slog.String("subscription", s.config.Name))
			r.CountDeleted(s.config.Topic, s.config.Consumer, -1)
			deleted = false
		}
	}
}

// createAgain creates a subscription that was deleted, and its topic when that was, too.
func (s *Subscription) createAgain(ctx context.Context) {
	s.shared.Resources.ForgetSubscription(s.config.Subscription)
	if err := s.shared.Resources.EnsureSubscription(ctx, s.config.Subscription); err != nil && ctx.Err() == nil {
		s.log.Error("creating the subscription again", slog.Any("error", err))
	}
}
