package nack

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAfter(t *testing.T) {
	t.Parallel()
	counted := Policy{MaxAttempts: 5}
	waits := Policy{RetryMin: time.Second, RetryMax: time.Minute}
	for name, c := range map[string]struct {
		policy Policy
		nack   Nack
		want   Fate
	}{
		"plain":                         {Policy{}, Nack{Attempts: 100}, Fate{Wait: Delay, Failed: true}},
		"ordered":                       {Policy{}, Nack{Ordered: true, Attempts: 100}, Fate{Wait: Delay, InPlace: true, Failed: true}},
		"Pub/Sub counts":                {counted, Nack{Attempts: 5}, Fate{Wait: Delay, Failed: true}},
		"Pub/Sub cannot count":          {counted, Nack{Ordered: true, Attempts: 4, Retries: 3}, Fate{Wait: Delay, InPlace: true, Failed: true}},
		"attempts used up":              {counted, Nack{Ordered: true, Attempts: 5, Retries: 4}, Fate{Dead: true, Wait: DeadLetterDelay, InPlace: true, Failed: true}},
		"Pub/Sub waits":                 {waits, Nack{}, Fate{Failed: true}},
		"Pub/Sub cannot wait":           {waits, Nack{Ordered: true, Retries: 2}, Fate{Wait: 4 * time.Second, InPlace: true, Failed: true}},
		"contention":                    {Policy{}, Nack{Wish: time.Hour}, Fate{Wait: time.Hour}},
		"contention is not counted":     {counted, Nack{Wish: time.Hour, Attempts: 5}, Fate{Wait: time.Hour, InPlace: true}},
		"contention does not wait more": {waits, Nack{Wish: time.Millisecond}, Fate{Wait: time.Millisecond, InPlace: true}},
		"contention within a key":       {counted, Nack{Ordered: true, Wish: time.Hour, Attempts: 5}, Fate{Wait: time.Hour, InPlace: true}},
		"rejected":                      {Policy{}, Nack{Rejected: true}, Fate{Dead: true, Wait: DeadLetterDelay}},
		"rejected, with a wish":         {waits, Nack{Ordered: true, Rejected: true, Wish: time.Hour}, Fate{Dead: true, Wait: DeadLetterDelay, InPlace: true}},
	} {
		require.Equal(t, c.want, c.policy.After(c.nack), name)
	}
}

func TestRetryWait(t *testing.T) {
	t.Parallel()
	require.Equal(t, Delay, Policy{}.wait(3, true))
	require.Equal(t, Delay, Policy{}.wait(0, false))
	policy := Policy{RetryMin: time.Second, RetryMax: 600 * time.Second}
	require.Zero(t, policy.wait(0, false), "Pub/Sub heeds it")
	require.Equal(t, 512*time.Second, policy.wait(9, true))
	require.Equal(t, 600*time.Second, policy.wait(1000, true))
	require.Equal(t, Delay, Policy{RetryMax: 1}.wait(5, true), "a policy of next to nothing is no hot loop")
}
