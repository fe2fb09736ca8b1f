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

// A handler may leave more in its transaction than its writes, such as SET LOCAL. The next handler of the group would see that, for
// example as one tenant's rows for another tenant. Only a rollback to the handler's savepoint removes all of it. So if an event's
// handler leaves something, it is rolled back, and the event is claimed alone. pgtx detects this from the text of statements. A
// function that names a setting in its source may be called in any way, so the settings' values are compared after each handler.

// functionsFor is how long the store uses what it knows about the database's functions.
const functionsFor = time.Minute

// functions is what the database's functions may leave in a transaction. It is safe for concurrent use.
type functions struct {
	mu       sync.Mutex
	settings []string // nil: unknown
	tables   bool     // they make temporary tables or cursors
	asked    time.Time
}

// known returns what is known. stale means that it must be read again.
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

// state returns what functions may have left in the transaction, or nil if no function leaves anything.
func (s *groupStore) state(ctx context.Context, tx pgx.Tx) (state []string, err error) {
	settings, tables, _ := s.functions.known()
	if len(settings) == 0 && !tables {
		return nil, nil
	}
	err = tx.QueryRow(ctx, s.stateOf, settings, tables).Scan(&state)
	return state, err
}

// leavesError means that the handler leaves something for later handlers.
type leavesError struct{ statement string }

func (e *leavesError) Error() string {
	return "the handler leaves something in its transaction: " + e.statement
}

// leaves returns an error if the handler leaves something for later handlers. before is the state at the start of the group.
func (s *groupStore) leaves(ctx context.Context, before []string) error {
	if statement := pgunit.Leaves(ctx); statement != "" {
		return &leavesError{statement}
	}
	if before == nil {
		return nil
	}
	if err := pgtx.Flush(ctx); err != nil { // queued statements may call functions too
		return &constraintsError{err}
	}
	tx, _ := pgtx.From(ctx)
	after, err := s.state(ctx, tx)
	if err == nil && !slices.Equal(before, after) {
		err = &leavesError{"a function, or a trigger's, that sets something, or makes a temporary table or a cursor"}
	}
	return err
}

// leaving counts a consumer's events whose handlers left something.
type leaving struct {
	mu        sync.Mutex
	ran, left int
	alone     bool
}

const (
	// leavingAfter is the number of a consumer's events in groups before it may be found not to belong there.
	leavingAfter = 20
	// leavingShare: if one in leavingShare events must be handled alone, groups do not pay.
	leavingShare = 2
)

// singly reports whether the consumer's events are handled alone, because its handlers often leave something.
func (b *Batches) singly(consumer string) bool {
	l, ok := b.leaving.Load(consumer)
	if !ok {
		return false
	}
	l.(*leaving).mu.Lock()
	defer l.(*leaving).mu.Unlock()
	return l.(*leaving).alone
}

// tellLeaving warns about handlers that leave something, once for each consumer.
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
