package batch

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/internal/pgunit"
	"github.com/millrace-go/millrace/middleware/internal/inbox"
	"github.com/millrace-go/millrace/pgtx"
)

// What a handler leaves in its transaction beside its writes, such as SET LOCAL, would reach the next handler of the group: a
// tenant's rows for another tenant. Only a rollback to the handler's savepoint takes all of it away. So an event whose handler
// leaves something is undone, and claimed alone. pgtx knows it by the statements' text. What functions leave in whose source a
// setting is named, by whichever way they were called, is found by comparing the settings' values after each handler.

// functionsFor is for how long a store believes that it knows the database's functions.
const functionsFor = time.Minute

// functions is what the database's functions may leave. It is safe for concurrent use.
type functions struct {
	mu       sync.Mutex
	settings []string // nil: not known
	tables   bool     // temporary ones, or cursors
	asked    time.Time
}

// known returns what is known; stale, that it is to be asked for again.
func (f *functions) known() (settings []string, tables, stale bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.settings, f.tables, f.settings == nil || time.Since(f.asked) > functionsFor
}

func (f *functions) learn(row pgx.Row) error {
	var settings []string
	var tables bool
	if err := row.Scan(&settings, &tables); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.settings, f.tables, f.asked = settings, tables, time.Now()
	return nil
}

// state is what functions may have left in the transaction; nil where none leaves anything.
func (s *groupStore) state(ctx context.Context, tx pgx.Tx) (state []string, err error) {
	settings, tables, _ := s.functions.known()
	if len(settings) == 0 && !tables {
		return nil, nil
	}
	err = tx.QueryRow(ctx, s.stateOf, settings, tables).Scan(&state)
	return state, err
}

// leavesError means that the handler leaves something to those after it.
type leavesError struct{ statement string }

func (e *leavesError) Error() string {
	return "the handler leaves something in its transaction: " + e.statement
}

// leaves returns an error if the handler leaves something to those after it. before is the state at the group's begin.
func (s *groupStore) leaves(ctx context.Context, before []string) error {
	if statement := pgunit.Leaves(ctx); statement != "" {
		return &leavesError{statement}
	}
	if before == nil {
		return nil
	}
	if err := pgtx.Flush(ctx); err != nil { // what is queued may call functions too
		return &constraintsError{err}
	}
	tx, _ := pgtx.From(ctx)
	after, err := s.state(ctx, tx)
	if err == nil && !slices.Equal(before, after) {
		err = &leavesError{"a function, or a trigger's, that sets something, or makes a temporary table or a cursor"}
	}
	return err
}

// leaving counts the events of a consumer whose handlers left something.
type leaving struct {
	mu        sync.Mutex
	ran, left int
	alone     bool
}

const (
	// leavingAfter is how many events of a consumer are tried in groups before it may be found that they do not belong there.
	leavingAfter = 20
	// leavingShare is the share of events that have to be handled alone, one in so many, which makes groups a loss.
	leavingShare = 2
)

// singly reports whether the consumer's events are handled alone because their handlers leave something as a rule.
func (b *Batches) singly(consumer string) bool {
	l, ok := b.leaving.Load(consumer)
	if !ok {
		return false
	}
	l.(*leaving).mu.Lock()
	defer l.(*leaving).mu.Unlock()
	return l.(*leaving).alone
}

// tellLeaving warns of handlers that leave something, once for each consumer.
func (b *Batches) tellLeaving(members []*member) {
	ran, left, statement := 0, 0, ""
	for _, m := range members {
		if m.state == memberHandled || m.leaves != "" {
			ran++
		}
		if m.leaves != "" {
			left++
			statement = cmp.Or(statement, m.leaves)
		}
	}
	consumer := members[0].key.Consumer
	v, known := b.leaving.Load(consumer)
	if left == 0 && !known {
		return
	}
	if !known {
		v, known = b.leaving.LoadOrStore(consumer, &leaving{})
	}
	if !known {
		b.cfg.Logger.LogAttrs(members[0].ctx, slog.LevelWarn, "handler leaves settings, temporary tables or cursors in its transaction, which it shares with others in a group: "+
			"its events are undone and handled alone. Set Config.Group to 0 for its claim, or set nothing in the handler",
			slog.String("consumer", consumer), slog.String("statement", inbox.Printable(statement, 200)))
	}
	l := v.(*leaving)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ran, l.left = l.ran+ran, l.left+left
	l.alone = l.ran >= leavingAfter && l.left*leavingShare >= l.ran
}
