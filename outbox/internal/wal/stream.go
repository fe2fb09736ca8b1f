// Package wal makes the write-ahead log the source of a relay's reads. It reads a logical replication slot, keeps the rows that the WAL shows,
// answers the relay's reads from them, and decides which relay reads the slot. The rows in the table stay the truth: without a slot the relay
// reads them.
package wal

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/millrace-go/millrace/outbox/internal/store"
	"github.com/millrace-go/millrace/outbox/internal/wake"
)

const (
	// bufferBytes is how much the rows may take that the relay has not read yet.
	bufferBytes = 32 << 20
	// partBytes is how much of a transaction is received before the relay gets it.
	partBytes = 256 << 10
	// watchEvery is how often the slot is looked at, and how often rows are looked for while there is no stream.
	watchEvery = time.Second
	// confirmEvery is how often the server is told what was received.
	confirmEvery = time.Second
	// silence is how long a stream may show nothing while the WAL grows.
	silence = 10 * time.Second
	// endTimeout is how long the connection of a relay that has ended may take to end.
	endTimeout = 5 * time.Second
	// firstRetry and mostRetry bound the time between two attempts to read the slot.
	firstRetry, mostRetry = 50 * time.Millisecond, 5 * time.Second
)

// ErrStandBy means that another relay reads the slot.
var ErrStandBy = errors.New("another relay reads the WAL")

// Stream reads the slot for a relay. AwaitTurn and Run must not be called concurrently.
type Stream struct {
	Buffer *Buffer

	store  *store.WAL
	wakes  *wake.Collector
	logger *slog.Logger
	poll   time.Duration // between two looks for rows while there is no stream

	received atomic.Uint64 // everything before it was received
	heard    atomic.Int64  // when the stream last showed anything, in nanoseconds
	lag      atomic.Int64
	falls    atomic.Int64

	mu  sync.Mutex
	end context.CancelCauseFunc // of the stream; nil: there is none

	fallen   bool // to the table: it was reported
	distrust bool // the slot has failed: another one is needed
}

// New returns a Stream that looks for rows every poll while there is no stream.
func New(st *store.WAL, wakes *wake.Collector, logger *slog.Logger, poll time.Duration) *Stream {
	return &Stream{Buffer: NewBuffer(bufferBytes), store: st, wakes: wakes, logger: logger, poll: min(poll, watchEvery)}
}

// Check returns an error if the slot cannot be read as things are. It creates the publication.
func (s *Stream) Check(ctx context.Context) error {
	if err := s.store.Ready(ctx); err != nil {
		return err
	}
	if err := s.store.CreatePublication(ctx); err != nil {
		return err
	}
	return s.store.CheckConnection(ctx)
}

// Status is what metrics report.
type Status struct {
	Streams       bool
	Lag           int64 // bytes of the WAL that the server keeps for the slot
	Falls, Spills int64 // how often the relay went back to the table, and how often a shard did because there were too many rows
}

// Reads is 1 if the relay reads the WAL, else 0.
func (s Status) Reads() int64 {
	if s.Streams {
		return 1
	}
	return 0
}

// Status may be called while Run runs.
func (s *Stream) Status() Status {
	return Status{Streams: s.Buffer.Streams(), Lag: s.lag.Load(), Falls: s.falls.Load(), Spills: s.Buffer.Spills()}
}

// AwaitTurn waits until no other relay holds shards or reads the slot. It returns false if ctx ends before.
func (s *Stream) AwaitTurn(ctx context.Context) bool {
	for first := true; ; first = false {
		slot, err := s.store.State(ctx)
		switch {
		case ctx.Err() != nil:
			return false
		case err == nil:
			s.lag.Store(slot.Lag)
		}
		switch {
		case err != nil:
			s.logger.WarnContext(ctx, "look which relay reads the WAL", "error", err)
		case !slot.Others && (slot.Reader == 0 || slot.Own || slot.Orphaned):
			return true
		case first:
			s.logger.InfoContext(ctx, "another relay forwards the events: standing by")
		}
		if !store.Sleep(ctx, s.poll) {
			return false
		}
	}
}

