package telemetry

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/millrace-go/millrace/middleware/claim/internal/store"
)

// counted is what became of a consumer's deliveries.
type counted struct {
	handled, duplicates, contended, failed int64
	busy, longest                          time.Duration // of the handled ones
}

func (c *counted) add(other counted) {
	c.handled += other.handled
	c.duplicates += other.duplicates
	c.contended += other.contended
	c.failed += other.failed
	c.busy += other.busy
	c.longest = max(c.longest, other.longest)
}

// tally adds up what became of deliveries until somebody takes it. Its zero value is empty. It is safe for concurrent use.
type tally struct {
	mu sync.Mutex
	of map[string]counted
}

func (t *tally) add(consumer string, c counted) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.of == nil {
		t.of = map[string]counted{}
	}
	sum := t.of[consumer]
	sum.add(c)
	t.of[consumer] = sum
}

func (t *tally) count(consumer, outcome string) {
	switch outcome {
	case OutcomeCompleted:
		t.add(consumer, counted{handled: 1})
	case OutcomeDuplicate:
		t.add(consumer, counted{duplicates: 1})
	case OutcomeContended:
		t.add(consumer, counted{contended: 1})
	case OutcomeFailed, OutcomeDead:
		t.add(consumer, counted{failed: 1})
	}
}

func (t *tally) take() map[string]counted {
	t.mu.Lock()
	defer t.mu.Unlock()
	taken := t.of
	t.of = nil
	return taken
}

// Write adds what was counted since the last time to the journal, for the process of that number. After an error the next call writes it
// too; so what is written twice, because an answer was lost, counts twice.
func (o *Observer) Write(ctx context.Context, db store.Execer, schema string, run int64) error {
	taken := o.tally.take()
	if len(taken) == 0 {
		return nil
	}
	consumers := slices.Sorted(maps.Keys(taken))
	var handled, duplicates, contended, failed, longest []int32
	var busy []int64
	for _, name := range consumers {
		c := taken[name]
		handled, duplicates = append(handled, small(c.handled)), append(duplicates, small(c.duplicates))
		contended, failed = append(contended, small(c.contended)), append(failed, small(c.failed))
		busy, longest = append(busy, c.busy.Milliseconds()), append(longest, small(c.longest.Milliseconds()))
	}
	_, err := db.Exec(ctx, store.Query("journal_add", schema), run, consumers, handled, duplicates, contended, failed, busy, longest)
	if err != nil {
		for name, c := range taken {
			o.tally.add(name, c)
		}
		return fmt.Errorf("write what was counted: %w", err)
	}
	return nil
}

// small is n, or the largest number that a column holds.
func small(n int64) int32 { return int32(min(n, math.MaxInt32/2)) }
