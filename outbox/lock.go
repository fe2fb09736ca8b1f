package outbox

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/internal/pgunit"
	"github.com/millrace-go/millrace/outbox/internal/store"
)

// LockKey serializes the transactions that publish events of these keys, for keys that stand for no row which the
// transaction would lock anyway. Without either, two transactions at once may commit in another order than that of their
// events. The locks are PostgreSQL's advisory ones, of 64 bits made from key and schema: two keys that collide wait for
// each other, no more. They end with the transaction.
//
// In a transaction of pgtx.Run they are taken at COMMIT, in its round trip and before the events are inserted, so they
// are held only for the commit itself, and what the transaction read before is not protected by them. In one of the
// caller's own (pgtx.With, pgtx.WithSQL) they are taken at once: call it before Publish. Keys of one call, and in Run of
// all calls, are sorted, so that transactions do not deadlock, unless pgtx.Flush or Publisher.Cancel sends them in between. No keys are no statement; without a transaction the error
// wraps ErrNoTransaction.
//
// LockKey is for the schema "millrace"; a publisher of another schema has a method of its own.
func LockKey(ctx context.Context, keys ...string) error {
	return lockKeys(ctx, pgschema.Default, keys)
}

// LockKey is the function LockKey for the publisher's schema.
func (p *Publisher) LockKey(ctx context.Context, keys ...string) error {
	return lockKeys(ctx, p.inserter.schema, keys)
}

var lockStatement = store.Query("lock", pgschema.Default)

func lockKeys(ctx context.Context, schema string, keys []string) error {
	if len(keys) == 0 {
		return nil
	}
	o, ok := ownerOf(ctx)
	if !ok {
		return fmt.Errorf("lock keys: %w", ErrNoTransaction)
	}
	numbers := lockNumbers(schema, keys)
	collected, err := pgunit.Collect(ctx, locker{}, numbers)
	if err == nil && !collected {
		if o.sql != nil {
			_, err = o.sql.ExecContext(ctx, lockStatement, arrayLiteral(numbers, decimal))
		} else {
			_, err = o.pgx.Exec(ctx, lockStatement, numbers)
		}
	}
	if err != nil {
		return fmt.Errorf("lock keys: %w", err)
	}
	return nil
}

// lockNumbers are the keys' locks, sorted, each once. They must be the same in every process.
func lockNumbers(schema string, keys []string) []int64 {
	numbers := make([]int64, len(keys))
	for i, k := range keys {
		h := sha256.Sum256([]byte("outbox key\x00" + schema + "\x00" + k))
		numbers[i] = int64(binary.BigEndian.Uint64(h[:8]))
	}
	slices.Sort(numbers)
	return slices.Compact(numbers)
}

// locker takes all locks of a transaction with one statement. They are of the whole database, so it is the same for
// every schema.
type locker struct{}

// Flush is of pgunit.Collector.
func (locker) Flush(_ context.Context, items []any, b *pgx.Batch) error {
	var numbers []int64
	for _, item := range items {
		numbers = append(numbers, item.([]int64)...)
	}
	slices.Sort(numbers)
	b.Queue(lockStatement, slices.Compact(numbers))
	return nil
}

// Explain is of pgunit.Collector.
func (locker) Explain(err error) error { return fmt.Errorf("lock keys: %w", err) }

// Locks is of pgunit.Collector.
func (locker) Locks() bool { return true }
