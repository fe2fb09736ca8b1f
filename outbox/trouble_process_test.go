package outbox_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/transport"
)

// trouble is a folder. Each file in it is a fault of a relay process, for as long as it is there.
type trouble string

// The faults. A topic's name follows the first one.
const (
	forbidden = "forbidden "
	wedged    = "wedged"
	exhausted = "exhausted"
)

// lookEvery is how often a process looks whether a fault has begun or ended.
const lookEvery = 20 * time.Millisecond

func (f trouble) begin(name string) error {
	return os.WriteFile(filepath.Join(string(f), name), nil, 0o600)
}

func (f trouble) end(name string) error { return os.Remove(filepath.Join(string(f), name)) }

func (f trouble) is(name string) bool {
	_, err := os.Stat(filepath.Join(string(f), name))
	return err == nil
}

// exhaust takes all connections of the pool while that is the fault, until stop is called.
func (f trouble) exhaust(ctx context.Context, pool *pgxpool.Pool) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() {
		var held []*pgxpool.Conn
		release := func() {
			for _, c := range held {
				c.Release()
			}
			held = nil
		}
		defer release()
		look := time.NewTicker(lookEvery)
		defer look.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-look.C:
			}
			if !f.is(exhausted) {
				release()
				continue
			}
			for len(held) < int(pool.Config().MaxConns) {
				c, err := pool.Acquire(ctx)
				if err != nil {
					break // it is tried again
				}
				held = append(held, c)
			}
		}
	})
	return func() { cancel(); watching.Wait() }
}

// troubledPipe is a broker that has faults.
type troubledPipe struct {
	pipe
	trouble trouble
}

// PublishBatch sends the first half of the batch. The rest follows when the publisher is wedged no more, whatever became of
// ctx and the lease until then.
func (p troubledPipe) PublishBatch(ctx context.Context, topic string, msgs []*message.Message) []error {
	if p.trouble.is(forbidden + topic) {
		errs := make([]error, len(msgs))
		for i := range errs {
			errs[i] = fmt.Errorf("%w: permission denied", transport.ErrUnavailable)
		}
		return errs
	}
	half := len(msgs) / 2
	errs := p.pipe.PublishBatch(ctx, topic, msgs[:half])
	for p.trouble.is(wedged) {
		<-time.After(lookEvery)
	}
	return append(errs, p.pipe.PublishBatch(ctx, topic, msgs[half:])...)
}
