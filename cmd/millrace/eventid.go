package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/cmd/millrace/internal/output"
	"github.com/millrace-go/millrace/internal/pgschema"
)

// maxAlike is how many events an error names that an abbreviation could mean.
const maxAlike = 10

// wholeID finds the event that an abbreviated ID means, in what the queries read. What is no abbreviation stays as it is, and
// so does an ID that some system has made up and that looks like one: it is asked for first.
func (a *app) wholeID(ctx context.Context, pool *pgxpool.Pool, text string, queries ...string) (string, error) {
	short, ok := output.ParseAbbreviation(text)
	if !ok {
		return text, nil
	}
	patterns := []string{short.Start + "%" + short.End}
	if short.Either {
		patterns = append(patterns, "%"+short.Start)
	}
	seen := map[string]bool{}
	var alike []string
	for _, name := range queries {
		rows, err := pool.Query(ctx, pgschema.Query(files, name, a.schema), text, patterns, maxAlike+1)
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

// wholeIDs does that for each of them.
func (a *app) wholeIDs(ctx context.Context, pool *pgxpool.Pool, texts []string, queries ...string) (ids []string, err error) {
	for _, text := range texts {
		id, err := a.wholeID(ctx, pool, text, queries...)
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, nil
}
