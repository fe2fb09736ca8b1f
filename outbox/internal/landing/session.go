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
	system           string // the server's identifier
	serverStarted    time.Time

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

// prepare makes sure that the slot can be read and that the marker matches it. It creates no slot whose WAL the server may remove, and unsafe
// says why it may.
func (s *session) prepare(ctx context.Context, unsafe error) error {
	identity, err := pglogrepl.IdentifySystem(ctx, s.stream)
	if err != nil {
		return err
	}
	s.system = identity.SystemID
	if _, s.serverStarted, err = s.store.End(ctx, s.stream); err != nil {
		return err
	}
	marker, err := s.store.Marker(ctx, s.database, s.system)
	if err != nil {
		return err
	}
	s.advanced.Store(marker.LandedAt.UnixNano())
	if marker.Foreign {
		s.logger.WarnContext(ctx, "the outbox comes from another server or database: events that were not landed there are not in the WAL of this one")
	}
	if !marker.ServerStarted.Equal(s.serverStarted) {
		return errOtherServer
	}
	state, err := s.awaitSlot(ctx)
	if err != nil {
		return err
	}
	p := planFor(slot{exists: state.Exists, fits: state.Fits && !state.Temporary, lost: state.Lost, confirmed: state.Confirmed, end: state.Flushed}, marker.Known, !marker.SlotServerStarted.Equal(s.serverStarted), marker.Landed)
	if p.refuse != "" {
		return fmt.Errorf("the replication slot %s cannot be used: %s", s.store.Slot, p.refuse)
	}
	mark := func(to uint64, reason string) error {
		changed, err := s.store.Mark(ctx, s.database, s.system, marker.Landed, to, reason)
		if err == nil && !changed {
			err = errTaken
		}
		if err != nil {
			return err
		}
		marked, err := s.store.Marker(ctx, s.database, s.system)
		marker.Position = marked.Position
		return err
	}
	if p.cut != "" {
		s.cuts.Add(1)
		s.logger.ErrorContext(ctx, "WAL was lost before its events were landed: find the transactions whose events were not published, and publish those events again",
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
		if unsafe != nil { // publishers are refused
			return unsafe
		}
		if p.cut == "" { // publishers wait until the slot is there for good
			if err := mark(0, ""); err != nil {
				return err
			}
		}
		s.logger.InfoContext(ctx, "creating the replication slot for landing: this waits for running transactions, and publishers get ErrNoLog until then", "slot", s.store.Slot)
		if err := s.store.Create(ctx, s.stream); err != nil {
			return fmt.Errorf("create the slot: %w", err)
		}
		if state, err = s.store.State(ctx); err != nil {
			return err
		}
		s.logger.InfoContext(ctx, "created the replication slot for landing", "slot", s.store.Slot, "at", pglogrepl.LSN(state.Confirmed))
	}
	if marker.Landed == 0 { // there was no slot, or no marker of it
		if err := mark(state.Confirmed, ""); err != nil {
			return err
		}
	}
	if unsafe != nil { // landing is the best that can be done
		s.logger.ErrorContext(ctx, "the server may remove WAL with events that are not landed", "error", unsafe)
	}
	s.core = newCore(marker.Position, state.Confirmed, state.Flushed)
	return nil
}

// awaitSlot waits until nobody reads the slot, and returns its state. A reader that has ended may hold it for a moment.
func (s *session) awaitSlot(ctx context.Context) (state store.SlotState, err error) {
	for ended := time.Now().Add(endTimeout); ; {
		state, err = s.store.State(ctx)
		switch {
		case err != nil:
			return state, err
		case !state.ServerStarted.Equal(s.serverStarted):
			return state, errOtherServer
		case state.Reader == 0:
			return state, nil
		case time.Now().After(ended):
			return state, fmt.Errorf(`process %d reads the replication slot %s and is not a relay: run "select pg_terminate_backend(%d)"`, state.Reader, s.store.Slot, state.Reader)
		}
		if !store.Sleep(ctx, firstRetry) {
			return state, ctx.Err()
		}
	}
}

// run streams the slot and lands what it shows, until that fails.
func (s *session) run(ctx context.Context) error {
	if err := s.startStream(ctx); err != nil {
		return err
	}
	s.leads.Store(true)
	s.lastLogged = nil
	s.heard.Store(time.Now().UnixNano())
	s.logger.InfoContext(ctx, "landing events", "slot", s.store.Slot, "from", pglogrepl.LSN(s.core.landed.Landed))
	running, stop := context.WithCancelCause(ctx)
	var working sync.WaitGroup
	for _, work := range []func(context.Context) error{s.landAll, s.watch} {
		working.Go(func() { stop(work(running)) })
	}
	stop(s.explain(s.receive(running)))
	working.Wait()
	return context.Cause(running)
}

// startStream starts the stream.
func (s *session) startStream(ctx context.Context) error {
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
		return fmt.Errorf(`the publication %s was dropped, and without it this server cannot decode earlier WAL: `+
			`to give up the events that were not landed (from %v on) and let the relay continue, run "select pg_drop_replication_slot('%s')": %w`, s.store.Publication, pglogrepl.LSN(s.core.landed.Landed), s.store.Slot, err)
	}
	return err
}

// watch measures the slot's lag, and returns an error if the stream cannot be trusted.
func (s *session) watch(ctx context.Context) error {
	for before := uint64(0); store.Sleep(ctx, lookEvery); {
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
		case !state.ServerStarted.Equal(s.serverStarted):
			return errOtherServer
		case state.CountsAsStandby:
			return store.ErrCountsAsStandby
		case late && time.Since(time.Unix(0, s.heard.Load())) > s.currentSilence:
			s.currentSilence = min(2*s.currentSilence, mostPatience) // the server may work on a large transaction
			return errors.New("the stream is silent although the WAL grows")
		}
	}
	return ctx.Err()
}

// stops reports whether the server is shutting down or refuses connections. A server that is shutting down waits for the end of the stream.
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

// landAll lands what the core has, one part after another.
func (s *session) landAll(ctx context.Context) error {
	for advanced := time.Now(); ; {
		s.mu.Lock()
		messages, to, ok := s.core.part(time.Since(advanced) >= advanceEvery)
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
		rows := make([]store.LandedMessage, len(messages))
		for i, m := range messages {
			rows[i] = landedOf(m)
		}
		if err := s.land(ctx, messages, rows, to); err != nil {
			return err
		}
	}
}

// land lands messages. If the database does not take one of them, it finds that one, and lands it as a dead event.
func (s *session) land(ctx context.Context, messages []message, rows []store.LandedMessage, to Position) error {
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
		return s.land(ctx, messages, []store.LandedMessage{badOf(messages[0], entry.Entry{}, err)}, to)
	}
	return err
}

// insert lands rows in one transaction.
func (s *session) insert(ctx context.Context, rows []store.LandedMessage, to Position) error {
	// When ctx ends, close the connection and send no cancel request. A cancelled COMMIT that waits for a synchronous standby would make the
	// rows visible before the standby has them.
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
			s.logger.ErrorContext(ctx, "a message in the WAL is not a valid event: it was stored as a dead event", "event_id", r.ID, "reason", r.Bad)
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
