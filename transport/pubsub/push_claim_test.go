package pubsub_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub"
)

// TestPushedTwiceAtOnceHasOneEffect: Pub/Sub pushes again what has outlived its ack deadline, while the first handler may
// still run. The claim lets one of them through; the other waits its turn in place and finds the event completed.
func TestPushedTwiceAtOnceHasOneEffect(t *testing.T) {
	t.Parallel()
	pool, schema := devtest.Pool(t), devtest.Schema(t)
	require.NoError(t, outbox.Migrate(t.Context(), pool, schema))
	require.NoError(t, claim.Migrate(t.Context(), pool, schema))
	_, err := pool.Exec(t.Context(), `create table `+schema+`.effect (event_id text not null)`)
	require.NoError(t, err)
	c, err := claim.New(claim.NewPostgresStore(pool, claim.Schema(schema)), claim.Config{Service: "labour"})
	require.NoError(t, err)

	tr := connect(t, pubsub.Config{
		ClientOptions: emulator(t),
		Subscription:  pubsub.SubscriptionConfig{Push: &pubsub.Push{Endpoint: "http://127.0.0.1:9/push", AllowUnauthenticated: true}},
	})
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: wait}, watermill.NopLogger{})
	require.NoError(t, err)
	router.AddMiddleware(c.Middleware)
	s, err := tr.Subscriber(transport.SubscriberConfig{Consumer: "c"})
	require.NoError(t, err)
	topic := devtest.Topic(t)
	started, release := make(chan struct{}, 10), make(chan struct{})
	router.AddConsumerHandler("c", topic, s, func(msg *message.Message) error {
		tx, _ := pgtx.From(msg.Context())
		_, err := tx.Exec(msg.Context(), `insert into `+schema+`.effect values ($1)`, msg.UUID)
		started <- struct{}{}
		<-release
		return err
	})
	ended := make(chan error, 1)
	go func() { ended <- router.Run(t.Context()) }()
	<-router.Running()

	var statuses [5]int
	var pushes sync.WaitGroup
	event := outbox.NewID()
	for i := range statuses {
		pushes.Go(func() {
			body := fmt.Sprintf(`{"message": {"data": "e30=", "messageId": "1", "attributes": {"_watermill_message_uuid": %q}}}`, event)
			w := httptest.NewRecorder()
			tr.PushHandler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/push/"+topic+".c", strings.NewReader(body)))
			statuses[i] = w.Code
		})
	}
	<-started
	close(release)
	pushes.Wait()
	for _, status := range statuses {
		require.Equal(t, http.StatusNoContent, status, "%v", statuses)
	}
	require.Empty(t, started, "the handler ran more than once")
	var effects int
	require.NoError(t, pool.QueryRow(t.Context(), `select count(*) from `+schema+`.effect`).Scan(&effects))
	require.Equal(t, 1, effects)
	require.NoError(t, router.Close())
	require.NoError(t, <-ended)
}
