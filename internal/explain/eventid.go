package explain

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/internal/words"
)

// Place is where to look up abbreviated IDs.
type Place string

// The places. Each is one query.
const (
	Outbox    Place = "ids_outbox"    // pending, failed, delayed and archived events
	Failed    Place = "ids_failed"    // events that could not be published
	Consumers Place = "ids_consumers" // events that failed at consumers
	Completed Place = "ids_completed" // events that consumers have completed
)

// maxAlike is how many matching events an error lists.
const maxAlike = 10

// ErrNotSearched means that the tables are too large to look up an abbreviated ID in the given time. Give the whole ID.
var ErrNotSearched = errors.New("the tables are too large to look up a part of an event ID here")

// Search returns the ID of the event that an abbreviated ID matches, anywhere in the schema, as WholeID does. No index helps, so with
// millions of rows it takes seconds. patience bounds the search of each table; beyond it the error is ErrNotSearched. 0 means no limit.
func Search(ctx context.Context, pool *pgxpool.Pool, schema, text string, patience time.Duration) (string, error) {
	if _, short := words.ParseAbbreviation(text); !short {
		return text, nil // without asking the database
	}
	there, err := installed(ctx, pool, schema)
	if err != nil {
		return "", err
	}
	var places []Place
	if there["outbox"] {
		places = append(places, Outbox)
	}
	if there["claim"] {
		places = append(places, Consumers, Completed)
	}
	return wholeID(ctx, pool, schema, text, patience, places)
}

// WholeID returns the ID of the event that an abbreviated ID matches, in these places of the schema. Text that is no abbreviation is
// returned unchanged. So is an ID of another system that looks like an abbreviation: the exact ID is tried first.
func WholeID(ctx context.Context, pool *pgxpool.Pool, schema, text string, places ...Place) (string, error) {
	return wholeID(ctx, pool, schema, text, 0, places)
}

func wholeID(ctx context.Context, pool *pgxpool.Pool, schema, text string, patience time.Duration, places []Place) (string, error) {
	short, ok := words.ParseAbbreviation(text)
	if !ok {
		return text, nil
	}
	patterns := []string{short.Start + "%" + short.End}
	if short.Either {
		patterns = append(patterns, "%"+short.Start)
	}
	seen := map[string]bool{}
	var alike []string
	for _, place := range places {
		found, err := alikeAt(ctx, pool, pgschema.Query(files, string(place), schema), patience, text, patterns, maxAlike+1)
		if err != nil {
			return "", fmt.Errorf("look up the event ID %s: %w", text, err)
		}
		for _, id := range found {
			if id == text {
				return text, nil
			}
			if !seen[id] {
				seen[id] = true
				alike = append(alike, id)
			}
		}
	}
	switch {
	case len(alike) == 1:
		return alike[0], nil
	case len(alike) == 0 && !short.Either:
		return "", notOne(fmt.Sprintf(`no known event has a short ID like %s: run "millrace dead list" or "millrace outbox list" to see which there are; with -o json they print whole IDs`, text))
	case len(alike) == 0:
		return text, nil
	}
	more := ""
	if len(alike) > maxAlike {
		alike, more = alike[:maxAlike], "\n  and more"
	}
	return "", notOne(fmt.Sprintf("the event ID %s is ambiguous; it can mean:\n  %s%s", text, strings.Join(alike, "\n  "), more))
}

// ErrNotOne means that a part of an ID is in the ID of no event, or of several. The error says which.
var ErrNotOne = errors.New("not one event")

type notOne string

func (e notOne) Error() string        { return string(e) }
func (e notOne) Is(target error) bool { return target == ErrNotOne }

// alikeAt runs the query of a place within the time patience; 0 means no limit.
func alikeAt(ctx context.Context, pool *pgxpool.Pool, query string, patience time.Duration, args ...any) (found []string, err error) {
	err = pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if patience > 0 {
			// PostgreSQL compiles a query of large tables first, which no timeout interrupts.
			if _, err := tx.Exec(ctx, `select set_config('statement_timeout', $1::text, true), set_config('jit', 'off', true)`, strconv.FormatInt(patience.Milliseconds(), 10)); err != nil {
				return err
			}
		}
		rows, err := tx.Query(ctx, query, args...)
		if err == nil {
			found, err = pgx.CollectRows(rows, pgx.RowTo[string])
		}
		return err
	})
	var pgErr *pgconn.PgError
	if patience > 0 && errors.As(err, &pgErr) && pgErr.Code == "57014" {
		err = ErrNotSearched
	}
	return found, err
}

// WholeIDs calls WholeID for each text.
func WholeIDs(ctx context.Context, pool *pgxpool.Pool, schema string, texts []string, places ...Place) (ids []string, err error) {
	for _, text := range texts {
		id, err := WholeID(ctx, pool, schema, text, places...)
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, nil
}