// Run reads the slot until ctx ends, and then returns nil. While it cannot, it makes the relay look for rows. It returns ErrStandBy if
// another relay reads the slot.
func (s *Stream) Run(ctx context.Context) error {
	var watching sync.WaitGroup
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		watching.Wait()
	}()
	watching.Go(func() { s.watch(ctx) })
	retry := time.Duration(0)
	for {
		began := time.Now()
		err := s.follow(ctx)
		s.Buffer.End()
		s.wakes.Add(nil)
		switch {
		case errors.Is(err, ErrStandBy):
			s.logger.WarnContext(ctx, "another relay reads the WAL: giving the shards to it")
			return err
		case ctx.Err() != nil:
			return nil
		}
		s.falls.Add(1)
		if !s.fallen {
			s.fallen = true
			s.logger.ErrorContext(ctx, "the WAL cannot be read: reading rows meanwhile", "slot", s.store.Slot, "error", err)
		}
		if time.Since(began) > mostRetry {
			retry = 0
		}
		retry = min(max(2*retry, firstRetry), mostRetry)
		if !store.Sleep(ctx, retry) {
			return nil
		}
	}
}

// watch measures the slot's lag, and makes the relay read the table while there is no stream or it is behind. The stream is behind if it has
// not shown what the WAL had a second ago. watch ends a stream that cannot be trusted.
func (s *Stream) watch(ctx context.Context) {
	var before uint64
	var published time.Time
	for watched := time.Now(); store.Sleep(ctx, s.poll); {
		if !s.Buffer.Streams() {
			s.wakes.Add(nil)
		}
		if time.Since(watched) < watchEvery {
			continue
		}
		watched = time.Now()
		started := s.Buffer.ServerStarted()
		slot, err := s.store.State(ctx)
		if err != nil {
			continue
		}
		s.lag.Store(slot.Lag)
		late := s.received.Load() < before
		s.Buffer.SetLate(late)
		before = slot.Flushed
		if started.IsZero() {
			continue
		}
		switch {
		case !started.Equal(slot.ServerStarted):
			s.endStream(errors.New("the stream comes from another server than the table"))
		case slot.CountsAsStandby:
			s.endStream(store.ErrCountsAsStandby)
		case late && watched.Sub(time.Unix(0, s.heard.Load())) > silence:
			s.endStream(errors.New("the stream is silent although the WAL grows"))
		}
		if watched.Sub(published) >= tableEvery {
			published = watched
			s.wakes.Add(nil) // each shard is read from the table now and then
			if err := s.store.CheckPublication(ctx); err != nil && ctx.Err() == nil {
				s.endStream(err)
			}
		}
	}
}

// endStream ends the stream, if there is one, with this reason.
func (s *Stream) endStream(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end != nil {
		s.end(err)
	}
}

// follow streams the slot until that fails.
func (s *Stream) follow(ctx context.Context) error {
	conn, err := s.store.Dial(ctx)
	if err != nil {
		return fmt.Errorf("connect for replication: %w", err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(ctx) // nothing is lost with it
	}()
	if err := s.prepare(ctx, conn); err != nil {
		return err
	}
	if err := errors.Join(s.store.Ready(ctx), s.store.CreatePublication(ctx)); err != nil {
		return err
	}
	// Rows that were committed before the end of the WAL are in the table, so the stream can skip them. End is asked before Begin: every
	// transaction that the stream skips has its commit in the WAL before the buffer keeps its first row.
	position, started, err := s.store.End(ctx, conn)
	if err != nil {
		return err
	}
	err = pglogrepl.StartReplication(ctx, conn, s.store.Slot, pglogrepl.LSN(position), pglogrepl.StartReplicationOptions{
		PluginArgs: []string{"proto_version '1'", "publication_names '" + s.store.Publication + "'", "binary 'true'"},
	})
	if err != nil {
		return s.failed(err)
	}
	s.received.Store(position)
	s.Buffer.Begin(started)
	s.wakes.Add(nil)
	s.logger.InfoContext(ctx, "reading the WAL", "slot", s.store.Slot)
	s.fallen = false
	streaming, end := context.WithCancelCause(ctx)
	s.mu.Lock()
	s.end = end
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.end = nil
		s.mu.Unlock()
		end(nil)
	}()
	s.heard.Store(time.Now().UnixNano())
	err = s.receive(streaming, conn)
	if cause := context.Cause(streaming); cause != nil && ctx.Err() == nil {
		return cause
	}
	return s.failed(err)
}

