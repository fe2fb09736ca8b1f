// Package landing lands events: it makes rows of the events that are only in the write-ahead log (WAL). One relay reads their replication slot. It
// inserts the events of committed transactions in the order of the commits, together with the marker of how far it has come, so that each
// event becomes one row. Only then does it confirm the WAL, which the server keeps until then.
package landing

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/millrace-go/millrace/outbox/internal/store"
	"github.com/millrace-go/millrace/outbox/internal/wake"
)

const (
	// lookEvery is how often a relay that stands by looks whether it is needed, and one that lands looks at its slot.
	lookEvery = time.Second
	// endTimeout is how long the connection of a relay that has ended may take to end.
	endTimeout = 5 * time.Second
	// If the landing relay is silent for firstPatience, another one takes over. If a stream shows nothing for firstSilence while the WAL
	// grows, the relay ends it. Each time one of them is exceeded it doubles, up to mostPatience, because the server may be decoding a large
	// transaction.
	firstPatience, firstSilence, mostPatience = 45 * time.Second, 2 * time.Minute, time.Hour
	// firstRetry and mostRetry bound the time between two attempts to land.
	firstRetry, mostRetry = 50 * time.Millisecond, 5 * time.Second
)

var (
	// errTaken means that another relay lands.
	errTaken = errors.New("another relay lands the events")
	// errStandby means that the server cannot be written to yet.
	errStandby = errors.New("the server is a standby")
)

// Landing lands events. Run must be called once.
type Landing struct {
	Patience time.Duration // the initial one; see firstPatience

	store           *store.Landing
	schema          string
	logger          *slog.Logger
	currentPatience time.Duration   // doubles each time it is exceeded
	currentSilence  time.Duration   // doubles each time it is exceeded; see firstSilence
	others          *wake.Collector // wake-ups for relays of other processes

	leads             atomic.Bool
	events, lag, cuts atomic.Int64
	advanced          atomic.Int64 // when the marker was last advanced, in nanoseconds
	lastLogged        error        // the last failure that was logged
}

// New returns a Landing. A relay that is silent for ttl is replaced, but not before firstPatience.
func New(s *store.Landing, schema string, ttl time.Duration, logger *slog.Logger) *Landing {
	return &Landing{store: s, schema: schema, logger: logger, Patience: max(ttl, firstPatience), currentSilence: firstSilence, others: wake.New()}
}

// Status is what metrics report.
type Status struct {
	Leads  bool          // this relay lands events
	Events int64         // that it has landed
	Lag    int64         // bytes of WAL that the server keeps for the slot
	Cuts   int64         // how often it has found that WAL was lost
	Age    time.Duration // since it last advanced the marker, which it does every few seconds; 0: it stands by
}

// Leading is 1 if the relay lands events, else 0.
func (s Status) Leading() int64 {
	if s.Leads {
		return 1
	}
	return 0
}

// Status may be called while Run runs.
func (l *Landing) Status() Status {
	s := Status{Leads: l.leads.Load(), Events: l.events.Load(), Lag: l.lag.Load(), Cuts: l.cuts.Load()}
	if s.Leads {
		s.Age = max(time.Since(time.Unix(0, l.advanced.Load())), 0) // by two clocks
	}
	return s
}

// Check returns an error if events cannot be landed as things are, or could be lost silently. At a standby it checks nothing.
func (l *Landing) Check(ctx context.Context) error {
	settings, err := l.store.LoadSettings(ctx)
	if err != nil || settings.Standby {
		return err
	}
	state, err := l.store.State(ctx)
	if err != nil {
		return err
	}
	if state.Exists && !state.Lost && state.Fits && !state.Temporary && state.Confirmed > 0 { // it may have events: land them; runSession logs the error
		settings.Unsafe = nil
	}
	if err := errors.Join(settings.Unsafe, l.store.Ready(ctx)); err != nil {
		return err
	}
	if err := l.store.CreatePublication(ctx); err != nil {
		return err
	}
	return l.store.CheckConnection(ctx)
}

