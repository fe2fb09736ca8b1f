package outboxadmin

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/millrace-go/millrace/internal/operator"
	"github.com/millrace-go/millrace/pgtx"
)

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

// archiveSearched is how many events of the archive are read where a bounded number is.
const archiveSearched = 20_000

// ArchiveSample is what the newest events of the archive have of a selection.
type ArchiveSample struct {
	Topics   []ArchivedTopic // without Bytes
	Selected Count           // at least, where older events were not read
}

// SampleArchive counts the events that are selected among the newest 20,000 that were published from Since to Until, without locks.
func SampleArchive(ctx context.Context, db pgtx.DB, schema string, s ArchiveSelection) (a ArchiveSample, err error) {
	if err := s.validate(); err != nil {
		return a, fmt.Errorf("sample archived events: %w", err)
	}
	err = administer(ctx, db, schema, "sample archived events", func(ctx context.Context, tx pgx.Tx, schema string) error {
		a, err = s.sample(ctx, tx, schema)
		return err
	})
	return a, err
}

func (s ArchiveSelection) sample(ctx context.Context, tx pgx.Tx, schema string) (a ArchiveSample, err error) {
	rows, err := tx.Query(ctx, query("archive_sample", schema), operator.Optional(s.Topic), operator.Optional(s.Key), operator.OptionalTime(s.Since), operator.OptionalTime(s.Until), archiveSearched)
	if err != nil {
		return a, err
	}
	var t ArchivedTopic
	var selected bool
	searched := int64(0)
	_, err = pgx.ForEachRow(rows, []any{&t.Topic, &selected, &t.Events, &t.First, &t.Last}, func() error {
		if searched += t.Events; selected {
			a.Topics = append(a.Topics, t)
			a.Selected.N += t.Events
		}
		return nil
	})
	a.Selected.AtLeast = searched == archiveSearched
	return a, err
}

// ArchivedEvent is one that was published.
type ArchivedEvent struct {
	EventID   string    `json:"event_id"`
	Topic     string    `json:"topic"`
	Key       string    `json:"key"`
	Published time.Time `json:"published"`
}

// ArchivePosition is where a part of the archive's list ends. The zero position is before the newest event.
type ArchivePosition struct {
	Published, Created time.Time
	Seq                int64
	Shard              int16
}

// ListArchive returns events that are selected, the newest first, at most limit of them, from behind a position on. It reads no more
// than 20,000 events of the archive, without locks. next is where the list goes on, also where none of those that it has read is selected;
// it is nil where the list ends.
func ListArchive(ctx context.Context, db pgtx.DB, schema string, s ArchiveSelection, behind ArchivePosition, limit int) (found []ArchivedEvent, next *ArchivePosition, err error) {
	if err := s.validate(); err != nil {
		return nil, nil, fmt.Errorf("list archived events: %w", err)
	}
	if limit < 1 {
		return nil, nil, fmt.Errorf("list archived events: limit is %d: want 1 or more", limit)
	}
	search := archiveSearched
	if s.Topic == "" && s.Key == "" {
		search = limit // all are selected
	}
	at := position{published: pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true}, created: pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true}}
	if behind != (ArchivePosition{}) {
		at = position{pgtype.Timestamptz{Time: behind.Published, Valid: true}, pgtype.Timestamptz{Time: behind.Created, Valid: true}, behind.Seq, behind.Shard}
	}
	err = administer(ctx, db, schema, "list archived events", func(ctx context.Context, tx pgx.Tx, schema string) error {
		rows, err := tx.Query(ctx, query("archive_list", schema), operator.Optional(s.Topic), operator.Optional(s.Key), operator.OptionalTime(s.Since), operator.OptionalTime(s.Until),
			at.published, at.created, at.seq, at.shard, search, limit)
		if err != nil {
			return err
		}
		var e ArchivedEvent
		var p ArchivePosition
		var read int
		var selected bool
		_, err = pgx.ForEachRow(rows, []any{&e.Published, &p.Created, &p.Seq, &p.Shard, &e.EventID, &e.Topic, &e.Key, &selected, &read}, func() error {
			if selected && len(found) < limit {
				found = append(found, e)
			}
			if p.Published = e.Published; len(found) == limit || read == search {
				next = &p
			}
			return nil
		})
		return err
	})
	return found, next, err
}
