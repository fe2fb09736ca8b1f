package outboxadmin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/millrace-go/millrace/internal/operator"
	"github.com/millrace-go/millrace/outbox/internal/store"
	"github.com/millrace-go/millrace/pgtx"
)

// Bounds of one transaction of a replay.
const (
	replayEvents  = 500
	replayBytes   = 4 << 20
	replayScanned = 10_000 // events of the archive that are read, of which few may be selected
)

// replayPause is how long a replay waits before it looks again at an outbox that is full.
const replayPause = 100 * time.Millisecond

// ArchiveSelection selects events of the archive. Zero fields select everything.
type ArchiveSelection struct {
	Topic, Key   string
	Since, Until time.Time // from when and until when they were published, by the server's clock
}

func (s ArchiveSelection) validate() error {
	if !s.Since.IsZero() && !s.Until.IsZero() && !s.Since.Before(s.Until) {
		return fmt.Errorf("Since is %s: want a time before Until, which is %s", s.Since.Format(time.RFC3339), s.Until.Format(time.RFC3339))
	}
	return nil
}

// ArchivedTopic is what the archive has of a topic.
type ArchivedTopic struct {
	Topic  string    `json:"topic"`
	Events int64     `json:"events"`
	Bytes  int64     `json:"bytes"` // of metadata and payloads
	First  time.Time `json:"first"` // when it was published
	Last   time.Time `json:"last"`
}

// CountArchived counts the archived events that are selected, by topic. It reads the archive from Since to Until, without locks.
func CountArchived(ctx context.Context, db pgtx.DB, schema string, s ArchiveSelection) (topics []ArchivedTopic, err error) {
	if err := s.validate(); err != nil {
		return nil, fmt.Errorf("count archived events: %w", err)
	}
	err = administer(ctx, db, schema, "count archived events", func(ctx context.Context, tx pgx.Tx, schema string) error {
		rows, err := tx.Query(ctx, query("replay_count", schema), operator.Optional(s.Topic), operator.Optional(s.Key), operator.OptionalTime(s.Since), operator.OptionalTime(s.Until))
		if err != nil {
			return err
		}
		topics, err = pgx.CollectRows(rows, pgx.RowToStructByPos[ArchivedTopic])
		return err
	})
	return topics, err
}

// ArchiveReport is what the archive has.
type ArchiveReport struct {
	First  *time.Time `json:"first"` // when the first of its events was published; nil: it is empty
	Last   *time.Time `json:"last"`
	Topics []string   `json:"topics"` // of its last 10,000 events
}

// InspectArchive reports what the archive has. It reads a bounded number of rows, without locks.
func InspectArchive(ctx context.Context, db pgtx.DB, schema string) (r ArchiveReport, err error) {
	err = administer(ctx, db, schema, "inspect archive", func(ctx context.Context, tx pgx.Tx, schema string) error {
		return tx.QueryRow(ctx, query("replay_archive", schema), 10_000).Scan(&r.First, &r.Last, &r.Topics)
	})
	return r, err
}

// ReplayConfig says what Replay replays, and how.
type ReplayConfig struct {
	// ArchiveSelection selects the events. Until is the beginning of the replay at the latest.
	ArchiveSelection

	// To is the topic that the events go to. Default: each event's own.
	To string

	// Resume is the ID of a replay that has not finished, from ReplayProgress or ListAudit. It continues behind the last event that it
	// has put into the outbox. Its selection and its topic are what they were: leave these fields empty. Default: a new replay.
	Resume int64

	// Rate is how many events a second are replayed at most. Default: no limit.
	Rate int

	// MaxPending is how many events the outbox may hold: while it holds more, the replay waits for the relays, so that new events
	// need not wait behind a long replay. Default: 5,000.
	MaxPending int

	// Progress is called after each transaction, and while the replay waits.
	Progress func(ReplayProgress)
}

