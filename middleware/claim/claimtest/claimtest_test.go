package claimtest

import (
	"context"
	"runtime"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.uber.org/goleak"

	"github.com/millrace-go/millrace/middleware/claim"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memory is a store that a process forgets, or, careless, one that holds nothing between its check and the end of fn.
type memory struct {
	careless bool

	mu      sync.Mutex
	claims  map[claim.Key]string
	effects map[string]int
	outputs map[string]int
}

type stagedKey struct{}

func (m *memory) locked(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
}

func (m *memory) Do(ctx context.Context, key claim.Key, fn func(ctx context.Context) error) (err error) {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	state := ""
	m.locked(func() {
		if state = m.claims[key]; state == "" && !m.careless {
			m.claims[key] = "held"
		}
	})
	switch state {
	case "held":
		return claim.ErrContended
	case "done":
		return claim.ErrCompleted
	}
	var staged []string
	completed := false
	defer func() {
		m.locked(func() {
			delete(m.claims, key)
			if completed {
				m.claims[key] = "done"
				for _, id := range staged {
					m.outputs[id]++
				}
			}
		})
	}()
	err = fn(context.WithValue(ctx, stagedKey{}, &staged))
	completed = err == nil
	return err
}

func (*memory) Stage(ctx context.Context, _ string, msgs ...*message.Message) error {
	staged := ctx.Value(stagedKey{}).(*[]string)
	for _, msg := range msgs {
		*staged = append(*staged, msg.UUID)
	}
	return nil
}

func fixture(careless bool) func(*testing.T) Fixture {
	return func(*testing.T) Fixture {
		m := &memory{careless: careless, claims: map[claim.Key]string{}, effects: map[string]int{}, outputs: map[string]int{}}
		return Fixture{
			Store: m,
			Effect: func(_ context.Context, id string) error {
				runtime.Gosched()
				m.locked(func() { m.effects[id]++ })
				return nil
			},
			Effects: func() map[string]int { return m.effects },
			Outputs: func() map[string]int { return m.outputs },
			Events:  2000,
		}
	}
}

func TestSuite(t *testing.T)   { Run(t, fixture(false)) }
func TestDoubles(t *testing.T) { Doubles(t, fixture(true)) }
