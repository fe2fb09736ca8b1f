package claim_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/retry"
)

// What becomes of an event that fails is decided by the first rule for its error, those of its handler first; without one by the
// configuration.
func TestPolicyByErrorAndHandler(t *testing.T) {
	t.Parallel()
	devtest.Long(t)
	refused := errors.New("the card was refused")
	policy := retry.Policy{
		{Error: func(err error) bool { return errors.Is(err, refused) }, Dead: true},
		{ErrorText: "no such labour", Ignore: true},
		{ErrorText: "busy", MaxAttempts: 5},
		{ErrorText: "busy", Dead: true},
	}
	handlers := map[string]claim.HandlerConfig{
		"notify": {Retry: retry.Policy{{ErrorText: "quota", MaxAttempts: 2}, {ErrorText: "spam", Ignore: true}}},
		"bill":   {Retry: retry.Policy{{Dead: true}}},
	}
	for name, c := range map[string]struct {
		err   error
		calls int
		state string // the last
	}{
		"no rule":                        {errOops, 3, "dead attempts 3"},
		"dead at once":                   {fmt.Errorf("bill: %w", refused), 1, "dead permanent 1"},
		"ignored":                        {errors.New("no such labour"), 1, ""},
		"ignored, though permanent":      {claim.Permanent(errors.New("no such labour")), 1, ""},
		"more attempts":                  {errors.New("busy"), 5, "dead attempts 5"},
		"not for a permanent error":      {claim.Permanent(errors.New("busy")), 1, "dead permanent 1"},
		"of its handler":                 {errors.New("quota"), 2, "dead attempts 2"},
		"of its handler before others":   {errors.New("spam: no such labour"), 1, ""},
		"an error that asks to be later": {fmt.Errorf("no such labour: %w", later(0)), 0, ""},
	} {
		for mode, cfg := range modesOfCase(name) {
			cfg.MaxAttempts, cfg.Backoff, cfg.Logger, cfg.Retry, cfg.Handlers = 3, at(0), silent, policy, handlers
			t.Run(mode+"/"+name, func(t *testing.T) {
				t.Parallel()
				f := newFixture(t)
				x := tries{f, f.claim(cfg).Middleware}
				id, calls := outbox.NewID(), 0
				for range 7 {
					msg, _ := deliver(t, id)
					_, _ = x.guard(func(msg *message.Message) ([]*message.Message, error) { // once it is settled, a redelivery is absorbed
						if err := f.effect(msg.Context(), id); err != nil { // a lazy claim is refused here
							return nil, err
						}
						calls++
						return nil, c.err
					})(msg)
				}
				assert.Empty(t, f.effects(), "what a failed attempt wrote")
				if c.calls == 0 {
					assert.Equal(t, 7, calls, "it is no failure, so no rule is asked")
					return
				}
				assert.Equal(t, c.calls, calls)
				assert.Equal(t, c.state, x.state(id))
				if c.state == "" {
					assert.Empty(t, f.failed())
				}
			})
		}
	}
}

// An event that is ignored when it is retried from the table leaves it, and the later events of its key follow.
func TestPolicyIgnoresARetry(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	m := f.broker()
	attempts := 0 // one after another
	f.serve(m, claim.Config{Ordered: true, Retry: retry.Policy{{ErrorText: "gone", Ignore: true}}}, func(msg *message.Message) error {
		if !strings.HasPrefix(msg.UUID, "gone") {
			return f.take(msg)
		}
		if attempts++; attempts < 3 {
			return errOops
		}
		return errors.New("gone")
	})
	f.publish(m, keyed("gone", "k"), keyed("next", "k"), keyed("last", "k"))
	f.eventually(func() bool { return len(f.effects()) == 2 && len(f.failed()) == 0 }, "the others of its key follow")
	assert.Equal(t, 3, attempts)
	assert.Zero(t, f.count("claim_key"))
	f.publish(m, keyed("gone", "k"), keyed("after", "k"))
	f.eventually(func() bool { return f.effects()["after"] == 1 }, "the redelivery is absorbed")
	assert.Equal(t, 3, attempts)
}

// A handler may have less time than others, or more.
func TestPolicyTimeoutOfAHandler(t *testing.T) {
	t.Parallel()
	for mode, cfg := range modes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			f, cfg := newFixture(t), cfg
			cfg.Logger, cfg.MaxAttempts, cfg.Service = silent, 1, "labour"
			cfg.Handlers = map[string]claim.HandlerConfig{"notify": {Timeout: 200 * time.Millisecond}, "slow": {Timeout: time.Hour}}
			for consumer, left := range map[string]time.Duration{"notify": 200 * time.Millisecond, "slow": time.Hour, "other": 30 * time.Second} {
				cfg.Consumer = func(string) string { return consumer }
				c, err := claim.New(f.store, cfg)
				require.NoError(t, err)
				id := outbox.NewID()
				handle := c.Middleware(func(msg *message.Message) ([]*message.Message, error) {
					deadline, ok := msg.Context().Deadline()
					assert.True(t, ok)
					assert.InDelta(t, left.Seconds(), time.Until(deadline).Seconds(), max(left.Seconds()/2, 10))
					if consumer == "notify" {
						tx, _ := pgtx.From(msg.Context())
						_, err := tx.Exec(msg.Context(), `select pg_sleep(20)`)
						return nil, err
					}
					return nil, nil
				})
				f.eventually(func() bool { // no attempt counts that had to wait for its connection
					msg, _ := deliver(t, id)
					_, err := handle(msg)
					return err == nil && !nacked(msg)
				}, "it is settled")
				assert.Equal(t, map[string]string{"notify": "dead attempts 1"}[consumer], tries{fixture: f}.state(id))
			}
		})
	}
}

func TestPolicyThatCannotBe(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, err := claim.New(f.store, claim.Config{
		Service: "labour", Retry: retry.Policy{{Dead: true, Ignore: true}},
		Handlers: map[string]claim.HandlerConfig{"notify": {Retry: retry.Policy{{Topic: "["}}, Timeout: -1}},
	})
	require.ErrorContains(t, err, "Config.Retry[0].Ignore is true, beside dead")
	require.ErrorContains(t, err, `Config.Handlers["notify"].Retry[0].Topic is "["`)
	require.ErrorContains(t, err, `Config.Handlers["notify"].Timeout is -1ns: want 1ms or more`)
	_, err = claim.New(storeOfNothing{}, claim.Config{Service: "labour", Handlers: map[string]claim.HandlerConfig{"notify": {Retry: retry.Policy{{Dead: true}}}}})
	require.ErrorContains(t, err, "Config.Retry, or that of a handler, is set: want a store with PostgreSQL behind it")
}