func (c *ReplayConfig) validate() error {
	var errs []error
	if c.Resume != 0 && (c.ArchiveSelection != ArchiveSelection{} || c.To != "") {
		errs = append(errs, errors.New("Resume is set, and so is a selection or To: want one of them, because a replay that is continued keeps what it began with"))
	}
	errs = append(errs, c.ArchiveSelection.validate())
	if c.Rate < 0 {
		errs = append(errs, fmt.Errorf("Rate is %d: want 1 or more events a second, or 0 for no limit", c.Rate))
	}
	if c.MaxPending < 0 {
		errs = append(errs, fmt.Errorf("MaxPending is %d: want 1 or more, or 0 for the default", c.MaxPending))
	}
	if c.MaxPending == 0 {
		c.MaxPending = 5000
	}
	return errors.Join(errs...)
}

// ReplayProgress says how far a replay is.
type ReplayProgress struct {
	ID       int64      `json:"id"`
	Events   int64      `json:"events"`       // put into the outbox so far
	At       *time.Time `json:"at,omitempty"` // when the last event that was read was published
	Waiting  bool       `json:"waiting,omitempty"`
	Finished bool       `json:"finished"`
}

// Replay puts archived events into the outbox again, with their IDs, keys, payloads and metadata, and in the order in which they
// were published. Relays send them as they send new events, behind those that are in the outbox already. Consumers absorb by
// their claims what they have processed: it takes effect again only for consumers that have not, such as those of
// another topic. Events that were replayed are not archived a second time, so that a second replay does not send them twice.
//
// It replays what the archive has when it begins. An event gets there when a relay has recorded that it was published, up to
// a second later.
//
// Each transaction is short, and records how far the replay is. If the process is killed, no event is left out and
// none is put into the outbox twice, provided that the replay is continued by Resume. (A relay that is killed repeats
// events of a replay as it repeats others.) Several processes may continue the same replay at once. If the replay ends
// with an error, the progress it returns has the ID to continue with.
//
// It is for a role that may both operate the outbox and write to it: see GrantRoles.
func Replay(ctx context.Context, db pgtx.DB, schema string, c ReplayConfig, by By) (p ReplayProgress, err error) {
	if err := errors.Join(c.validate(), by.Validate()); err != nil {
		return p, fmt.Errorf("replay events: %w", err)
	}
	if p.ID = c.Resume; p.ID == 0 {
		err = administer(ctx, db, schema, "replay events", func(ctx context.Context, tx pgx.Tx, schema string) error {
			return tx.QueryRow(ctx, query("replay_begin", schema), by.Actor, by.Note, operator.Optional(c.Topic), operator.Optional(c.Key),
				operator.OptionalTime(c.Since), operator.OptionalTime(c.Until), operator.Optional(c.To)).Scan(&p.ID)
		})
	}
	for err == nil && !p.Finished {
		began := time.Now()
		moved := 0
		if p.Waiting, err = isFull(ctx, db, schema, c.MaxPending); err == nil && !p.Waiting {
			moved, err = replayStep(ctx, db, schema, c, &p)
		}
		if err != nil {
			break
		}
		if c.Progress != nil {
			c.Progress(p)
		}
		wait := time.Duration(0)
		switch {
		case p.Waiting:
			wait = replayPause
		case c.Rate > 0 && !p.Finished:
			wait = time.Duration(moved)*time.Second/time.Duration(c.Rate) - time.Since(began)
		}
		if wait > 0 {
			select {
			case <-ctx.Done():
			case <-time.After(wait):
			}
		}
		if ctx.Err() != nil && !p.Finished {
			err = fmt.Errorf("replay events: %w", context.Cause(ctx))
		}
	}
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && pgErr.Code == "42501" {
		err = fmt.Errorf("%w; a replay also needs the privileges of a writer", err)
	}
	return p, err
}

