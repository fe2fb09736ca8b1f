package lane

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/transport/kafka/internal/backoff"
)

func TestFateOfARecord(t *testing.T) {
	t.Parallel()
	const second = time.Second
	retries := Policy{Retry: backoff.Doubling{Min: second, Max: 3 * second}}
	three := Policy{MaxAttempts: 3, Retry: retries.Retry}
	for name, c := range map[string]struct {
		policy   Policy
		outcome  Outcome
		rejected bool
		failures int
		wish     time.Duration
		fate     Fate
		failed   int
		wait     time.Duration
	}{
		"acked":                              {three, Acked, false, 2, 0, Finished, 2, 0},
		"acked, whatever was asked for":      {three, Acked, true, 2, second, Finished, 2, 0},
		"abandoned":                          {three, Abandoned, true, 2, 0, Dropped, 2, 0},
		"failed for the first time":          {three, Nacked, false, 0, 0, Again, 1, second},
		"failed for the second time":         {three, Nacked, false, 1, 0, Again, 2, 2 * second},
		"failed too often":                   {three, Nacked, false, 2, 0, Dead, 3, 0},
		"failed often, without dead letters": {retries, Nacked, false, 9, 0, Again, 10, 3 * second},
		"delayed, which is no failure":       {three, Nacked, false, 2, 9 * second, Again, 2, 9 * second},
		"rejected":                           {three, Nacked, true, 0, 0, Dead, 1, 0},
		"rejected, without dead letters":     {retries, Nacked, true, 0, 0, Dead, 1, 0},
		"rejected, and asked to come later":  {three, Nacked, true, 0, second, Dead, 0, 0},
	} {
		fate, failed, wait := c.policy.Decide(c.outcome, c.rejected, c.failures, c.wish)
		require.Equal(t, c.fate, fate, name)
		require.Equal(t, c.failed, failed, name)
		require.Equal(t, c.wait, wait, name)
	}
}
