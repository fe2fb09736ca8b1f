package outbox

import "context"

// delete deletes the rows of acknowledged events, exactly those. Who else deleted some of them does not matter.
func (r *Relay) delete(ctx context.Context, batch []acked) error {
	n := len(batch)
	places, seqs, ids := make([][6]byte, n), make([]int64, n), make([]string, n)
	for i, a := range batch {
		places[i], seqs[i], ids[i] = a.event.place, a.event.seq, a.event.eventID
	}
	deleted := 0
	err := roundTrip(ctx, r.pool, begin,
		statement{sql: r.sql.delete, args: []argument{tids(places), int8s(seqs), texts(ids)}, row: func(v [][]byte) error {
			deleted = int(asInt8(v[0]))
			return nil
		}}, commit)
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
	return roundTrip(ctx, r.pool, begin,
		statement{sql: r.sql.deleteMoved, args: []argument{int2s(shards), int8s(seqs), texts(ids)}}, commit)
}
