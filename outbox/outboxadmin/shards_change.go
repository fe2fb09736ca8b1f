package outboxadmin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/outbox/internal/shardsql"
	"github.com/millrace-go/millrace/pgtx"
)

// change is one change of the number of shards.
type change struct {
	db       pgtx.DB
	schema   string
	from, to int
	progress func(string)
	fenced   time.Time // by our clock, when the fence was renewed
}

func (c *change) run(ctx context.Context) (err error) {
	now := c.from // the layout that the functions are of
	defer func() {
		if c.fenced.IsZero() { // nobody was refused
			return
		}
		// Also when ctx has ended: producers wait for it.
		uctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), fenceTTL)
		defer cancel()
		if uerr := c.unfence(uctx, now); uerr != nil {
			err = errors.Join(err, fmt.Errorf("let producers on again, which happens by itself within %v: %w", fenceTTL, uerr))
		}
	}()
	c.progress("refusing producers")
	for {
		if err := c.fence(ctx, now); err != nil {
			return err
		}
		err := c.awaitWriters(ctx)
		if err == nil {
			break
		} else if !isBusy(err) {
			return c.because(ctx, "transactions that have published are still open", err)
		}
		c.progress("waiting for transactions that have published to end")
	}
	var relays []leaseholder
	for last := int64(-1); ; {
		left, err := c.pending(ctx)
		if err != nil {
			return c.because(ctx, fmt.Sprintf("%d events are still in the outbox; is a relay running?", max(last, left)), err)
		}
		if left != last {
			c.progress(fmt.Sprintf("waiting for relays to publish %s events", Count{left, left == countLimit}))
			last = left
		}
		if left == 0 {
			if relays, err = c.switchOver(context.WithoutCancel(ctx)); err == nil {
				break
			} else if errors.Is(err, pgtx.ErrOutcomeUnknown) {
				return c.repeat("it is not known whether the number has changed", err)
			} else if !isBusy(err) && !errors.Is(err, errNotEmpty) {
				return c.because(ctx, "the tables could not be locked", err)
			}
		}
		if err := c.pause(ctx, now); err != nil {
			return c.because(ctx, fmt.Sprintf("%d events are still in the outbox; is a relay running?", left), err)
		}
	}
	now = c.to
	return c.awaitRelays(ctx, relays)
}

// awaitRelays returns when the relays have learned that the number has changed. A relay that still remembers a shard as it was does not
// know which of its keys wait for a failed event. So this wait is not interrupted. It ends when each relay has renewed its lease, or the
// lease has expired.
func (c *change) awaitRelays(ctx context.Context, relays []leaseholder) (err error) {
	c.progress(fmt.Sprintf("there are %d shards; waiting for relays to learn of it, and refusing producers meanwhile", c.to))
	ctx = context.WithoutCancel(ctx)
	for len(relays) > 0 {
		if relays, err = c.unaware(ctx, relays); err == nil {
			err = c.pause(ctx, c.to)
		}
		if err != nil {
			return c.repeat(fmt.Sprintf("there are %d shards, and it is not known whether all relays have learned of it", c.to), err)
		}
	}
	return nil
}

// finish does what a former change to this number has left undone: relays may not have learned of it.
func (c *change) finish(ctx context.Context) error {
	if err := c.fence(ctx, c.to); err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx)
	var relays []leaseholder
	err := c.transact(ctx, func(ctx context.Context, tx pgx.Tx) (err error) {
		relays, err = c.relays(ctx, tx)
		return err
	})
	if err != nil {
		return c.repeat("it is not known which relays have to learn of the number", err)
	}
	if err := c.awaitRelays(ctx, relays); err != nil {
		return err
	}
	if err := c.unfence(ctx, c.to); err != nil {
		return c.repeat("producers could not be let on", err)
	}
	return nil
}

// refusePaused fails while a topic is paused: its events would not drain.
func (c *change) refusePaused(ctx context.Context) error {
	var topic string
	err := c.transact(ctx, func(ctx context.Context, tx pgx.Tx) error {
		return tx.QueryRow(ctx, query("topic_paused", c.schema)).Scan(&topic)
	})
	if err == nil && topic != "" {
		err = fmt.Errorf("topic %q is paused, so the outbox cannot drain: resume it first", topic)
	}
	return err
}

// repeat keeps the fence up until it expires, because it is not known whether producers may go on.
func (c *change) repeat(what string, err error) error {
	c.fenced = time.Time{}
	return fmt.Errorf("%s: producers go on within %v; change the number to %d again: %w", what, fenceTTL, c.to, err)
}

// because says what was waited for when ctx ended.
func (c *change) because(ctx context.Context, reason string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%s: the number stays %d: %w", reason, c.from, context.Cause(ctx))
	}
	return err
}

// pause waits a moment, and keeps the fence up meanwhile.
func (c *change) pause(ctx context.Context, n int) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(shardsPoll):
	}
	if time.Since(c.fenced) > fenceTTL/3 {
		return c.fence(ctx, n)
	}
	return nil
}

// errNotEmpty means that an event was written although producers are refused: this process was suspended until the fence
// had expired.
var errNotEmpty = errors.New("the outbox is not empty any more")

