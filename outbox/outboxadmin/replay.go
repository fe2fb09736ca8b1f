package outboxadmin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/millrace-go/millrace/outbox/internal/store"
	"github.com/millrace-go/millrace/pgtx"
)

// Bounds of one transaction of a replay.
const (
	replayEvents  = 500
	replayBytes   = 4 << 20
	replayScanned = 10_000 // events of the archive that are read, of which few may be selected
)

const (
	replayPause  = 100 * time.Millisecond // before a replay looks again at an outbox that is full
	longestPause = time.Second            // before it looks whether it was stopped
)

// ReplayConfig says what Replay replays, and how.
type ReplayConfig struct {
	// ArchiveSelection selects the events. Until is the beginning of the replay at the latest.
	ArchiveSelection

	// To is the topic that the events go to. Default: each event's own.
	To string

	// Resume is the ID of a replay that has not finished, from ReplayProgress or ListAudit. It continues behind the last event that it
	// has put into the outbox, also where StopReplay has stopped it. Its selection and its topic are what they were: leave these fields
	// empty. Default: a new replay.
	Resume int64

	// Rate is how many events a second are replayed at most, by all processes that continue the replay. Default: no limit.
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
// with an error, as one does that StopReplay has stopped, the progress it returns has the ID to continue with.
//
// It is for a role that may both operate the outbox and write to it: see GrantRoles.
func Replay(ctx context.Context, db pgtx.DB, schema string, c ReplayConfig, by By) (p ReplayProgress, err error) {
	if err := errors.Join(c.validate(), by.Validate()); err != nil {
		return p, fmt.Errorf("replay events: %w", err)
	}
	if p.ID = c.Resume; p.ID == 0 {
		p.ID, err = BeginReplay(ctx, db, schema, c, by)
	} else {
		err = resumeReplay(ctx, db, schema, "resume replay", p.ID, c.Rate, by, false)
	}
	stopped := ""
	if err == nil {
		stopped, err = continueReplay(ctx, db, schema, c, &p)
	}
	if err == nil && stopped != "" {
		err = fmt.Errorf("replay events: %s has stopped it", stopped)
	}
	return p, err
}

// continueReplay replays until all is done, or somebody has stopped the replay, whose name it returns then.
func continueReplay(ctx context.Context, db pgtx.DB, schema string, c ReplayConfig, p *ReplayProgress) (stopped string, err error) {
	for !p.Finished {
		wait := replayPause
		progress := true
		if p.Waiting, err = isFull(ctx, db, schema, c.MaxPending); err == nil {
			if !p.Waiting {
				wait, progress, stopped, err = replayStep(ctx, db, schema, c, p)
			} else {
				stopped, err = stoppedBy(ctx, db, schema, p.ID)
			}
		}
		if err != nil || stopped != "" {
			break
		}
		if progress && c.Progress != nil {
			c.Progress(*p)
		}
		if wait > 0 && !p.Finished {
			select {
			case <-ctx.Done():
			case <-time.After(min(wait, longestPause)):
			}
		}
		if ctx.Err() != nil && !p.Finished {
			err = fmt.Errorf("replay events: %w", context.Cause(ctx))
			break
		}
	}
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && pgErr.Code == "42501" {
		err = fmt.Errorf("%w; %s", err, needsWriter)
	}
	return stopped, err
}

const needsWriter = "a replay also needs the privileges of a writer"

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

// replayStep puts the next events of a replay into the outbox and records it, in one transaction. It returns how long to wait before the
// next one, and whether it has read the archive, which it has not where the replay's rate does not allow it yet.
func replayStep(ctx context.Context, db pgtx.DB, schema string, c ReplayConfig, p *ReplayProgress) (wait time.Duration, read bool, stopped string, err error) {
	next := *p
	err = administer(ctx, db, schema, "replay events", func(ctx context.Context, tx pgx.Tx, schema string) error {
		next, wait, read, stopped = *p, 0, false, ""
		var (
			topic, key, to *string
			until          time.Time
			at             position
			rate           int
			due            float64
		)
		err := tx.QueryRow(ctx, query("replay_lock", schema), p.ID).Scan(&topic, &key, &until, &to, &at.published, &at.created, &at.seq, &at.shard, &rate, &due, &stopped)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			read = true
			return endOfReplay(ctx, tx, schema, c, &next)
		case err != nil || stopped != "":
			return err
		case rate > 0 && due > 0:
			wait = seconds(due)
			return nil
		}
		events := min(replayEvents, c.MaxPending)
		if rate > 0 {
			events = min(events, max(1, rate/4))
		}
		rows, err := tx.Query(ctx, query("replay_read", schema), at.published, at.created, at.seq, at.shard, until, topic, key, replayScanned, events, replayBytes)
		if err != nil {
			return err
		}
		b, more, err := collectReplayed(rows, to, &at)
		if err != nil {
			return err
		}
		if read = true; !more {
			next.Finished = true
			return tx.QueryRow(ctx, query("replay_finish", schema), p.ID).Scan(&next.Events)
		}
		moved := len(b.ids)
		if moved > 0 {
			if _, err := tx.Exec(ctx, query("replay_insert", schema), b.hashes, b.ids, b.topics, b.keys, b.headers, b.payloads); err != nil {
				return err
			}
		}
		next.At = &at.published.Time
		err = tx.QueryRow(ctx, query("replay_advance", schema), p.ID, moved, at.published, at.created, at.seq, at.shard).Scan(&next.Events, &due)
		wait = seconds(due)
		return err
	}, pgtx.Isolation(pgx.ReadCommitted)) // it reads how far the replay is after it has the lock
	if err == nil {
		*p = next
	}
	return wait, read, stopped, err
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

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
