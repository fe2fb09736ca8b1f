package doctor

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// muchWAL is how much WAL a slot may keep, in bytes. A reader is seconds behind at most.
const muchWAL = 1 << 30

// wal reports problems of the slots that relays with RelayConfig.Source WAL read.
func (d *doctor) wal(ctx context.Context) error {
	if !d.there["outbox"] {
		return nil
	}
	_, landing, err := d.lands(ctx)
	if err != nil {
		return err
	}
	rows, err := d.pool.Query(ctx, d.query("wal"), d.Schema)
	if err != nil {
		return err
	}
	var slot string
	var lost, active, unbounded bool
	var kept int64
	_, err = pgx.ForEachRow(rows, []any{&slot, &lost, &active, &kept, &unbounded}, func() error {
		drop := "; if no relay has outbox.source wal any more: " + d.psql(fmt.Sprintf("select pg_drop_replication_slot('%s')", slot))
		start := "start a service with a relay, or see the log of the relays"
		switch {
		case lost:
			d.find("wal", fmt.Sprintf("the server has removed WAL that the slot %s needs", slot), "no relay has read it for a while, or its relay was too far behind; relays read the table until they have another slot", start+drop)
		case kept > muchWAL:
			d.find("wal", fmt.Sprintf("the server keeps %d MB of WAL for the slot %s", kept>>20, slot), "no relay reads it, or its relay is behind", start+drop)
		case !active:
			d.find("wal", "no relay reads the slot "+slot, "no relay runs, or relays no longer read the WAL; meanwhile the server keeps its WAL, and autovacuum dead rows of the catalog", start+drop)
		case unbounded && !landing: // no relay may have made the slot yet
			d.find("wal", "nothing bounds the WAL that the server keeps for the slot "+slot, "max_slot_wal_keep_size is -1: while no relay reads the slot, the WAL fills the disk",
				d.psql("alter system set max_slot_wal_keep_size = '10GB'")+" -c 'select pg_reload_conf()'")
		}
		return nil
	})
	return err
}
