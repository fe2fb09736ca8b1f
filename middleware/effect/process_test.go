package effect_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/middleware/effect"
)

const (
	childSchema   = "MILLRACE_TEST_EFFECT"
	childDSN      = "MILLRACE_TEST_EFFECT_DSN"
	childProvider = "MILLRACE_TEST_EFFECT_PROVIDER"
	childWhen     = "MILLRACE_TEST_EFFECT_WHEN"
)

// child is a process that sends a text message and never gets to record it: it waits for its end before or after the call.
func child() error {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv(childDSN))
	if err != nil {
		return err
	}
	ledger, err := effect.New(pool, effect.Config{Service: "labour", Schema: os.Getenv(childSchema), CallTimeout: time.Second})
	if err != nil {
		return err
	}
	sms := client{os.Getenv(childProvider)}
	_, err = effect.Value(effect.With(ctx, ledger), "sms:1", func(ctx context.Context, key string) (string, error) {
		ctx = context.WithoutCancel(ctx) // whoever is killed does not end in time
		if os.Getenv(childWhen) == "before" {
			_, err := sms.do(ctx, http.MethodGet, "/hold", key)
			return "", err
		}
		number, err := sms.send(ctx, key)
		if err == nil {
			_, err = sms.do(ctx, http.MethodGet, "/hold", key)
		}
		return number, err
	})
	return err
}

// killed runs the child and kills it before or after its call.
func (f *fixture) killed(p *provider, when string) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childSchema+"="+f.schema, childDSN+"="+f.pool.Config().ConnString(),
		childProvider+"="+p.URL, childWhen+"="+when)
	cmd.Stderr = f.t.Output()
	require.NoError(f.t, cmd.Start())
	select {
	case <-p.arrived:
	case <-time.After(30 * time.Second):
		f.t.Error("the child did not call")
	}
	require.NoError(f.t, cmd.Process.Kill())
	require.Error(f.t, cmd.Wait())
}

// redelivered sends the text message as a new process would, until the effect is neither running nor settling.
func (f *fixture) redelivered(p *provider, opts ...effect.Option) (number string, err error) {
	require.Eventually(f.t, func() bool {
		number, err = effect.Value(f.ctx(), "sms:1", client{p.URL}.send, opts...)
		return !errors.Is(err, effect.ErrRunning) && (err == nil || !strings.Contains(err.Error(), "asked soon"))
	}, time.Minute, 20*time.Millisecond)
	return number, err
}

// Killed between the call and its record: the effect is in doubt, and what follows depends on the provider.
func TestKilledBetweenCallAndRecord(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name          string
		when          string
		honours, asks bool
		opts          func(client) []effect.Option
		texts         int
	}{
		{"the provider honours keys", "after", true, false, func(client) []effect.Option { return []effect.Option{effect.Idempotent()} }, 1},
		{"the provider can be asked", "after", false, true, func(c client) []effect.Option { return []effect.Option{effect.Reconcile(c.reconcile)} }, 1},
		{"the provider never got it and can be asked", "before", false, true, func(c client) []effect.Option { return []effect.Option{effect.Reconcile(c.reconcile)} }, 1},
		{"the provider never got it and honours keys", "before", true, false, func(client) []effect.Option { return []effect.Option{effect.Idempotent()} }, 1},
		{"the provider was said to honour keys: the tests can fail", "after", false, false, func(client) []effect.Option { return []effect.Option{effect.Idempotent()} }, 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			f, p := newFixture(t), newProvider(t, test.honours)
			f.killed(p, test.when)
			require.Len(t, f.entries("all"), 1, "the intent is there")
			number, err := f.redelivered(p, test.opts(client{p.URL})...)
			require.NoError(t, err)
			assert.Equal(t, test.texts, p.texts())
			again, err := f.redelivered(p)
			require.NoError(t, err)
			assert.Equal(t, number, again, "the same response, without a call")
			assert.Equal(t, test.texts, p.texts())
			assert.Empty(t, f.entries("open"))
		})
	}
}

// A provider that knows no keys and cannot be asked: a person decides.
func TestKilledAndNobodyKnows(t *testing.T) {
	t.Parallel()
	f, p := newFixture(t), newProvider(t, false)
	f.killed(p, "after")
	for range 3 {
		_, err := f.redelivered(p)
		require.ErrorIs(t, err, effect.ErrInDoubt)
		after, ok := retryAfter(err)
		assert.True(t, ok, "no attempt is counted")
		assert.Equal(t, quick.RetryAfter, after)
	}
	open := f.entries("")
	require.Len(t, open, 1)
	assert.Equal(t, "labour/sms:1", open[0].Key)
	assert.Equal(t, "doubt", open[0].State)
	assert.Equal(t, 1, open[0].Calls)

	require.NoError(t, effect.Resolve(t.Context(), f.pool, f.schema, "labour/sms:1",
		effect.Resolution{Done: true, Response: []byte(`"SM1"`), By: "ada", Note: "seen in the provider's console"}))
	number, err := f.redelivered(p)
	require.NoError(t, err)
	assert.Equal(t, "SM1", number)
	assert.Equal(t, 1, p.texts())
	var audit string
	require.NoError(t, f.pool.QueryRow(t.Context(), `select before || ' ' || state || ' ' || resolved_by || ' ' || note from `+f.schema+`.effect_resolution`).Scan(&audit))
	assert.Equal(t, "running done ada seen in the provider's console", audit)
}
