package pubsub_test

import (
	"os"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/pstest"
	"github.com/stretchr/testify/require"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub"
	"github.com/millrace-go/millrace/transport/transporttest"
)

func fake(t testing.TB) []option.ClientOption {
	server := pstest.NewServer()
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	return []option.ClientOption{
		option.WithEndpoint(server.Addr),
		option.WithoutAuthentication(),
		option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())),
	}
}

func connect(t testing.TB, config pubsub.Config) *pubsub.Transport {
	t.Helper()
	if config.ProjectID == "" {
		config.ProjectID = "millrace-test"
	}
	if config.DrainTimeout == 0 {
		config.DrainTimeout = 5 * time.Second
	}
	tr, err := pubsub.New(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, tr.Close()) })
	return tr
}

func TestConformance(t *testing.T) {
	var options []option.ClientOption
	if os.Getenv("PUBSUB_EMULATOR_HOST") == "" {
		options = fake(t)
	}
	transporttest.Run(t, func(t testing.TB) transport.Transport {
		return connect(t, pubsub.Config{ClientOptions: options})
	}, transporttest.Config{Short: true})
}
