package pubsub_test

import (
	"os"
	"testing"
	"time"

	gcp "cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/pstest"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub"
)

const wait = 45 * time.Second

// outage is set in the environment of the process that TestCloseDuringAnOutage starts.
const outage = "MILLRACE_TEST_OUTAGE"

func TestMain(m *testing.M) {
	if os.Getenv(outage) != "" {
		os.Exit(m.Run())
	}
	devtest.AtOnce(6) // the tests wait, for brokers and for time, more than they compute
	const multiplier = "github.com/ThreeDotsLabs/watermill/internal/subscriber.(*multiplier).Subscribe."
	devtest.Main(m,
		// It looks for its end every 10 s only, and then ends.
		goleak.IgnoreTopFunction("cloud.google.com/go/pubsub/v2.(*messageIterator).streamKeepAliveHandler"),
		// Watermill's suite leaves them behind when a message comes again after its last read.
		goleak.IgnoreAnyFunction(multiplier+"func2"), goleak.IgnoreAnyFunction(multiplier+"func3"))
}

// emulator returns the client options for Google's emulator.
func emulator(t testing.TB) []option.ClientOption {
	t.Helper()
	return plain(devtest.Start(t, devstack.PubSub).PubSubHost())
}

// genuine is emulator for tests that pstest cannot pass: it keeps the stream of a deleted subscription open, lists the former
// subscriptions for a topic that was created again, takes no message over 4 MB, refuses to delete a dead-letter topic, forwards
// dead letters without saying how often they were delivered, and goes on sending to a client that vanished without closing its
// connection.
func genuine(t testing.TB) []option.ClientOption {
	t.Helper()
	return plain(devtest.Real(t, devstack.PubSub).PubSubHost())
}

// fake starts Google's fake in this process, for what the emulator cannot be made to do.
func fake(t testing.TB, reactors ...pstest.ServerReactorOption) (*pstest.Server, []option.ClientOption) {
	t.Helper()
	server := pstest.NewServer(reactors...)
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	return server, plain(server.Addr)
}

func plain(address string) []option.ClientOption {
	return []option.ClientOption{
		option.WithEndpoint(address),
		option.WithoutAuthentication(),
		option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())),
	}
}

const project = "millrace-test"

// connect returns a transport that is closed with the test.
func connect(t testing.TB, config pubsub.Config) *pubsub.Transport {
	t.Helper()
	if config.ProjectID == "" {
		config.ProjectID = project
	}
	if config.DrainTimeout == 0 {
		config.DrainTimeout = 5 * time.Second
	}
	tr, err := pubsub.New(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, tr.Close()) })
	return tr
}

// rawClient returns Google's own client.
func rawClient(t testing.TB, options []option.ClientOption) *gcp.Client {
	t.Helper()
	client, err := gcp.NewClient(t.Context(), project, options...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	return client
}

func batcher(t testing.TB, tr *pubsub.Transport) transport.BatchPublisher {
	t.Helper()
	p, err := tr.Publisher()
	require.NoError(t, err)
	return p.(transport.BatchPublisher)
}

func subscribe(t testing.TB, tr *pubsub.Transport, topic string, config transport.SubscriberConfig) (message.Subscriber, <-chan *message.Message) {
	t.Helper()
	s, err := tr.Subscriber(config)
	require.NoError(t, err)
	messages, err := s.Subscribe(t.Context(), topic)
	require.NoError(t, err)
	return s, messages
}

func next(t testing.TB, messages <-chan *message.Message) *message.Message {
	t.Helper()
	select {
	case msg, ok := <-messages:
		require.True(t, ok, "the subscription ended")
		return msg
	case <-time.After(wait):
		require.Fail(t, "no message came")
		return nil
	}
}

func newMessage(key, payload string) *message.Message {
	msg := message.NewMessage(watermill.NewUUID(), []byte(payload))
	transport.SetKey(msg, key)
	return msg
}
