package pubsub

import (
	"errors"
	"testing"

	"cloud.google.com/go/pubsub/v2"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace-go/millrace/transport"
)

// What an error says of a message decides whether a relay parks it or waits.
func TestMeaningOfErrors(t *testing.T) {
	t.Parallel()
	for code, unavailable := range map[codes.Code]bool{
		codes.Unavailable: true, codes.PermissionDenied: true, codes.NotFound: true, codes.ResourceExhausted: true, codes.DeadlineExceeded: true,
		codes.InvalidArgument: false,
	} {
		err := meaning(status.Error(code, "said the service"))
		require.Equal(t, unavailable, errors.Is(err, transport.ErrUnavailable), code)
		require.NotErrorIs(t, err, transport.ErrRejected)
		require.Equal(t, code, status.Code(err))
	}
	require.ErrorIs(t, meaning(pubsub.ErrOversizedMessage), transport.ErrRejected)
	require.Equal(t, transport.ErrNotSent, meaning(transport.ErrNotSent))
}
