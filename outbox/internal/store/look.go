package store

import (
	"context"

	"github.com/millrace-go/millrace/outbox/internal/progress"
)

// Look returns which of the rows exist, in the outbox or among its failed events.
func (r *Relay) Look(ctx context.Context, shard int16, ids []progress.ID) (found []progress.ID, err error) {
	asked, seqs := make(map[progress.ID]bool, len(ids)), make([]int64, len(ids))
	for i, id := range ids {
		asked[id], seqs[i] = true, id.Seq
	}
	err = r.transact(ctx, byPlace, statement{sql: r.sql.look, args: []argument{smallint(shard), int8s(seqs)}, row: func(v [][]byte) error {
		if id := progress.IDOf(asInt8(v[0]), string(v[1])); asked[id] {
			found = append(found, id)
		}
		return nil
	}})
	return found, err
}
