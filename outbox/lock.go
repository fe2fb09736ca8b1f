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
	"github.com/millrace-go/millrace/outbox/internal/writer"
)

// LockKey serializes the transactions that publish events of these keys. Use it for a key if the transaction does not
// already lock the row that the key stands for. Without such a lock, two concurrent transactions may commit in another order than that of their events. The locks are
// PostgreSQL's advisory locks with 64-bit numbers that are hashed from key and schema. Two keys with the same number wait for each
// other; nothing else happens. The locks end with the transaction.
//
// In a transaction of pgtx.Run the locks are taken at COMMIT, in the same round trip and before the events are inserted. So they
// are held only during the commit, and do not protect what the transaction read before. In a transaction of the caller's own
// (pgtx.With, pgtx.WithSQL) they are taken immediately: call LockKey before Publish. The keys of one call are sorted, and so are the
// keys of all calls in Run, so that transactions do not deadlock; pgtx.Flush and Publisher.Cancel send the keys collected so far and end
// such a group. A call without keys sends nothing. Without a transaction the error wraps ErrNoTransaction.
//
// LockKey is for the schema "millrace". A publisher of another schema has its own method Publisher.LockKey.
func LockKey(ctx context.Context, keys ...string) error {
	return lockKeys(ctx, pgschema.Default, keys)
}

// LockKey is like the function LockKey, for the publisher's schema.
func (p *Publisher) LockKey(ctx context.Context, keys ...string) error {
	return lockKeys(ctx, p.writer.Schema, keys)
}

var lockStatement = store.Query("lock", pgschema.Default)

func lockKeys(ctx context.Context, schema string, keys []string) error {
	if len(keys) == 0 {
		return nil
	}
	o, ok := writer.OwnerOf(ctx)
	if !ok {
		return fmt.Errorf("lock keys: %w", ErrNoTransaction)
	}
	numbers := lockNumbers(schema, keys)
	collected, err := pgunit.Collect(ctx, locker{}, numbers)
	if err == nil && !collected {
		if o.SQL != nil {
			_, err = o.SQL.ExecContext(ctx, lockStatement, writer.Numbers(numbers))
		} else {
			_, err = o.Pgx.Exec(ctx, lockStatement, numbers)
		}
	}
	if err != nil {
		return fmt.Errorf("lock keys: %w", err)
	}
	return nil
}

// lockNumbers returns the numbers of the keys' locks, sorted and without duplicates. Each process must compute the same numbers.
func lockNumbers(schema string, keys []string) []int64 {
	numbers := make([]int64, len(keys))
	for i, k := range keys {
		h := sha256.Sum256([]byte("outbox key\x00" + schema + "\x00" + k))
		numbers[i] = int64(binary.BigEndian.Uint64(h[:8]))
	}
	slices.Sort(numbers)
	return slices.Compact(numbers)
}

// locker takes all locks of a transaction with one statement. Advisory locks belong to the database, so one locker serves each
// schema.
type locker struct{}

// Flush implements pgunit.Collector.
func (locker) Flush(_ context.Context, items []any, b *pgx.Batch) error {
	var numbers []int64
	for _, item := range items {
		numbers = append(numbers, item.([]int64)...)
	}
	slices.Sort(numbers)
	b.Queue(lockStatement, slices.Compact(numbers))
	return nil
}

// Explain implements pgunit.Collector.
func (locker) Explain(err error) error { return fmt.Errorf("lock keys: %w", err) }

// Locks implements pgunit.Collector.
func (locker) Locks() bool { return true }
