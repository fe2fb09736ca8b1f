package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/millrace-go/millrace/pgtx"
)

// asker runs a statement that returns one row.
type asker func(ctx context.Context, query string, args []any, dest ...any) error

// Claims holds what claims in PostgreSQL need with any driver. It is safe for concurrent use.
type Claims struct {
	Schema    string
	sql       statements
	consumers sync.Map // name → int16
	healing   sync.Mutex

	begin func(ctx context.Context, fn func(ctx context.Context, ask asker) error) error // a transaction, also in fn's context
	ask   asker                                                                          // outside of any
}

// statements are the statements of a schema.
type statements struct {
	claim, slot, done, found, early, future, days, findName, addName, lockConsumers, floor, prune string
}

func statementsIn(schema string) statements {
	query := func(name string) string { return Query(name, schema) }
	return statements{
		claim: query("claim"), slot: query("claim_slot"), done: query("claim_done"), found: query("claim_found"), early: query("claim_early"), future: query("claim_future"), days: query("claim_days"),
		findName: query("consumer_find"), addName: query("consumer_add"),
		lockConsumers: query("consumer_lock"), floor: query("consumer_floor"), prune: query("claim_prune"),
	}
}

// ErrStale means that the database does not have the consumer's number that this process remembers.
var ErrStale = errors.New("the consumer's number has changed")

// try claims the event and calls fn. With a doubt, the record is the hash, and fn is called only if the event has no record and the
// context vouches for it; otherwise try returns the doubt.
func (c *Claims) try(ctx context.Context, key Key, doubt error, fn func(ctx context.Context) error) error {
	consumer, err := c.Consumer(ctx, key.Consumer)
	if err != nil {
		return err
	}
	return c.begin(ctx, func(ctx context.Context, ask asker) error {
		var refused string
		if err := ask(ctx, c.sql.claim, claimArgs(ctx, c.Schema, key, consumer, doubt != nil, false), &refused, nil, nil); err != nil {
			return c.explain(err)
		}
		if refused != "" {
			return refusal(refused)
		}
		if doubt != nil {
			var found bool
			if err := ask(ctx, c.sql.found, []any{key.Record(), consumer}, &found); err != nil {
				return fmt.Errorf("look for the record: %w", err)
			}
			switch {
			case found:
				return ErrCompleted
			case !Proven(ctx):
				return doubt
			}
		}
		if err := fn(ctx); err != nil {
			return err
		}
		if errors.Is(doubt, ErrClock) {
			return pgtx.Queue(ctx, c.sql.early, key.Record(), consumer)
		}
		return nil
	})
}

// explain converts the error of the claim statement into one of this package's errors.
func (c *Claims) explain(err error) error {
	const refused = "MR001" // raised by claim_refused
	var pgErr *pgconn.PgError
	switch {
	case sqlState(err) == "23514":
		return errNoDay
	case errors.As(err, &pgErr) && pgErr.Code == refused:
		return refusal(pgErr.Detail)
	}
	return c.Hint(err)
}

// Forget makes the next claim read the consumer's number again.
func (c *Claims) Forget(consumer string) { c.consumers.Delete(consumer) }

// Consumer returns a consumer's number. A new consumer is registered.
func (c *Claims) Consumer(ctx context.Context, name string) (int16, error) {
	if id, ok := c.consumers.Load(name); ok {
		return id.(int16), nil
	}
	var id int16
	err := c.ask(ctx, c.sql.findName, []any{name}, &id)
	if errors.Is(err, sql.ErrNoRows) {
		err = c.ask(ctx, c.sql.addName, []any{name}, &id)
	}
	if err != nil {
		return 0, fmt.Errorf("look up consumer %q: %w", name, c.Hint(err))
	}
	c.consumers.Store(name, id)
	return id, nil
}

// Hint adds the remedy to an error of PostgreSQL that only says what does not exist.
func (c *Claims) Hint(err error) error {
	switch sqlState(err) {
	case "42P01", "3F000", "42703", "42883": // table, schema, column, function
		return fmt.Errorf("the claim's tables are missing in schema %q, or too old: run claim.Migrate first, or \"millrace migrate up\": %w", c.Schema, err)
	}
	return err
}

// sqlState returns PostgreSQL's code of the error, or "". All drivers have this method.
func sqlState(err error) string {
	var state interface{ SQLState() string }
	if errors.As(err, &state) {
		return state.SQLState()
	}
	return ""
}
