package batch

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/millrace-go/millrace/internal/pgunit"
	"github.com/millrace-go/millrace/middleware/claim/internal/store"
	"github.com/millrace-go/millrace/middleware/claim/internal/warm"
	"github.com/millrace-go/millrace/pgtx"
)

// memberState is the progress of a member of a group.
type memberState int

const (
	memberWaiting memberState = iota // its handler has not been called
	memberRefused                    // it was not claimed; the result has the reason
	memberHandled                    // its handler has succeeded; the commit decides
	memberFailed                     // its handler has failed, and its savepoint was rolled back; the result has the reason
	memberAgain                      // it is to be claimed alone
)

// member is a message in a group. When it is the member's turn, the message's own goroutine runs its handler. Otherwise, all of it
// belongs to the group's goroutine until the group has ended.
type member struct {
	ctx context.Context
	key store.Key
	fn  func(ctx context.Context) error

	twin  *member // the first member with the same event
	ahead *member // the previous member with the same ordering key

	turn    chan func()
	over    chan struct{}
	settled chan struct{} // closed when the result is final

	state  memberState
	late   bool   // its handler exceeded the timeout
	leaves string // a statement of its handler that leaves state to later handlers
	result Result
}

func newMember(ctx context.Context, key store.Key, fn func(ctx context.Context) error) *member {
	return &member{ctx: ctx, key: key, fn: fn, turn: make(chan func()), over: make(chan struct{}), settled: make(chan struct{})}
}

// wait returns when the group has ended. Meanwhile it runs the handler.
func (m *member) wait(g *group) {
	select {
	case run := <-m.turn:
		defer func() { <-g.ended }() // also after a panic, wait until the group's locks are released
		defer close(m.over)
		run()
	case <-g.ended:
	}
}

// link finds the members that depend on each other.
func link(members []*member) {
	ids, keys := map[string]*member{}, map[string]*member{}
	for _, m := range members {
		if m.twin = ids[m.key.EventID]; m.twin == nil {
			ids[m.key.EventID] = m
		}
		if m.key.Order != "" {
			m.ahead = keys[m.key.Order]
			keys[m.key.Order] = m
		}
	}
}

// mayRun reports whether the member's handler may run: it is claimed, and no failed event is before it that it must not overtake.
func (m *member) mayRun() bool {
	if m.state != memberWaiting || m.twin != nil {
		return false
	}
	return m.ahead == nil || m.ahead.kept()
}

// kept reports whether a later event of the same key may be handled.
func (m *member) kept() bool {
	if m.twin != nil {
		return m.twin.kept()
	}
	return m.state == memberHandled || m.state == memberRefused && m.result.Settled()
}

// run runs the member's handler in a savepoint of the group's transaction. It returns an error if the savepoint cannot be created:
// then the transaction is lost.
func (m *member) run(tx pgx.Tx, pool pgtx.DB, timeout time.Duration, complete func(ctx context.Context) error) (lost error) {
	m.turn <- func() {
		ctx, cancel := context.WithTimeout(pgtx.With(m.ctx, tx), timeout)
		defer cancel()
		m.state, m.result = memberFailed, Result{Ran: true}
		began, inherited := false, false
		var left *leavesError
		err := pgtx.Run(ctx, pool, func(ctx context.Context, _ pgx.Tx) error {
			began = true
			defer func() { inherited = pgunit.Inherited(ctx) }()
			if err := warm.Do(func() error { return m.fn(ctx) }); err != nil {
				return err
			}
			return complete(ctx)
		})
		m.late = ctx.Err() != nil
		m.result.Err = err
		switch {
		case !began:
			m.state, m.result, lost = memberWaiting, Result{}, err
		case err == nil:
			m.state = memberHandled
		case errors.As(err, &left):
			m.state, m.leaves = memberAgain, left.statement
		case inherited, byOthers(err):
			m.state = memberAgain
		}
	}
	<-m.over
	return lost
}

// byOthers reports whether the rest of the transaction may have caused a failure: with its locks, or by dropping a constraint.
func byOthers(err error) bool {
	var conflict *pgconn.PgError
	var constraints *constraintsError
	return errors.As(err, &conflict) && (conflict.Code == "40001" || conflict.Code == "40P01") ||
		errors.As(err, &constraints) && constraints.gone()
}

// conclude decides the members' results after the transaction. claimed says whether it got its claims; err is how it ended.
func conclude(members []*member, claimed bool, err error) {
	dissolved := err != nil                         // also in doubt: a claim finds it out, and shows which event is at fault
	doubt := errors.Is(err, pgtx.ErrOutcomeUnknown) // COMMIT was sent, so no handler has broken the transaction
	var last *member                                // the last one that ran, if it failed: it may have broken the transaction, and is judged alone
	for _, m := range members {
		if m.state == memberFailed {
			last = m
		}
		if m.state == memberHandled {
			last = nil
		}
	}
	for _, m := range members {
		switch {
		case !claimed:
			m.state, m.result = memberRefused, Result{Err: err}
		case m.twin != nil:
			m.state, m.result = m.twin.state, twinOf(m.twin.result)
		case m.state == memberHandled && err == nil:
			m.result = Result{Ran: true}
		case dissolved && (m.state == memberHandled || m.state == memberWaiting || m == last && !m.late && !doubt):
			m.state, m.result = memberAgain, Result{}
		case m.state == memberWaiting && m.ahead != nil && m.ahead.state == memberAgain:
			m.state = memberAgain
		case m.state == memberWaiting:
			m.state, m.result = memberRefused, Result{Err: store.ErrContended}
		}
	}
}

// twinOf returns the result of a message whose event was in the group already.
func twinOf(first Result) Result {
	switch {
	case first.Settled():
		return Result{Err: store.ErrCompleted}
	case !first.Ran && first.Err != nil:
		return first
	}
	return Result{Err: store.ErrContended}
}
