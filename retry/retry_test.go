package retry_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/retry"
)

var errQuota = errors.New("quota exceeded")

// Events of a backfill may wait for long; a payload that the broker cannot read will never be accepted.
func ExamplePolicy() {
	policy := retry.Policy{
		{ErrorText: "invalid payload", Dead: true},
		{Topic: "backfill.*", Error: func(err error) bool { return errors.Is(err, errQuota) }, MaxAttempts: 100, Backoff: time.Minute},
	}
	defaults := retry.Rule{MaxAttempts: 10, Backoff: time.Second, MaxBackoff: time.Minute}
	backfill := policy.For("backfill.labour", fmt.Errorf("publish: %w", errQuota), defaults)
	fmt.Println("backfill:", backfill.MaxAttempts, "attempts, the first retry after", backfill.Wait(1))
	fmt.Println("dead at once:", policy.For("labour", errors.New("invalid payload"), defaults).Dead)
	fmt.Println("others:", policy.For("labour", errQuota, defaults).MaxAttempts, "attempts")
	// Output:
	// backfill: 100 attempts, the first retry after 1m0s
	// dead at once: true
	// others: 10 attempts
}

func TestFor(t *testing.T) {
	t.Parallel()
	quota := func(err error) bool { return errors.Is(err, errQuota) }
	p := retry.Policy{
		{Topic: "a.*", Error: quota, MaxAttempts: 3},
		{Topic: "a.b", Backoff: time.Hour},
		{Error: quota, Dead: true},
		{Error: func(error) bool { return true }, ErrorText: "too l", MaxAttempts: 2},
	}
	defaults := retry.Rule{MaxAttempts: 10, Backoff: time.Second, MaxBackoff: time.Minute}
	for _, c := range []struct {
		topic       string
		err         error
		dead        bool
		attempts    int
		first, last time.Duration
	}{
		{"a.b", errQuota, false, 3, time.Second, time.Minute},
		{"a.b", assert.AnError, false, 10, time.Hour, time.Hour},
		{"a.c", assert.AnError, false, 10, time.Second, time.Minute},
		{"b", fmt.Errorf("b: %w", errQuota), true, 10, time.Second, time.Minute},
		{"b", errors.New("too large"), false, 2, time.Second, time.Minute},
	} {
		r := p.For(c.topic, c.err, defaults)
		assert.Equal(t, c.dead, r.Dead, c)
		assert.Equal(t, c.attempts, r.MaxAttempts, c)
		assert.Equal(t, c.first, r.Wait(1), c)
		assert.Equal(t, c.last, r.Wait(1000), c)
	}
	var waits []time.Duration
	for n := range 9 {
		waits = append(waits, defaults.Wait(n)/time.Second)
	}
	assert.Equal(t, []time.Duration{1, 1, 2, 4, 8, 16, 32, 60, 60}, waits)
	assert.Zero(t, retry.Rule{}.Wait(10))
}

func TestValidate(t *testing.T) {
	t.Parallel()
	require.NoError(t, retry.Policy{{}, {Topic: "a*", MaxAttempts: 1000, Backoff: time.Second, MaxBackoff: time.Second}, {Backoff: time.Hour}, {MaxBackoff: time.Hour}}.Validate("Retry"))
	for want, r := range map[string]retry.Rule{
		`Retry[1].Topic is "a[": want a topic, or a pattern such as "labour.*"`:         {Topic: "a["},
		"Retry[1].MaxAttempts is -1: want 1 to 1000, or 0 for the default":              {MaxAttempts: -1},
		"Retry[1].Dead is true, beside attempts or a backoff: want one of them":         {Dead: true, MaxAttempts: 2},
		"Retry[1].Ignore is true, beside dead, attempts or a backoff: want one of them": {Ignore: true, Dead: true},
		"Retry[1].Backoff is 1ns: want 1ms or more":                                     {Backoff: 1},
		"Retry[1].MaxBackoff is 1s: want Backoff or more, or 0 for the default":         {Backoff: time.Minute, MaxBackoff: time.Second},
		"Retry[1].MaxBackoff is 25h0m0s: want 24h or less":                              {Backoff: 25 * time.Hour},
	} {
		require.ErrorContains(t, retry.Policy{{}, r}.Validate("Retry"), want)
	}
	ignores := retry.Policy{{}, {Ignore: true}}
	require.NoError(t, ignores.Validate("Retry"))
	require.ErrorContains(t, ignores.RefuseIgnore("Retry"), "Retry[1].Ignore is true: want it for a claim alone")
	require.NoError(t, ignores[:1].RefuseIgnore("Retry"))
}
