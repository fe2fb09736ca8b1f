package claim_test

import (
	"context"
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
)

// hiddenEnds are ways in which a handler ended its claim's transaction and began another one, so that the COMMIT of the
// claim succeeded: the effect was lost, and the output was published.
var hiddenEnds = map[string]func(ctx context.Context, tx pgx.Tx) error{
	"a rollback in a text": func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `select 1; rollback; begin`)
		return err
	},
	"a commit in a text": func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `select ';'; /* /* x */ */ commit; begin`)
		return err
	},
	"a text with arguments": func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `select $1; rollback and chain`, pgx.QueryExecModeSimpleProtocol, "a")
		return err
	},
	"a queued text": func(ctx context.Context, _ pgx.Tx) error {
		return pgtx.Queue(ctx, `select 1; rollback; begin`)
	},
	"the connection itself": func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Conn().Exec(ctx, `rollback; begin`)
		return err
	},
	"the connection itself, in two round trips": func(ctx context.Context, tx pgx.Tx) error {
		conn := tx.Conn()
		_, err := conn.Exec(ctx, `rollback`)
		_, berr := conn.Exec(ctx, `begin`)
		return errors.Join(err, berr)
	},
	"the connection of a savepoint that was rolled back": func(ctx context.Context, tx pgx.Tx) error {
		sp, err := tx.Begin(ctx)
		if err != nil {
			return err
		}
		conn := sp.Conn()
		if err := sp.Rollback(ctx); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `select 1`); err != nil {
			return err
		}
		_, err = conn.Exec(ctx, `rollback; begin`)
		return err
	},
}

func TestHiddenCommit(t *testing.T) {
	t.Parallel()
	for name, end := range hiddenEnds {
		inModes(t, name, func(t *testing.T, f *fixture) {
			h := func(ignore bool) message.HandlerFunc {
				return f.middleware(claim.Config{})(func(msg *message.Message) ([]*message.Message, error) {
					out, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: f.schema})
					require.NoError(t, err)
					require.NoError(t, out.Publish("done", message.NewMessageWithContext(msg.Context(), outbox.NewID(), nil)))
					if err := f.effect(msg.Context(), msg.UUID); err != nil {
						return nil, err
					}
					tx, _ := pgtx.From(msg.Context())
					if err := end(msg.Context(), tx); err != nil && !ignore {
						return nil, err
					}
					return nil, nil
				})
			}
			msg, _ := deliver(t, "1")
			_, err := h(false)(msg)
			require.ErrorIs(t, err, pgtx.ErrManaged)
			assert.Zero(t, f.count("outbox"), "nothing is published")
			assert.Zero(t, f.count("processed"))
			assert.Empty(t, f.effects())
			assert.Equal(t, 1, f.count("claim_failed where attempts = 1"), "it is an attempt")

			// A handler that ignores the refusal of a statement that was never sent has lost nothing.
			msg, _ = deliver(t, "2")
			if _, err = h(true)(msg); err != nil {
				require.ErrorIs(t, err, pgtx.ErrManaged)
			}
			assert.Equal(t, f.count("processed"), f.effects()["2"])
			assert.Equal(t, f.count("processed"), f.count("outbox"))
		})
	}

	for name, end := range hiddenEnds {
		if name == "a queued text" { // only pgtx has a queue
			continue
		}
		t.Run("control: a transaction of pgx, "+name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			require.NoError(t, pgx.BeginFunc(t.Context(), f.pool, func(tx pgx.Tx) error {
				const which = `select pg_current_xact_id()::text`
				var before, after string
				require.NoError(t, tx.QueryRow(t.Context(), which).Scan(&before))
				require.NoError(t, end(t.Context(), tx))
				require.NoError(t, tx.QueryRow(t.Context(), which).Scan(&after))
				assert.NotEqual(t, before, after, "nobody notices that another transaction commits")
				return nil
			}))
		})
	}

	t.Run("control", func(t *testing.T) { // the same calls in an honest handler
		t.Parallel()
		f := newFixture(t)
		msg, _ := deliver(t, "1")
		_, err := f.middleware(claim.Config{})(func(msg *message.Message) ([]*message.Message, error) {
			ctx := msg.Context()
			tx, _ := pgtx.From(ctx)
			sp, err := tx.Begin(ctx)
			require.NoError(t, err)
			conn := sp.Conn()
			require.NoError(t, sp.Rollback(ctx))
			_, err = conn.Exec(ctx, `savepoint s; select 'x; rollback; begin'; rollback to s`)
			require.NoError(t, err)
			_, err = tx.Exec(ctx, `savepoint s; select 'x; rollback; begin'; rollback to s`)
			require.NoError(t, err)
			return f.handler(msg)
		})(msg)
		require.NoError(t, err)
		assert.Equal(t, map[string]int{"1": 1}, f.effects())
	})
}

// In a group the writes of the others were committed without their records, and then their handlers ran again.
func TestHiddenCommitInAGroup(t *testing.T) {
	t.Parallel()
	for name, end := range hiddenEnds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGrouped(t, claim.Config{})
			results := g.handle(func(ctx context.Context, id string) error {
				if err := g.effect(ctx, id); err != nil || id != "c" {
					return err
				}
				tx, _ := pgtx.From(ctx)
				return end(ctx, tx)
			}, letters(5)...)
			for i, r := range results {
				assert.Equal(t, i != 2, r.acked(), "%d: %v", i, r)
			}
			assert.Equal(t, map[string]int{"a": 1, "b": 1, "d": 1, "e": 1}, g.effects())
			assert.Equal(t, 4, g.count("processed"))
			assert.Zero(t, g.count("claim_failed where event_id <> 'c'"))
		})
	}
}
