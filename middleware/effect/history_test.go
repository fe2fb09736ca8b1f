package effect_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/internal/history"
	"github.com/millrace-go/millrace/middleware/effect"
)

// recorded is a client of a ledger, whose operations go to a history.
type recorded struct {
	h      *history.History
	client int
	value  func(ctx context.Context, key string, call func(ctx context.Context, idempotencyKey string) (string, error)) (string, error)
}

// once asks for the effect. If the provider is called, it calls provider, which returns an error as a provider would.
func (c recorded) once(ctx context.Context, key string, provider func() error) {
	token := uuid.NewString()
	begin := c.h.Call(c.client, key)
	var end *history.Call
	var answer error
	response, err := c.value(ctx, key, func(context.Context, string) (string, error) {
		begin.Return("call", token)
		answer = provider()
		end = c.h.Call(c.client, key)
		return token, answer
	})
	switch {
	case end == nil && err == nil:
		begin.Return("response", response)
	case end == nil && errors.Is(err, effect.ErrInDoubt):
		begin.Return("in doubt", "")
	case end == nil && errors.Is(err, effect.ErrRunning):
		begin.Return("running", "")
	case end == nil:
		c.h.Call(c.client, key).Since(begin).Lose("never", token)
		begin.Lose("withdrawn", token)
	case err == nil:
		end.Return("done", response)
	case answer == nil:
		end.Lose("unknown", token)
	case errors.Is(answer, errRefused) && strings.Contains(err.Error(), "record the outcome"):
		end.Lose("not done", token)
	case errors.Is(answer, errRefused):
		end.Return("not done", token)
	default:
		end.Return("doubt", token)
	}
}

var (
	errRefused = errors.New("the provider refuses")
	errTimeout = errors.New("the provider does not answer")
)

// Four clients of as many processes ask for each effect several times, lose connections and patience, and have a provider that
// refuses and does not answer. There is an order in which they took turns, and in it no effect is called for again whose call
// succeeded, or may have.
func TestEffectsHaveAHistory(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const clients, effects, deliveries = 4, 40, 4
	h := history.New()
	var all [clients]recorded
	for i := range all {
		ledger := f.open(devtest.PoolOn(t, f.pool.Config().ConnString(), history.Named(f.schema)), effect.Config{})
		all[i] = recorded{h, i + 1, func(ctx context.Context, key string, call func(context.Context, string) (string, error)) (string, error) {
			return effect.Value(effect.With(ctx, ledger), key, call)
		}}
	}
	for i := range effects {
		key := fmt.Sprint("sms:", i)
		var group sync.WaitGroup
		for _, c := range all {
			faults := history.Attack(t, f.pool, f.schema, i*clients+c.client)
			group.Go(func() {
				for range deliveries {
					ctx, cancel := faults.Before(t.Context())
					c.once(ctx, key, func() error {
						switch {
						case faults.One(3):
							return effect.NotDone(errRefused)
						case faults.One(6):
							return errTimeout
						}
						return nil
					})
					cancel()
				}
			})
		}
		group.Wait()
	}
	t.Logf("%d operations", len(h.Operations()))
	assert.Positive(t, h.Count("done"))
	history.Check(t, h, history.Effect)
}

// The same look at a ledger that records no intent before it calls.
func TestHistoryShowsTwoCalls(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.exec(`create table ` + f.schema + `.done (key text)`)
	h := history.New()
	var both, group sync.WaitGroup
	both.Add(2)
	checkThenAct := func(ctx context.Context, key string, call func(context.Context, string) (string, error)) (response string, err error) {
		var known bool
		if err := f.pool.QueryRow(ctx, `select exists (select from `+f.schema+`.done where key = $1)`, key).Scan(&known); err != nil || known {
			return "", fmt.Errorf("known: %t, %w", known, err)
		}
		if response, err = call(ctx, key); err == nil {
			_, err = f.pool.Exec(ctx, `insert into `+f.schema+`.done values ($1)`, key)
		}
		return response, err
	}
	for client := range 2 {
		c := recorded{h, client + 1, checkThenAct}
		group.Go(func() {
			c.once(t.Context(), "sms", func() error {
				both.Done()
				both.Wait()
				return nil
			})
		})
	}
	group.Wait()
	wrong, _ := history.Unordered(h.Operations(), history.Effect)
	assert.Equal(t, []string{"sms"}, wrong)
}