// prepare sees that there is a slot that this relay can read.
func (s *Stream) prepare(ctx context.Context, conn *pgconn.PgConn) error {
	slot, err := s.store.State(ctx)
	for ended := time.Now().Add(endTimeout); err == nil && slot.Reader != 0; slot, err = s.store.State(ctx) {
		switch {
		case !slot.Own && !slot.Orphaned:
			return ErrStandBy
		case time.Now().After(ended):
			return errors.New("a connection of a relay that has ended reads the slot, and does not end")
		}
		if err := s.store.Terminate(ctx, slot.Reader); err != nil {
			return err
		}
		if !store.Sleep(ctx, firstRetry) {
			return ctx.Err()
		}
	}
	if err != nil {
		return err
	}
	if slot.Exists && (!slot.Fits || slot.Lost || s.distrust) {
		if err := s.store.Drop(ctx); err != nil {
			return fmt.Errorf("drop the slot, to create another: %w", err)
		}
		slot.Exists = false
	}
	s.distrust = false
	if slot.Exists {
		return nil
	}
	if err := s.store.CreatePublication(ctx); err != nil {
		return err
	}
	s.logger.InfoContext(ctx, "creating the replication slot: this waits for running transactions, and the relay reads rows meanwhile", "slot", s.store.Slot)
	if err := s.store.Create(ctx, conn); err != nil {
		return fmt.Errorf("create the slot: %w", err)
	}
	return nil
}

// failed records what an error of the stream says about the slot.
func (s *Stream) failed(err error) error {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		return err
	}
	switch class := pgErr.Code[:2]; {
	case pgErr.Code == "55006": // object_in_use
		return errors.Join(ErrStandBy, err)
	case class == "08" || class == "53" || class == "57": // of connections and resources
	default:
		s.distrust = true
	}
	return err
}

// receive passes what the stream shows to the buffer. Everything that was received is confirmed, because the rows are in the table.
func (s *Stream) receive(ctx context.Context, conn *pgconn.PgConn) error {
	for t := (transaction{}); ; {
		if err := pglogrepl.SendStandbyStatusUpdate(ctx, conn, pglogrepl.StandbyStatusUpdate{WALWritePosition: pglogrepl.LSN(s.received.Load())}); err != nil {
			return err
		}
		if err := s.receiveFor(ctx, conn, confirmEvery, &t); err != nil {
			return err
		}
	}
}

// transaction is what was received of a transaction and is not in the buffer yet.
type transaction struct {
	decoder
	rows  []Row
	bytes int
}

// receiveFor receives for d, or until the server asks what was received.
func (s *Stream) receiveFor(ctx context.Context, conn *pgconn.PgConn, d time.Duration, t *transaction) error {
	due, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	for {
		data, err := store.Receive(due, conn)
		if err != nil {
			if ctx.Err() == nil && pgconn.Timeout(err) {
				return nil
			}
			return err
		}
		s.heard.Store(time.Now().UnixNano())
		switch data[0] {
		case pglogrepl.PrimaryKeepaliveMessageByteID:
			alive, err := pglogrepl.ParsePrimaryKeepaliveMessage(data[1:])
			if err != nil {
				return err
			}
			if !t.within {
				s.received.Store(max(s.received.Load(), uint64(alive.ServerWALEnd)))
			}
			if alive.ReplyRequested {
				return nil
			}
		case pglogrepl.XLogDataByteID:
			x, err := pglogrepl.ParseXLogData(data[1:])
			if err == nil {
				err = s.show(t, x.WALData)
			}
			if err != nil {
				return err
			}
		}
	}
}

// show handles one message of the stream. The stream shows a transaction after its commit, so the buffer need not wait for all its rows.
func (s *Stream) show(t *transaction, message []byte) error {
	row, isRow, complete, err := t.decode(message)
	if err != nil {
		return err
	}
	if isRow {
		t.rows, t.bytes = append(t.rows, row), t.bytes+row.weight()
	}
	if complete || t.bytes > partBytes {
		s.Buffer.Add(t.rows)
		s.wake(t.rows)
		t.rows, t.bytes = nil, 0
	}
	if complete {
		s.received.Store(max(s.received.Load(), uint64(t.end)))
	}
	return nil
}

// wake wakes the relay for the rows' shards. Shard numbers are passed in place of hashes: loop.woken takes a hash modulo the number of shards,
// which leaves a shard number as it is.
func (s *Stream) wake(rows []Row) {
	if len(rows) == 0 {
		return
	}
	var hashes []int64
	for _, r := range rows {
		if shard := int64(r.Shard); !slices.Contains(hashes, shard) {
			hashes = append(hashes, shard)
		}
	}
	s.wakes.Add(hashes)
}
