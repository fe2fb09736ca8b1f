package life

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// By default a service lingers after SIGTERM, which orchestrators send, but not after Ctrl-C or at the end of a test.
func TestLinger(t *testing.T) {
	t.Parallel()
	ended := func(cause error) context.Context {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		return ctx
	}
	assert.Equal(t, 10*time.Second, linger(ended(errTerminated), nil))
	assert.Zero(t, linger(ended(nil), nil))
	assert.Zero(t, linger(ended(errTerminated), new(time.Duration(0))))
	assert.Equal(t, time.Minute, linger(ended(nil), new(time.Minute)))
}
