package schedule

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/retry"
)

const (
	// spread keeps the processes of a fleet from looking at the same moment.
	spread = 250 * time.Millisecond
	// busy is when a process looks again if another one has locked the row: that one may be killed before its commit.
	busy = time.Second
	// longest is how long no process looks: the server's clock may have been changed, or this machine may have slept.
	longest = time.Hour
	// grace is how late a schedule may be before it counts as overdue.
	grace = time.Minute
	// patience is how long one look may take, with the wait for a connection.
	patience = 10 * time.Second
)

// failing is how long a process waits after a look that failed.
var failing = retry.Rule{Backoff: time.Second, MaxBackoff: time.Minute}

// Run fires the schedules until ctx ends. What it is firing then is rolled back, or committed; the other processes, or the next
// start, fire what is left. An error of the database or of a Message is logged, and tried again. A process looks at a schedule
// once when it is due, and about once an hour.
func (s *Scheduler) Run(ctx context.Context) error {
	stopObserving, err := s.observe()
	if err != nil {
		return fmt.Errorf("run schedules: report metrics: %w", err)
	}
	defer stopObserving()
	var each sync.WaitGroup
	for _, e := range s.entries {
		each.Go(func() { s.keep(ctx, e) })
	}
	each.Wait()
	return nil
}

// keep fires one schedule until ctx ends.
func (s *Scheduler) keep(ctx context.Context, e *entry) {
	var p progress
	failures := 0
	for {
		wait, err := s.look(ctx, e, &p)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			failures++
			wait = failing.Wait(failures)
			s.cfg.Logger.WarnContext(ctx, "fire a schedule", "schedule", e.Name, "retry_in", wait, "error", err)
		default:
			failures = 0
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait + rand.N(spread)):
		}
	}
}

// progress is what a process knows about one of its schedules.
type progress struct {
	registered bool
	dueAfter   time.Time // as the row had it last; zero: not known
	due        time.Time // the next time; zero: not known
}

// look fires what is due, unless others do, and returns when to look again.
func (s *Scheduler) look(ctx context.Context, e *entry, p *progress) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if !p.registered {
		if err := s.enter(ctx, e, p.dueAfter); err != nil {
			return 0, fmt.Errorf("register: %w", err)
		}
		p.registered = true
	}
	found, err := s.fire(ctx, e, p.due)
	if err != nil {
		return 0, err
	}
	p.registered = found.dueAfter != nil
	if !p.registered { // an operator has deleted the row
		return 0, nil
	}
	if !found.mine && found.dueAfter.Before(p.due) || !found.mine && p.due.IsZero() {
		return busy, nil
	}
	p.dueAfter = *found.dueAfter
	p.due = e.clock.next(p.dueAfter) // it has passed if the process comes late to a time that another fired
	return min(p.due.Sub(found.now), longest), nil
}

// enter makes the schedule's row, which goes on at since (zero: now), or stores in it that the expression has changed. Then it first
// fires what is due by the earlier expression: the processes that have it may not have looked yet, and would find that it is over.
func (s *Scheduler) enter(ctx context.Context, e *entry, since time.Time) error {
	var times []time.Time
	var left time.Time
	err := pgtx.Run(ctx, s.pool, func(ctx context.Context, tx pgx.Tx) error {
		was, found, err := s.register(ctx, tx, e, since)
		if err != nil || !found.mine {
			return err
		}
		if c, err := was.clock(); err == nil { // else this program cannot read it
			times, left, err = s.publish(ctx, e, c, found)
			if wrong := (messageError{}); errors.As(err, &wrong) { // Message may not know such times: the new expression must not wait for ever
				s.cfg.Logger.WarnContext(ctx, "the times of a schedule's earlier expression are left out", "schedule", e.Name, "expression", was.Expression, "error", err)
			} else if err != nil {
				return err
			}
		}
		return pgtx.Queue(ctx, s.sql.change, s.cfg.Service, e.Name, e.Expression, e.clock.zone.String())
	}, pgtx.Isolation(pgx.ReadCommitted))
	if err != nil {
		return s.hint(err)
	}
	s.tell(ctx, e, times, left)
	return nil
}

// fire publishes the events of the times that are due, in the transaction that locks the row, and returns the state that this
// has left. due is the time that the caller knows to be due.
func (s *Scheduler) fire(ctx context.Context, e *entry, due time.Time) (found state, err error) {
	var left time.Time
	var times []time.Time
	err = pgtx.Run(ctx, s.pool, func(ctx context.Context, tx pgx.Tx) error {
		var err error
		if found, err = s.take(ctx, tx, e, due); err != nil || !found.mine {
			return err
		}
		times, left, err = s.publish(ctx, e, e.clock, found)
		return err
	}, pgtx.Isolation(pgx.ReadCommitted))
	if err != nil {
		return state{}, s.hint(err)
	}
	if len(times) > 0 {
		found.dueAfter = &times[len(times)-1]
	}
	s.tell(ctx, e, times, left)
	return found, nil
}

// publish publishes the events of the times that are due by the clock, and stores the latest. The transaction has the row. left is
// the first time that it leaves out; zero if there is none.
func (s *Scheduler) publish(ctx context.Context, e *entry, by clock, found state) (times []time.Time, left time.Time, err error) {
	if times, left = by.latest(*found.dueAfter, found.now, e.most()); len(times) == 0 {
		return nil, left, nil
	}
	msgs := make([]*message.Message, len(times))
	for i, at := range times {
		if msgs[i], err = e.message(at); err != nil {
			return nil, time.Time{}, messageError{fmt.Errorf("make the event of %s: %w", at.Format(time.RFC3339), err)}
		}
		msgs[i].UUID = eventID(s.cfg.Service, e.Name, at)
		msgs[i].SetContext(ctx)
	}
	if err := s.publisher.Publish(e.Topic, msgs...); err != nil {
		return nil, left, err
	}
	return times, left, pgtx.Queue(ctx, s.sql.fired, s.cfg.Service, e.Name, times[len(times)-1])
}

// messageError is the error of an entry's Message.
type messageError struct{ error }

func (e messageError) Unwrap() error { return e.error }

// tell logs that times are left out.
func (s *Scheduler) tell(ctx context.Context, e *entry, times []time.Time, left time.Time) {
	if !left.IsZero() {
		s.cfg.Logger.WarnContext(ctx, "no process fired a schedule for a while: its earlier times are left out", "schedule", e.Name,
			"left_out_since", left, "fired_since", times[0])
	}
}

// message calls Message, and makes an error of a panic: it would end each process of the fleet, one after the other.
func (e *entry) message(at time.Time) (msg *message.Message, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	msg, err = e.Message(at)
	if err == nil && msg == nil {
		err = errors.New("the message is nil: want the event of that time")
	}
	return msg, err
}
