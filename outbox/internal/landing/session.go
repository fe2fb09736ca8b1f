package landing

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/millrace-go/millrace/outbox/internal/entry"
	"github.com/millrace-go/millrace/outbox/internal/store"
	"github.com/millrace-go/millrace/outbox/internal/wake"
)

const (
	// confirmEvery is how often the server is told what was received and landed.
	confirmEvery = time.Second
	// advanceEvery is how often the marker advances while there are no events, so that standbys can follow the slot.
	advanceEvery = 5 * time.Second
)

// errOtherServer means that the two connections of a session reach different servers.
var errOtherServer = errors.New("replication and SQL connections reach different servers: give the relay a DSN that reaches only one")

// session lands events from one stream.
type session struct {
	*Landing
	stream, database *pgconn.PgConn
	system           string    // the server's identifier
	server           time.Time // when it started

	mu    sync.Mutex
	core  *core
	more  chan struct{} // has a value if there may be something to land
	room  chan struct{} // has a value if something was landed
	heard atomic.Int64  // when the stream last showed anything, in nanoseconds
}

// signal makes a channel have a value.
func signal(to chan struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}

// prepare makes sure that the slot can be read and that the marker matches it.
func (s *session) prepare(ctx context.Context) error {
	identity, err := pglogrepl.IdentifySystem(ctx, s.stream)
	if err != nil {
		return err
	}
	s.system = identity.SystemID
	if _, s.server, err = s.store.End(ctx, s.stream); err != nil {
		return err
	}
	marker, err := s.store.Marker(ctx, s.database, s.system)
	if err != nil {
		return err
	}
	s.advanced.Store(marker.LandedAt.UnixNano())
	if marker.Foreign {
		s.logger.WarnContext(ctx, "the outbox comes from another server or database: events that were not landed there are not in the log of this one")
	}
	if !marker.Server.Equal(s.server) {
		return errOtherServer
	}
	state, err := s.free(ctx)
	if err != nil {
		return err
	}
	p := planFor(slot{exists: state.Exists, fits: state.Fits && !state.Temporary, lost: state.Lost, confirmed: state.Confirmed, end: state.Flushed}, marker.Known, !marker.Made.Equal(s.server), marker.Landed)
	if p.refuse != "" {
		return fmt.Errorf("the replication slot %s cannot be used: %s", s.store.Slot, p.refuse)
	}
	mark := func(to uint64, reason string) error {
		changed, err := s.store.Mark(ctx, s.database, s.system, marker.Landed, to, reason)
		if err == nil && !changed {
			err = errTaken
		}
		marker.Position = Position{Landed: to}
		return err
	}
	if p.cut != "" {
		s.cuts.Add(1)
		s.logger.ErrorContext(ctx, "a part of the log is lost, with its events that were not landed: find the transactions whose events were not published, and publish those events again",
			"reason", p.cut, "slot", s.store.Slot, "from", pglogrepl.LSN(marker.Landed))
		to := state.Confirmed
		if p.create {
			to = 0
		}
		if err := mark(to, p.cut); err != nil {
			return err
		}
	}
	if p.again {
		s.logger.WarnContext(ctx, "the slot has no marker: events that were landed before may be published again", "slot", s.store.Slot, "from", pglogrepl.LSN(state.Confirmed))
	}
	if p.drop {
		if err := s.store.Drop(ctx, s.stream); err != nil {
			return fmt.Errorf("drop the slot, to create another: %w", err)
		}
	}
	if p.create {
		if p.cut == "" { // publishers wait until the slot is there for good
			if err := mark(0, ""); err != nil {
				return err
			}
		}
		s.logger.InfoContext(ctx, "creating the slot of the events in the log: the server waits for the transactions that run now, and publishers are refused meanwhile", "slot", s.store.Slot)
		if err := s.store.Create(ctx, s.stream); err != nil {
			return fmt.Errorf("create the slot: %w", err)
		}
		if state, err = s.store.State(ctx); err != nil {
			return err
		}
		s.logger.InfoContext(ctx, "created the slot of the events in the log", "slot", s.store.Slot, "at", pglogrepl.LSN(state.Confirmed))
	}
	if p.mark && marker.Landed != state.Confirmed {
		if err := mark(state.Confirmed, ""); err != nil {
			return err
		}
	}
	s.core = newCore(marker.Position, state.Confirmed, state.Flushed)
	return nil
}

