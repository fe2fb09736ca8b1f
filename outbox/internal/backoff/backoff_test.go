package backoff_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/outbox/internal/backoff"
)

// Each wait is twice the one before, up to the longest. Jitter shortens a wait, and not those that follow. A success begins anew.
func TestWaitsDouble(t *testing.T) {
	t.Parallel()
	now := time.Unix(1e9, 0)
	shorter := func(d time.Duration) time.Duration { return d * 3 / 4 }
	var b backoff.Backoff
	for range 2 {
		for _, want := range []time.Duration{100, 200, 400, 800, 1000, 1000} {
			want = shorter(want * time.Millisecond)
			assert.Equal(t, want, b.Failed(backoff.First, time.Second, shorter, now))
			assert.Equal(t, now.Add(want), b.Until)
		}
		b.OK()
		assert.Zero(t, b)
	}
}
