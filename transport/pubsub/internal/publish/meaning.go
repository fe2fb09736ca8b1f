package publish

import (
	"errors"
	"fmt"

	"cloud.google.com/go/pubsub/v2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace-go/millrace/transport"
)

// meaning classifies errors as the message's fault or not. INVALID_ARGUMENT stays as it is, because it answers a request with many
// messages, of which one may be at fault.
func meaning(err error) error {
	if errors.Is(err, pubsub.ErrOversizedMessage) {
		return fmt.Errorf("%w: %w", transport.ErrRejected, err)
	}
	s, ok := status.FromError(err)
	if code := s.Code(); !ok || errors.Is(err, transport.ErrUnavailable) || code == codes.InvalidArgument || code == codes.OutOfRange {
		return err
	}
	if s.Code() == codes.PermissionDenied {
		err = fmt.Errorf("grant this account roles/pubsub.publisher in IAM: %w", err)
	}
	return fmt.Errorf("%w: %w", transport.ErrUnavailable, err)
}
