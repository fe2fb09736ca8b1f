package outbox

import (
	"context"

	"github.com/jackc/pgx/v5/pgconn"
)

// asyncCommit lets a transaction commit without waiting for the disk: a lost delete is a duplicate. Local, because a
// setting of the session would leak into other clients of a pooler.
var asyncCommit = statement{sql: `set local synchronous_commit = off`}

// delete deletes the rows of acknowledged events, exactly those. Who else deleted some of them does not matter.
func (r *Relay) delete(ctx context.Context, batch []acked) error {
	n := len(batch)
	places, seqs, ids := make([][6]byte, n), make([]int64, n), make([]string, n)
	for i, a := range batch {
		places[i], seqs[i], ids[i] = a.event.place, a.event.seq, a.event.eventID
	}
	deleted := 0
	count := func(tag pgconn.CommandTag) { deleted += int(tag.RowsAffected()) }
	err := roundTrip(ctx, r.pool, begin, asyncCommit,
		statement{sql: r.sql.delete, args: []argument{tids(places), int8s(seqs), texts(ids)}, done: count}, commit)
	if err != nil {
		return r.archived(ctx, err)
	}
	if deleted >= n {
		return nil
	}
	shards := make([]int16, n)
	for i, a := range batch {
		shards[i] = a.shard.id
	}
	return roundTrip(ctx, r.pool, begin, asyncCommit,
		statement{sql: r.sql.deleteMoved, args: []argument{int2s(shards), int8s(seqs), texts(ids)}}, commit)
}
