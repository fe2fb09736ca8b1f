package telemetry

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/millrace-go/millrace/middleware/claim/internal/store"
)

// counted counts a consumer's deliveries by outcome.
type counted struct {
	handled, duplicates, contended, failed int64
	busy, longest                          time.Duration // of the handled deliveries
}

// Plus implements tally.Amount.
func (c counted) Plus(other counted) counted {
	return counted{
		handled: c.handled + other.handled, duplicates: c.duplicates + other.duplicates, contended: c.contended + other.contended, failed: c.failed + other.failed,
		busy: c.busy + other.busy, longest: max(c.longest, other.longest),
	}
}

func (o *Observer) count(consumer, outcome string) {
	switch outcome {
	case OutcomeCompleted:
		o.tally.Add(consumer, counted{handled: 1})
	case OutcomeDuplicate:
		o.tally.Add(consumer, counted{duplicates: 1})
	case OutcomeContended:
		o.tally.Add(consumer, counted{contended: 1})
	case OutcomeFailed, OutcomeDead:
		o.tally.Add(consumer, counted{failed: 1})
	}
}

// Write adds the counts since the last call to the journal, for the process with number run. After an error, the next call writes
// them again. So they count twice if only the answer was lost.
func (o *Observer) Write(ctx context.Context, db store.Execer, schema string, run int64) error {
	taken := o.tally.Take()
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
			o.tally.Add(name, c)
		}
		return fmt.Errorf("write what was counted: %w", err)
	}
	return nil
}

// small returns n, or half of the largest number that the column can hold.
func small(n int64) int32 { return int32(min(n, math.MaxInt32/2)) }
