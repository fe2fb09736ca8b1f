package outboxadmin

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/internal/operator"
	"github.com/millrace-go/millrace/pgtx"
)

// ErrorGroup is events that failed alike.
type ErrorGroup struct {
	Group     string    `json:"group"`
	Text      string    `json:"text"` // what their reasons have in common
	Events    int       `json:"events"`
	Dead      int       `json:"dead"` // of those
	Retrying  int       `json:"retrying"`
	Discarded int       `json:"discarded"`
	Topics    []string  `json:"topics"`
	First     time.Time `json:"first"` // when the first one failed
	Last      time.Time `json:"last"`
	Digest    string    `json:"-" db:"-"` // of a sample: it differs if other events are grouped, one in another state, or one with another command
}

// ListGroups returns what failed alike, the most frequent first. It reads all failed events. Those that are blocked or delayed
// have no reason, and are in no group. It ignores Listing.Payload.
func ListGroups(ctx context.Context, db pgtx.DB, schema string, l Listing) (groups []ErrorGroup, err error) {
	if err := l.complete(); err != nil {
		return nil, fmt.Errorf("list error groups: %w", err)
	}
	err = administer(ctx, db, schema, "list error groups", func(ctx context.Context, tx pgx.Tx, schema string) error {
		rows, err := tx.Query(ctx, query("groups", schema), l.States, operator.Optional(l.Topic), operator.Optional(l.Key), operator.Optional(l.Group), l.Limit)
		if err != nil {
			return err
		}
		groups, err = pgx.CollectRows(rows, pgx.RowToStructByPos[ErrorGroup])
		return err
	})
	return groups, err
}

// sampleSize is how many events of each state SampleGroups groups.
const sampleSize = 2000

// Sample is the newest failed events, by what they have in common.
type Sample struct {
	Groups []ErrorGroup // the most frequent first
	More   bool         // there are older ones, which were not read
}

// SampleGroups groups the newest 2,000 events of each of the states. Those that are blocked have no reason, and are in no group.
func SampleGroups(ctx context.Context, db pgtx.DB, schema string, states ...string) (sample Sample, err error) {
	l := Listing{States: states}
	if err := l.complete(); err != nil {
		return sample, fmt.Errorf("sample error groups: %w", err)
	}
	err = administer(ctx, db, schema, "sample error groups", func(ctx context.Context, tx pgx.Tx, schema string) error {
		rows, err := tx.Query(ctx, query("sample", schema), l.States, sampleSize)
		if err != nil {
			return err
		}
		sample.Groups, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (g ErrorGroup, err error) {
			err = row.Scan(&g.Group, &g.Text, &g.Events, &g.Dead, &g.Retrying, &g.Discarded, &g.Topics, &g.First, &g.Last, &g.Digest, &sample.More)
			return g, err
		})
		return err
	})
	return sample, err
}
