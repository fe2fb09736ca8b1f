package framework

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// A service lingers by default when an orchestrator stops it, and not at Ctrl-C or at the end of a test.
func TestLinger(t *testing.T) {
	t.Parallel()
	ended := func(cause error) context.Context {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		return ctx
	}
	assert.Equal(t, 10*time.Second, HTTP{}.linger(ended(errTerminated)))
	assert.Zero(t, HTTP{}.linger(ended(nil)))
	assert.Zero(t, HTTP{Linger: new(time.Duration(0))}.linger(ended(errTerminated)))
	assert.Equal(t, time.Minute, HTTP{Linger: new(time.Minute)}.linger(ended(nil)))
}