// isBusy reports whether a lock was not to be had in time.
func isBusy(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && (pgErr.Code == "55P03" || pgErr.Code == "40P01")
}

// transact runs f in a transaction that gives up rather than hold up a queue before a lock, or outlast the fence.
func (c *change) transact(ctx context.Context, f func(ctx context.Context, tx pgx.Tx) error) error {
	ctx, cancel := context.WithTimeout(ctx, fenceTTL/3)
	defer cancel()
	return c.alone(ctx, f)
}

// alone is transact without a limit of its time.
func (c *change) alone(ctx context.Context, f func(ctx context.Context, tx pgx.Tx) error) error {
	return pgtx.Run(ctx, c.db, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `set local lock_timeout = '1s'`); err != nil {
			return err
		}
		return f(ctx, tx)
	}, pgtx.Isolation(pgx.ReadCommitted))
}

func (c *change) exec(ctx context.Context, sql string) error {
	return c.transact(ctx, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, pgschema.Render(sql, c.schema))
		return err
	})
}

// fence refuses producers for fenceTTL from now.
func (c *change) fence(ctx context.Context, n int) error {
	c.fenced = time.Now()
	return c.transact(ctx, func(ctx context.Context, tx pgx.Tx) error { return fenceIn(ctx, tx, c.schema, n) })
}

func fenceIn(ctx context.Context, tx pgx.Tx, schema string, n int) error {
	var until string
	err := tx.QueryRow(ctx, `select to_char((clock_timestamp() + $1 * interval '1 second') at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS.US+00')`,
		fenceTTL.Seconds()).Scan(&until)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, pgschema.Render(shardsql.Fenced(n, until), schema))
	return err
}

func (c *change) unfence(ctx context.Context, n int) error { return c.exec(ctx, shardsql.Plain(n)) }

// awaitWriters returns when no transaction is open any more that took a number before the fence: each holds a lock on
// the table until it ends. Those that begin now plan their statement anew and meet the fence.
func (c *change) awaitWriters(ctx context.Context) error {
	return c.exec(ctx, `lock table {schema}.outbox in share row exclusive mode`)
}

// pending counts what relays are still to publish. Nobody reads rows of shards that do not exist.
func (c *change) pending(ctx context.Context) (n int64, err error) {
	err = c.transact(ctx, func(ctx context.Context, tx pgx.Tx) error {
		return tx.QueryRow(ctx, pgschema.Render(`select count(*) from (select from {schema}.outbox where shard >= 0 and shard < $1 limit $2) o`, c.schema),
			c.from, countLimit).Scan(&n)
	})
	return n, err
}

// switchOver changes the layout, still fenced, and takes all leases away. It returns the relays that must notice. It may outlast the fence,
// because there may be many failed events. Its locks keep producers out.
func (c *change) switchOver(ctx context.Context) (relays []leaseholder, err error) {
	ctx, cancel := context.WithTimeout(ctx, switchTimeout)
	defer cancel()
	err = c.alone(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, pgschema.Render(
			`lock table {schema}.outbox, {schema}.outbox_failed, {schema}.outbox_shard in access exclusive mode`, c.schema)); err != nil {
			return err
		}
		var empty bool
		if err := tx.QueryRow(ctx, pgschema.Render(`select not exists (select from {schema}.outbox where shard >= 0 and shard < $1)`, c.schema), c.from).Scan(&empty); err != nil {
			return err
		}
		if !empty {
			return errNotEmpty
		}
		c.progress("moving failed events to their new shards")
		if _, err := tx.Exec(ctx, pgschema.Render(shardsql.Change(c.to), c.schema)); err != nil {
			return err
		}
		if err := fenceIn(ctx, tx, c.schema, c.to); err != nil {
			return err
		}
		relays, err = c.relays(ctx, tx)
		return err
	})
	return relays, err
}

// relays returns those that run.
func (c *change) relays(ctx context.Context, tx pgx.Tx) ([]leaseholder, error) {
	rows, err := tx.Query(ctx, pgschema.Render(`select relay_id::text, expires_at, 0 from {schema}.outbox_relay where expires_at > clock_timestamp()`, c.schema))
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[leaseholder])
}

// leaseholder is a relay that may remember the former layout.
type leaseholder struct {
	ID      string
	Expires time.Time
	Seen    int // how often it has been there since
}

// unaware returns those that have not been there twice since: the first time a relay learns that its leases are lost, the
// second time it takes new ones.
func (c *change) unaware(ctx context.Context, relays []leaseholder) (left []leaseholder, err error) {
	err = c.transact(ctx, func(ctx context.Context, tx pgx.Tx) error {
		for _, r := range relays {
			var expires *time.Time
			err := tx.QueryRow(ctx, pgschema.Render(`select max(expires_at) filter (where expires_at > now()) from {schema}.outbox_relay where relay_id = $1::uuid`, c.schema), r.ID).Scan(&expires)
			switch {
			case err != nil:
				return err
			case expires == nil:
				continue // it is gone
			case !expires.Equal(r.Expires):
				r.Expires, r.Seen = *expires, r.Seen+1
			}
			if r.Seen < 2 {
				left = append(left, r)
			}
		}
		return nil
	})
	return left, err
}
