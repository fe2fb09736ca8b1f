package pubsub_test

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub"
)

// Pub/Sub calls the service. Without Push in the configuration the same service pulls.
func ExampleTransport_PushHandler() {
	run := func(ctx context.Context, notify message.NoPublishHandlerFunc) error {
		broker, err := pubsub.New(ctx, pubsub.Config{
			Consumers: map[string]pubsub.SubscriptionConfig{
				"notify-parents": {
					AckDeadline: time.Minute, // a request lasts as long as its handler
					Push: &pubsub.Push{
						Endpoint:       "https://labour.example/events",
						ServiceAccount: "pubsub-push@project.iam.gserviceaccount.com",
					},
				},
			},
		})
		if err != nil {
			return err
		}
		subscriber, err := broker.Subscriber(transport.SubscriberConfig{Consumer: "notify-parents"})
		if err != nil {
			return err
		}
		router, err := message.NewRouter(message.RouterConfig{}, watermill.NewSlogLogger(nil))
		if err != nil {
			return err
		}
		router.AddConsumerHandler("notify-parents", "labour.completed", subscriber, notify)

		mux := http.NewServeMux()
		mux.Handle("POST /events/", broker.PushHandler()) // the path of Endpoint, and a slash
		server := &http.Server{Addr: ":8080", Handler: mux, ReadTimeout: 30 * time.Second}
		serving := make(chan error, 1)
		go func() { serving <- server.ListenAndServe() }()

		err = router.Run(ctx) // until ctx ends and the handlers are done
		// The transport first: it waits until the answers are sent.
		err = errors.Join(err, broker.Close(), server.Shutdown(context.WithoutCancel(ctx)))
		if served := <-serving; !errors.Is(served, http.ErrServerClosed) {
			err = errors.Join(err, served)
		}
		return err
	}
	_ = run
}