// isFull reports whether the outbox holds more events than that.
func isFull(ctx context.Context, db pgtx.DB, schema string, limit int) (full bool, err error) {
	err = administer(ctx, db, schema, "replay events", func(ctx context.Context, tx pgx.Tx, schema string) error {
		var n, estimate int64
		err := tx.QueryRow(ctx, store.Query("backlog", schema), limit+1).Scan(&n, &estimate)
		full = n > int64(limit)
		return err
	})
	return full, err
}

// position is where a replay is in the archive.
type position struct {
	published, created pgtype.Timestamptz
	seq                int64
	shard              int16
}

// replayStep puts the next events of a replay into the outbox and records it, in one transaction.
func replayStep(ctx context.Context, db pgtx.DB, schema string, c ReplayConfig, p *ReplayProgress) (moved int, err error) {
	events := replayEvents
	if c.Rate > 0 {
		events = min(events, max(1, c.Rate/4))
	}
	events = min(events, c.MaxPending)
	next := *p
	err = administer(ctx, db, schema, "replay events", func(ctx context.Context, tx pgx.Tx, schema string) error {
		next = *p
		var (
			topic, key, to *string
			until          time.Time
			at             position
		)
		err := tx.QueryRow(ctx, query("replay_lock", schema), p.ID).Scan(&topic, &key, &until, &to, &at.published, &at.created, &at.seq, &at.shard)
		if errors.Is(err, pgx.ErrNoRows) {
			return endOfReplay(ctx, tx, schema, c, &next)
		}
		if err != nil {
			return err
		}
		rows, err := tx.Query(ctx, query("replay_read", schema), at.published, at.created, at.seq, at.shard, until, topic, key, replayScanned, events, replayBytes)
		if err != nil {
			return err
		}
		b, read, err := collectReplayed(rows, to, &at)
		if err != nil {
			return err
		}
		if !read {
			next.Finished = true
			return tx.QueryRow(ctx, query("replay_finish", schema), p.ID).Scan(&next.Events)
		}
		if moved = len(b.ids); moved > 0 {
			if _, err := tx.Exec(ctx, query("replay_insert", schema), b.hashes, b.ids, b.topics, b.keys, b.headers, b.payloads); err != nil {
				return err
			}
		}
		next.At = &at.published.Time
		return tx.QueryRow(ctx, query("replay_advance", schema), p.ID, moved, at.published, at.created, at.seq, at.shard).Scan(&next.Events)
	}, pgtx.Isolation(pgx.ReadCommitted)) // it reads how far the replay is after it has the lock
	if err == nil {
		*p = next
	}
	return moved, err
}

// endOfReplay is for a replay that is not in the table of those that have not finished.
func endOfReplay(ctx context.Context, tx pgx.Tx, schema string, c ReplayConfig, p *ReplayProgress) error {
	err := tx.QueryRow(ctx, query("replay_finish", schema), p.ID).Scan(&p.Events)
	if errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("Resume is %d: there is no such replay; ListAudit, or \"millrace outbox audit\", lists them", c.Resume)
	}
	p.Finished = true // by another process, or before
	return err
}

// replayed are events as replay_insert takes them.
type replayed struct {
	hashes            []int64
	ids, topics, keys []string
	headers, payloads [][]byte
}

// collectReplayed takes the rows of replay_read and sets the position to the last one.
func collectReplayed(rows pgx.Rows, to *string, at *position) (b replayed, read bool, err error) {
	var (
		selected         bool
		id, topic, key   string
		headers, payload []byte
	)
	_, err = pgx.ForEachRow(rows, []any{&at.published, &at.created, &at.seq, &at.shard, &selected, &id, &topic, &key, &headers, &payload}, func() error {
		read = true
		if !selected {
			return nil
		}
		if to != nil {
			topic = *to
		}
		b.hashes = append(b.hashes, store.Hash(key, id))
		b.ids, b.topics, b.keys = append(b.ids, id), append(b.topics, topic), append(b.keys, key)
		b.headers, b.payloads = append(b.headers, headers), append(b.payloads, payload)
		return nil
	})
	return b, read, err
}
