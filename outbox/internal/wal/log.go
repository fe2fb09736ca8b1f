// Package wal makes the write-ahead log the source of a relay's reads. It reads a logical replication slot, keeps the rows that the log shows,
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
	// silence is how long a stream may show nothing while the log grows.
	silence = 10 * time.Second
	// endTimeout is how long the connection of a relay that has ended may take to end.
	endTimeout = 5 * time.Second
	// firstRetry and mostRetry bound the time between two attempts to read the slot.
	firstRetry, mostRetry = 50 * time.Millisecond, 5 * time.Second
)

// ErrStandBy means that another relay reads the slot.
var ErrStandBy = errors.New("another relay reads the log")

// Log reads the slot for a relay. Lead and Run must not be called concurrently.
type Log struct {
	Buffer *Buffer

	store  *store.Wal
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

// New returns a Log that looks for rows every poll while there is no stream.
func New(s *store.Wal, wakes *wake.Collector, logger *slog.Logger, poll time.Duration) *Log {
	return &Log{Buffer: NewBuffer(bufferBytes), store: s, wakes: wakes, logger: logger, poll: min(poll, watchEvery)}
}

// Check returns an error if the slot cannot be read as things are. It creates the publication.
func (l *Log) Check(ctx context.Context) error {
	if err := l.store.Ready(ctx); err != nil {
		return err
	}
	if err := l.store.CreatePublication(ctx); err != nil {
		return err
	}
	return l.store.CheckConnection(ctx)
}

// Status is what metrics report.
type Status struct {
	Streams       bool
	Lag           int64 // bytes of the log that the server keeps for the slot
	Falls, Spills int64 // how often the relay went back to the table, and how often a shard did because there were too many rows
}

// Reads is 1 if the relay reads the log, else 0.
func (s Status) Reads() int64 {
	if s.Streams {
		return 1
	}
	return 0
}

// Status may be called while Run runs.
func (l *Log) Status() Status {
	return Status{Streams: l.Buffer.Streams(), Lag: l.lag.Load(), Falls: l.falls.Load(), Spills: l.Buffer.Spills()}
}

// Lead waits until no other relay holds shards or reads the slot. It returns false if ctx ends before.
func (l *Log) Lead(ctx context.Context) bool {
	for first := true; ; first = false {
		s, err := l.store.State(ctx)
		switch {
		case ctx.Err() != nil:
			return false
		case err == nil:
			l.lag.Store(s.Lag)
		}
		switch {
		case err != nil:
			l.logger.WarnContext(ctx, "look which relay reads the log", "error", err)
		case !s.Others && (s.Reader == 0 || s.Own || s.Orphaned):
			return true
		case first:
			l.logger.InfoContext(ctx, "another relay forwards the events: standing by")
		}
		if !store.Sleep(ctx, l.poll) {
			return false
		}
	}
}

// Run reads the slot until ctx ends, and then returns nil. While it cannot, it makes the relay look for rows. It returns ErrStandBy if
// another relay reads the slot.
func (l *Log) Run(ctx context.Context) error {
	var watching sync.WaitGroup
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		watching.Wait()
	}()
	watching.Go(func() { l.watch(ctx) })
	retry := time.Duration(0)
	for {
		began := time.Now()
		err := l.follow(ctx)
		l.Buffer.End()
		l.wakes.Add(nil)
		switch {
		case errors.Is(err, ErrStandBy):
			l.logger.WarnContext(ctx, "another relay reads the log: giving the shards to it")
			return err
		case ctx.Err() != nil:
			return nil
		}
		l.falls.Add(1)
		if !l.fallen {
			l.fallen = true
			l.logger.ErrorContext(ctx, "the log cannot be read: reading rows meanwhile", "slot", l.store.Slot, "error", err)
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
// not shown what the log had a second ago. watch ends a stream that cannot be trusted.
func (l *Log) watch(ctx context.Context) {
	var before uint64
	var published time.Time
	for watched := time.Now(); store.Sleep(ctx, l.poll); {
		if !l.Buffer.Streams() {
			l.wakes.Add(nil)
		}
		if time.Since(watched) < watchEvery {
			continue
		}
		watched = time.Now()
		started := l.Buffer.ServerStarted()
		s, err := l.store.State(ctx)
		if err != nil {
			continue
		}
		l.lag.Store(s.Lag)
		late := l.received.Load() < before
		l.Buffer.SetLate(late)
		before = s.Flushed
		if started.IsZero() {
			continue
		}
		switch {
		case !started.Equal(s.ServerStarted):
			l.endStream(errors.New("the stream comes from another server than the table"))
		case s.CountsAsStandby:
			l.endStream(store.ErrCountsAsStandby)
		case late && watched.Sub(time.Unix(0, l.heard.Load())) > silence:
			l.endStream(errors.New("the stream is silent although the WAL grows"))
		}
		if watched.Sub(published) >= tableEvery {
			published = watched
			l.wakes.Add(nil) // each shard is read from the table now and then
			if err := l.store.CheckPublication(ctx); err != nil && ctx.Err() == nil {
				l.endStream(err)
			}
		}
	}
}

// endStream ends the stream, if there is one, with this reason.
func (l *Log) endStream(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.end != nil {
		l.end(err)
	}
}

// follow streams the slot until that fails.
func (l *Log) follow(ctx context.Context) error {
	conn, err := l.store.Dial(ctx)
	if err != nil {
		return fmt.Errorf("connect for replication: %w", err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(ctx) // nothing is lost with it
	}()
	if err := l.prepare(ctx, conn); err != nil {
		return err
	}
	if err := errors.Join(l.store.Ready(ctx), l.store.CreatePublication(ctx)); err != nil {
		return err
	}
	// Rows that were committed before the end of the WAL are in the table, so the stream can skip them. End is asked before Begin: every
	// transaction that the stream skips has its commit in the WAL before the buffer keeps its first row.
	position, started, err := l.store.End(ctx, conn)
	if err != nil {
		return err
	}
	err = pglogrepl.StartReplication(ctx, conn, l.store.Slot, pglogrepl.LSN(position), pglogrepl.StartReplicationOptions{
		PluginArgs: []string{"proto_version '1'", "publication_names '" + l.store.Publication + "'", "binary 'true'"},
	})
	if err != nil {
		return l.failed(err)
	}
	l.received.Store(position)
	l.Buffer.Begin(started)
	l.wakes.Add(nil)
	l.logger.InfoContext(ctx, "reading the log", "slot", l.store.Slot)
	l.fallen = false
	streaming, end := context.WithCancelCause(ctx)
	l.mu.Lock()
	l.end = end
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		l.end = nil
		l.mu.Unlock()
		end(nil)
	}()
	l.heard.Store(time.Now().UnixNano())
	err = l.receive(streaming, conn)
	if cause := context.Cause(streaming); cause != nil && ctx.Err() == nil {
		return cause
	}
	return l.failed(err)
}

// prepare sees that there is a slot that this relay can read.
func (l *Log) prepare(ctx context.Context, conn *pgconn.PgConn) error {
	s, err := l.store.State(ctx)
	for ended := time.Now().Add(endTimeout); err == nil && s.Reader != 0; s, err = l.store.State(ctx) {
		switch {
		case !s.Own && !s.Orphaned:
			return ErrStandBy
		case time.Now().After(ended):
			return errors.New("a connection of a relay that has ended reads the slot, and does not end")
		}
		if err := l.store.Terminate(ctx, s.Reader); err != nil {
			return err
		}
		if !store.Sleep(ctx, firstRetry) {
			return ctx.Err()
		}
	}
	if err != nil {
		return err
	}
	if s.Exists && (!s.Fits || s.Lost || l.distrust) {
		if err := l.store.Drop(ctx); err != nil {
			return fmt.Errorf("drop the slot, to create another: %w", err)
		}
		s.Exists = false
	}
	l.distrust = false
	if s.Exists {
		return nil
	}
	if err := l.store.CreatePublication(ctx); err != nil {
		return err
	}
	if err := l.store.Create(ctx, conn); err != nil {
		return fmt.Errorf("create the slot: %w", err)
	}
	return nil
}

// failed records what an error of the stream says about the slot.
func (l *Log) failed(err error) error {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		return err
	}
	switch class := pgErr.Code[:2]; {
	case pgErr.Code == "55006": // object_in_use
		return errors.Join(ErrStandBy, err)
	case class == "08" || class == "53" || class == "57": // of connections and resources
	default:
		l.distrust = true
	}
	return err
}

// receive passes what the stream shows to the buffer. Everything that was received is confirmed, because the rows are in the table.
func (l *Log) receive(ctx context.Context, conn *pgconn.PgConn) error {
	for t := (transaction{}); ; {
		if err := pglogrepl.SendStandbyStatusUpdate(ctx, conn, pglogrepl.StandbyStatusUpdate{WALWritePosition: pglogrepl.LSN(l.received.Load())}); err != nil {
			return err
		}
		if err := l.receiveFor(ctx, conn, confirmEvery, &t); err != nil {
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
func (l *Log) receiveFor(ctx context.Context, conn *pgconn.PgConn, d time.Duration, t *transaction) error {
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
		l.heard.Store(time.Now().UnixNano())
		switch data[0] {
		case pglogrepl.PrimaryKeepaliveMessageByteID:
			alive, err := pglogrepl.ParsePrimaryKeepaliveMessage(data[1:])
			if err != nil {
				return err
			}
			if !t.within {
				l.received.Store(max(l.received.Load(), uint64(alive.ServerWALEnd)))
			}
			if alive.ReplyRequested {
				return nil
			}
		case pglogrepl.XLogDataByteID:
			x, err := pglogrepl.ParseXLogData(data[1:])
			if err == nil {
				err = l.show(t, x.WALData)
			}
			if err != nil {
				return err
			}
		}
	}
}

// show handles one message of the stream. The stream shows a transaction after its commit, so the buffer need not wait for all its rows.
func (l *Log) show(t *transaction, message []byte) error {
	row, isRow, complete, err := t.decode(message)
	if err != nil {
		return err
	}
	if isRow {
		t.rows, t.bytes = append(t.rows, row), t.bytes+row.weight()
	}
	if complete || t.bytes > partBytes {
		l.Buffer.Add(t.rows)
		l.wake(t.rows)
		t.rows, t.bytes = nil, 0
	}
	if complete {
		l.received.Store(max(l.received.Load(), uint64(t.end)))
	}
	return nil
}

// wake wakes the relay for the rows' shards. Shard numbers are passed in place of hashes: loop.woken takes a hash modulo the number of shards,
// which leaves a shard number as it is.
func (l *Log) wake(rows []Row) {
	if len(rows) == 0 {
		return
	}
	var hashes []int64
	for _, r := range rows {
		if shard := int64(r.Shard); !slices.Contains(hashes, shard) {
			hashes = append(hashes, shard)
		}
	}
	l.wakes.Add(hashes)
}