// free waits until nobody reads the slot, and returns its state. A reader that has ended may hold it for a moment.
func (s *session) free(ctx context.Context) (state store.SlotState, err error) {
	for ended := time.Now().Add(endTimeout); ; {
		state, err = s.store.State(ctx)
		switch {
		case err != nil:
			return state, err
		case !state.Server.Equal(s.server):
			return state, errOtherServer
		case state.Reader == 0:
			return state, nil
		case time.Now().After(ended):
			return state, fmt.Errorf("the server's process %d reads the slot %s, and is no relay: end it", state.Reader, s.store.Slot)
		}
		if !sleep(ctx, firstRetry) {
			return state, ctx.Err()
		}
	}
}

// run streams the slot and lands what it shows, until that fails.
func (s *session) run(ctx context.Context) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	s.leads.Store(true)
	s.told = nil
	s.heard.Store(time.Now().UnixNano())
	s.logger.InfoContext(ctx, "landing the events in the log", "slot", s.store.Slot, "from", pglogrepl.LSN(s.core.landed.Landed))
	running, stop := context.WithCancelCause(ctx)
	var working sync.WaitGroup
	for _, work := range []func(context.Context) error{s.landAll, s.watch} {
		working.Go(func() { stop(work(running)) })
	}
	stop(s.explain(s.receive(running)))
	working.Wait()
	return context.Cause(running)
}

// watch measures the slot's lag, and returns an error if the stream cannot be trusted.
func (s *session) watch(ctx context.Context) error {
	for before := uint64(0); sleep(ctx, lookEvery); {
		state, err := s.store.State(ctx)
		switch {
		case stops(err):
			return err
		case err != nil:
			continue
		}
		s.lag.Store(state.Lag)
		s.mu.Lock()
		late := s.core.stream < before && !s.core.full()
		s.mu.Unlock()
		before = state.Flushed
		switch {
		case !state.Server.Equal(s.server):
			return errOtherServer
		case state.Standby:
			return errors.New("the server takes the reader of the log for a synchronous standby: name the standbys in synchronous_standby_names")
		case late && time.Since(time.Unix(0, s.heard.Load())) > s.silence:
			s.silence = min(2*s.silence, mostPatience) // the server may work on a large transaction
			return errors.New("the stream is silent although the log grows")
		}
	}
	return ctx.Err()
}

