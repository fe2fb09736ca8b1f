package explain

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
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

// WholeID returns the ID of the event that an abbreviated ID matches, in these places of the schema. Text that is no abbreviation is
// returned unchanged. So is an ID of another system that looks like an abbreviation: the exact ID is tried first.
func WholeID(ctx context.Context, pool *pgxpool.Pool, schema, text string, places ...Place) (string, error) {
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
		rows, err := pool.Query(ctx, pgschema.Query(files, string(place), schema), text, patterns, maxAlike+1)
		if err != nil {
			return "", err
		}
		found, err := pgx.CollectRows(rows, pgx.RowTo[string])
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
		return "", fmt.Errorf(`no known event has a short ID like %s: run "millrace dead list" or "millrace outbox list" to see which there are; with -o json they print whole IDs`, text)
	case len(alike) == 0:
		return text, nil
	}
	more := ""
	if len(alike) > maxAlike {
		alike, more = alike[:maxAlike], "\n  and more"
	}
	return "", fmt.Errorf("the event ID %s is ambiguous; it can mean:\n  %s%s", text, strings.Join(alike, "\n  "), more)
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
