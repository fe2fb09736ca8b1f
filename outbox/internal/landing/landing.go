// Package landing lands events: it makes rows of the events that are in the write-ahead log alone. One relay reads their replication slot. It
// inserts the events of committed transactions in the order of the commits, together with the marker of how far it has come, so that each
// event becomes one row. Only then does it confirm the log, which the server keeps until then.
package landing

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/millrace-go/millrace/outbox/internal/store"
	"github.com/millrace-go/millrace/outbox/internal/wake"
)

const (
	// lookEvery is how often a relay that stands by looks whether it is needed, and one that lands looks at its slot.
	lookEvery = time.Second
	// endTimeout is how long the connection of a relay that has ended may take to end.
	endTimeout = 5 * time.Second
	// firstPatience is how long the relay that lands may be silent before another one takes over, and firstSilence how long a stream may show
	// nothing while the log grows. Each doubles when it has passed, because the server may be decoding a large transaction.
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
	Patience time.Duration // see firstPatience

	store    *store.Landing
	schema   string
	logger   *slog.Logger
	patience time.Duration   // see firstPatience
	silence  time.Duration   // see firstSilence
	others   *wake.Collector // wake-ups for relays of other processes

	leads             atomic.Bool
	events, lag, cuts atomic.Int64
	advanced          atomic.Int64 // when the marker was last advanced, in nanoseconds
	told              error        // the last failure that was logged
}

// New returns a Landing. A relay that is silent for ttl is replaced, but not before firstPatience.
func New(s *store.Landing, schema string, ttl time.Duration, logger *slog.Logger) *Landing {
	return &Landing{store: s, schema: schema, logger: logger, Patience: max(ttl, firstPatience), silence: firstSilence, others: wake.New()}
}

// Status is what metrics report.
type Status struct {
	Leads  bool          // this relay lands events
	Events int64         // that it has landed
	Lag    int64         // bytes of the log that the server keeps for the slot
	Cuts   int64         // how often it has found that a part of the log was lost
	Age    time.Duration // since it last advanced the marker, which it does every few seconds; 0: it stands by
}

// Leading is 1 if the relay lands events, else 0.
func (s Status) Leading() int64 {
	if s.Leads {
		return 1
	}
	return 0
}

// Status returns the status.
func (l *Landing) Status() Status {
	s := Status{Leads: l.leads.Load(), Events: l.events.Load(), Lag: l.lag.Load(), Cuts: l.cuts.Load()}
	if s.Leads {
		s.Age = max(time.Since(time.Unix(0, l.advanced.Load())), 0) // by two clocks
	}
	return s
}

// Check returns an error if events cannot be landed as things are, or could be lost silently. At a standby it checks nothing.
func (l *Landing) Check(ctx context.Context) error {
	settings, err := l.store.Settings(ctx)
	if err != nil || settings.Standby {
		return err
	}
	state, err := l.store.State(ctx)
	if err != nil {
		return err
	}
	if state.Exists && !state.Lost { // it may have events: land them; lead logs the error
		settings.Unsafe = nil
	}
	if err := errors.Join(settings.Unsafe, l.store.Ready(ctx)); err != nil {
		return err
	}
	if err := l.store.Publish(ctx); err != nil {
		return err
	}
	conn, err := l.store.Dial(ctx)
	if err != nil {
		return fmt.Errorf("connect for replication: the server must admit such connections directly, not through a pooler (pg_hba.conf, max_wal_senders): %w", err)
	}
	return conn.Close(ctx)
}

// Run lands events until ctx ends. It stands by while another relay does.
func (l *Landing) Run(ctx context.Context) {
	var notifying sync.WaitGroup
	defer notifying.Wait()
	notifying.Go(func() { l.notify(ctx) })
	l.patience = l.Patience
	for retry := time.Duration(0); l.wait(ctx); {
		began := time.Now()
		err := l.lead(ctx)
		l.leads.Store(false)
		l.lag.Store(0)
		if time.Since(began) > mostRetry {
			retry = 0
		}
		if time.Since(began) > mostPatience {
			l.patience, l.silence = l.Patience, firstSilence
		}
		retry = min(max(2*retry, firstRetry), mostRetry)
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, errTaken):
		case errors.Is(err, errStandby):
			l.tell(err, func() { l.logger.InfoContext(ctx, "events are landed when this standby is promoted") })
		default:
			l.tell(err, func() {
				l.logger.ErrorContext(ctx, "events are not landed: they wait in the log", "slot", l.store.Slot, "error", err)
			})
		}
		if !sleep(ctx, retry) {
			return
		}
	}
}

// tell logs an error, unless it was the last one.
func (l *Landing) tell(err error, log func()) {
	if l.told == nil || l.told.Error() != err.Error() {
		log()
	}
	l.told = err
}

// sleep returns false if ctx has ended.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
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
			l.tell(err, func() { l.logger.WarnContext(ctx, "look which relay lands events", "error", err) })
		case h.Process == 0:
			return true
		}
		if first || h != last || h.Alive == "" {
			last, since = h, time.Now()
		}
		pause := lookEvery
		switch {
		case h.Process == 0:
		case h.Own, time.Since(since) > l.patience:
			if !h.Own {
				l.patience = min(2*l.patience, mostPatience)
			}
			pause = firstRetry
			if err := l.store.Terminate(ctx, h.Process); err != nil {
				pause = lookEvery
				l.tell(err, func() { l.logger.WarnContext(ctx, "end the connection of a relay that is silent", "error", err) })
			}
		case first:
			l.logger.InfoContext(ctx, "another relay lands the events: standing by")
		}
		if !sleep(ctx, pause) {
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

// lead lands events until that fails.
func (l *Landing) lead(ctx context.Context) error {
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
	settings, err := l.store.Settings(ctx)
	switch {
	case err != nil:
		return err
	case settings.Standby:
		return errStandby
	case settings.Unsafe != nil: // landing is the best that can be done
		l.logger.ErrorContext(ctx, "events in the log may be lost", "error", settings.Unsafe)
	}
	if err := l.store.Ready(ctx); err != nil {
		return err
	}
	if err := l.store.Publish(ctx); err != nil {
		return err
	}
	database, err := l.store.Database(ctx)
	if err != nil {
		return err
	}
	defer end(ctx, database)
	s := &session{Landing: l, stream: stream, database: database, more: make(chan struct{}, 1), room: make(chan struct{}, 1)}
	if err := s.prepare(ctx); err != nil {
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

// begin starts the stream.
func (s *session) begin(ctx context.Context) error {
	err := pglogrepl.StartReplication(ctx, s.stream, s.store.Slot, pglogrepl.LSN(s.core.landed.Landed), pglogrepl.StartReplicationOptions{
		PluginArgs: []string{"proto_version '1'", `publication_names '"` + s.store.Publication + `"'`, "messages 'true'"},
	})
	return s.explain(err)
}

// explain says what to do about an error of the stream.
func (s *session) explain(err error) error {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		return err
	}
	switch pgErr.Code {
	case "55006": // object_in_use
		return errors.Join(errTaken, err)
	case "42704": // undefined_object
		return fmt.Errorf(`the publication %s was dropped, and this server cannot read older log without it: `+
			`to give up the events from %v on and let the relay continue, run "select pg_drop_replication_slot('%s')": %w`, s.store.Publication, pglogrepl.LSN(s.core.landed.Landed), s.store.Slot, err)
	}
	return err
}