// stops reports whether the server stops or cannot be reached. A server that stops waits for the end of the stream.
func stops(err error) bool {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return pgErr.Code[:3] == "57P"
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// receive passes what the stream shows to the core.
func (s *session) receive(ctx context.Context) error {
	for {
		s.mu.Lock()
		update := pglogrepl.StandbyStatusUpdate{
			WALWritePosition: pglogrepl.LSN(max(s.core.stream, s.core.confirmed)), WALFlushPosition: pglogrepl.LSN(s.core.confirmed), WALApplyPosition: pglogrepl.LSN(s.core.confirmed),
			ReplyRequested: true,
		}
		s.mu.Unlock()
		if err := pglogrepl.SendStandbyStatusUpdate(ctx, s.stream, update); err != nil {
			return err
		}
		if err := s.receiveFor(ctx, confirmEvery); err != nil {
			return err
		}
	}
}

// receiveFor receives for d, or until the server asks what was received. It receives nothing while too much waits to be landed.
func (s *session) receiveFor(ctx context.Context, d time.Duration) error {
	due, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	for {
		s.mu.Lock()
		full := s.core.full()
		s.mu.Unlock()
		if full {
			select {
			case <-s.room:
				continue
			case <-due.Done():
				return ctx.Err()
			}
		}
		data, err := store.Receive(due, s.stream)
		if err != nil {
			if ctx.Err() == nil && pgconn.Timeout(err) {
				return nil
			}
			return err
		}
		s.heard.Store(time.Now().UnixNano())
		if asks, err := s.take(data); asks || err != nil {
			return err
		}
	}
}

// take passes a message of the stream to the core. It returns true if the server asks what was received.
func (s *session) take(data []byte) (asks bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch data[0] {
	case pglogrepl.PrimaryKeepaliveMessageByteID:
		alive, err := pglogrepl.ParsePrimaryKeepaliveMessage(data[1:])
		if err != nil {
			return false, err
		}
		s.core.pass(uint64(alive.ServerWALEnd))
		asks = alive.ReplyRequested
	case pglogrepl.XLogDataByteID:
		x, err := pglogrepl.ParseXLogData(data[1:])
		if err == nil {
			err = s.core.show(entry.Prefix(s.schema), x.WALData)
		}
		if err != nil {
			return false, err
		}
	}
	if !s.core.within || s.core.full() {
		signal(s.more)
	}
	return asks, nil
}

// landAll lands what the core has, one portion after another.
func (s *session) landAll(ctx context.Context) error {
	for advanced := time.Now(); ; {
		s.mu.Lock()
		messages, to, ok := s.core.portion(time.Since(advanced) >= advanceEvery)
		s.mu.Unlock()
		if !ok {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-s.more:
				continue
			}
		}
		advanced = time.Now()
		rows := make([]store.Landed, len(messages))
		for i, m := range messages {
			rows[i] = landedOf(m)
		}
		if err := s.land(ctx, messages, rows, to); err != nil {
			return err
		}
	}
}

// land lands messages. If the database does not take one of them, it finds that one, and lands it as a dead event.
func (s *session) land(ctx context.Context, messages []message, rows []store.Landed, to Position) error {
	err := s.insert(ctx, rows, to)
	switch {
	case !blamesData(err):
		return err
	case len(rows) > 1:
		half := len(rows) / 2
		if err := s.land(ctx, messages[:half], rows[:half], messages[half-1].after); err != nil {
			return err
		}
		return s.land(ctx, messages[half:], rows[half:], to)
	case len(rows) == 1 && rows[0].Bad == "":
		return s.land(ctx, messages, []store.Landed{badOf(messages[0], entry.Entry{}, err)}, to)
	}
	return err
}

// insert lands rows in one transaction.
func (s *session) insert(ctx context.Context, rows []store.Landed, to Position) error {
	// The end of ctx closes the connection. It does not cancel a COMMIT that waits for a standby, because that would show the rows before.
	defer context.AfterFunc(ctx, func() { _ = s.database.Conn().Close() })()
	flushed, err := s.store.Land(context.WithoutCancel(ctx), s.database, s.system, s.core.landed, to, rows)
	switch {
	case err != nil:
		return fmt.Errorf("land events: %w", err)
	case flushed == 0:
		return errTaken
	}
	s.mu.Lock()
	s.core.land(len(rows), to, flushed)
	s.mu.Unlock()
	s.advanced.Store(time.Now().UnixNano())
	signal(s.room)
	var hashes []int64
	for _, r := range rows {
		if r.Bad != "" {
			s.logger.ErrorContext(ctx, "a message in the log is no event: it is a dead event now", "event_id", r.ID, "reason", r.Bad)
			continue
		}
		hashes = append(hashes, r.Hash)
	}
	if len(hashes) > 0 {
		s.events.Add(int64(len(hashes)))
		wake.Tell(s.schema, hashes...)
		s.others.Add(hashes)
	}
	return nil
}

// blamesData reports whether the database does not take the data: data exceptions, integrity constraints, limits of the program and of values.
func blamesData(err error) bool {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		return false
	}
	switch pgErr.Code[:2] {
	case "22", "23", "54":
		return true
	}
	return pgErr.Code == "XX000" && strings.HasPrefix(pgErr.Message, "invalid memory alloc request size") // more than a value may take
}
