package outboxadmin

import (
	"context"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/outbox/internal/store"
	"github.com/millrace-go/millrace/pgtx"
)

// Finding is something that Check found.
type Finding struct {
	Text  string `json:"text"`
	Fixed bool   `json:"fixed,omitempty"`
	Note  bool   `json:"note,omitempty"` // worth knowing, and nothing wrong

	// Remedy is the arguments of the command "millrace" that mend it; nil where none does, or it is not known which.
	Remedy []string `json:"remedy,omitempty"`
}

// sequence is a shard's sequence beside what stands in the shard.
type sequence struct {
	shard         int
	there         bool
	last, highest int64
}

// Check looks for what a restore, or a change by hand, may have left. With fix it sets sequences forward that stand below
// existing rows, for which writers wait a moment; that is for the owner of the tables.
func Check(ctx context.Context, db pgtx.DB, schema string, fix bool) (found []Finding, err error) {
	err = administer(ctx, db, schema, "check outbox", func(ctx context.Context, tx pgx.Tx, schema string) error {
		wrong := func(remedy []string, format string, args ...any) {
			found = append(found, Finding{Text: fmt.Sprintf(format, args...), Remedy: remedy})
		}
		if fix {
			// No number is in flight then: whoever takes one holds a lock that conflicts.
			if _, err := tx.Exec(ctx, pgschema.Render(`set local lock_timeout = '5s'; lock table {schema}.outbox in share row exclusive mode`, schema)); err != nil {
				return err
			}
		}
		layout, err := store.ReadLayout(ctx, tx, schema)
		if err != nil {
			return err
		}
		if layout.Rows != layout.Shards || layout.InFunction != layout.Shards || layout.Sequences != layout.Shards {
			wrong([]string{"outbox", "shards", strconv.Itoa(layout.Shards)}, "the number of shards is inconsistent: %d in the layout, %d in the table of leases, %d in the function, %d sequences; run \"millrace outbox shards %d\"",
				layout.Shards, layout.Rows, layout.InFunction, layout.Sequences, layout.Shards)
		}
		if layout.Fenced {
			found = append(found, Finding{Note: true, Text: fmt.Sprintf("a change of the number of shards is running, or was interrupted: if none is running, "+
				"\"millrace outbox shards %d\" finishes it in a few seconds, in which producers are refused", layout.Shards)})
		}

		rows, err := tx.Query(ctx, query("sequences", schema))
		if err != nil {
			return err
		}
		sequences, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (s sequence, err error) {
			return s, row.Scan(&s.shard, &s.there, &s.last, &s.highest)
		})
		if err != nil {
			return err
		}
		for _, s := range sequences {
			switch {
			case !s.there:
				wrong([]string{"outbox", "shards", strconv.Itoa(layout.Shards)}, "shard %d has no sequence: its events cannot be written", s.shard)
			case s.last < s.highest && !fix:
				wrong([]string{"outbox", "check", "--fix"}, "the sequence of shard %d is at %d, below number %d of an existing event, so new events would overtake it; "+
					"run \"millrace outbox check --fix\"", s.shard, s.last, s.highest)
			case s.last < s.highest:
				if _, err := tx.Exec(ctx, pgschema.Render(fmt.Sprintf(`select setval('{schema}.outbox_seq_%d', %d)`, s.shard, s.highest), schema)); err != nil {
					return err
				}
				found = append(found, Finding{Text: fmt.Sprintf("the sequence of shard %d was at %d, and is at %d now", s.shard, s.last, s.highest), Fixed: true})
			}
		}

		strays := Count{}
		if err := tx.QueryRow(ctx, query("strays", schema), countLimit).Scan(&strays.N); err != nil {
			return err
		}
		if strays.AtLeast = strays.N == countLimit; strays.N > 0 {
			wrong(nil, "events in shards that do not exist, which no relay publishes: %s; they were restored from another layout: "+
				"run \"millrace outbox shards\" with the former number", strays)
		}
		return nil
	})
	return found, err
}