// Run lands events until ctx ends. It stands by while another relay does.
func (l *Landing) Run(ctx context.Context) {
	var notifying sync.WaitGroup
	defer notifying.Wait()
	notifying.Go(func() { l.notify(ctx) })
	l.currentPatience = l.Patience
	for retry := time.Duration(0); l.wait(ctx); {
		began := time.Now()
		err := l.runSession(ctx)
		l.leads.Store(false)
		l.lag.Store(0)
		if time.Since(began) > mostRetry {
			retry = 0
		}
		if time.Since(began) > mostPatience {
			l.currentPatience, l.currentSilence = l.Patience, firstSilence
		}
		retry = min(max(2*retry, firstRetry), mostRetry)
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, errTaken):
		case errors.Is(err, errStandby):
			l.logOnce(err, func() { l.logger.InfoContext(ctx, "the server is a standby: landing begins when it is promoted") })
		default:
			l.logOnce(err, func() {
				l.logger.ErrorContext(ctx, "cannot land events: they stay in the WAL", "slot", l.store.Slot, "error", err)
			})
		}
		if !store.Sleep(ctx, retry) {
			return
		}
	}
}

// logOnce logs an error, unless it was the last one.
func (l *Landing) logOnce(err error, log func()) {
	if l.lastLogged == nil || l.lastLogged.Error() != err.Error() {
		log()
	}
	l.lastLogged = err
}

// wait waits until no other relay lands. It ends one that is silent. It returns false if ctx ends before.
func (l *Landing) wait(ctx context.Context) bool {
	var last store.Holder
	var since time.Time
	for first := true; ; first = false {
		h, err := l.store.Holder(ctx)
		switch {
		case ctx.Err() != nil:
			return false
		case err != nil:
			l.logOnce(err, func() { l.logger.WarnContext(ctx, "look which relay lands events", "error", err) })
		case h.Process == 0:
			return true
		}
		if first || h != last || h.Heartbeat == "" {
			last, since = h, time.Now()
		}
		pause := lookEvery
		switch {
		case h.Process == 0:
		case h.Own, time.Since(since) > l.currentPatience:
			if !h.Own {
				l.currentPatience = min(2*l.currentPatience, mostPatience)
			}
			pause = firstRetry
			if err := l.store.Terminate(ctx, h.Process); err != nil {
				pause = lookEvery
				l.logOnce(err, func() { l.logger.WarnContext(ctx, "end the connection of a relay that is silent", "error", err) })
			}
		case first:
			l.logger.InfoContext(ctx, "another relay lands the events: standing by")
		}
		if !store.Sleep(ctx, pause) {
			return false
		}
	}
}

// notify tells relays of other processes of what was landed.
func (l *Landing) notify(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.others.Signal():
		}
		hashes, all, _ := l.others.Take()
		if err := l.store.Notify(ctx, wake.Payload(hashes, all)); err != nil && ctx.Err() == nil {
			l.logger.WarnContext(ctx, "notify the outbox's relays", "error", err)
		}
	}
}

// runSession lands events until that fails.
func (l *Landing) runSession(ctx context.Context) error {
	stream, err := l.store.Dial(ctx)
	if err != nil {
		return fmt.Errorf("connect for replication: %w", err)
	}
	defer end(ctx, stream)
	held, err := l.store.Hold(ctx, stream)
	if err != nil {
		return err
	}
	if !held {
		return errTaken
	}
	settings, err := l.store.LoadSettings(ctx)
	switch {
	case err != nil:
		return err
	case settings.Standby:
		return errStandby
	}
	if err := l.store.Ready(ctx); err != nil {
		return err
	}
	if err := l.store.CreatePublication(ctx); err != nil {
		return err
	}
	database, err := l.store.Database(ctx)
	if err != nil {
		return err
	}
	defer end(ctx, database)
	s := &session{Landing: l, stream: stream, database: database, more: make(chan struct{}, 1), room: make(chan struct{}, 1)}
	if err := s.prepare(ctx, settings.Unsafe); err != nil {
		return err
	}
	return s.run(ctx)
}

// end ends a connection. Nothing is lost with it.
func end(ctx context.Context, conn *pgconn.PgConn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = conn.Close(ctx)
}
