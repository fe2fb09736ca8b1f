package doctor

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/internal/words"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
)

// landing reports problems of the events that publishers put into the WAL, if there are such publishers.
func (d *doctor) landing(ctx context.Context) error {
	l, used, err := d.lands(ctx)
	if err != nil || !used {
		return err
	}
	if err := d.emitters(ctx); err != nil {
		return err
	}
	marker := pgx.Identifier{d.Schema}.Sanitize() + ".outbox_landing"
	const run = "start a service with a relay that has outbox.store log"
	switch {
	case l != nil && l.Creating:
		d.find("landing", "the slot "+l.Slot+" is being created", "it waits for transactions that are open or prepared, in any database of the server; publishers with outbox.store log are refused meanwhile",
			"find long transactions: "+d.command("", "doctor", "--max-transaction", "1m"))
	case l == nil || !l.Created:
		d.find("landing", "no slot keeps the events that publishers put into the WAL", "no relay with outbox.store log has run yet, somebody has dropped the slot, or another slot has its name; publishers with outbox.store log are refused meanwhile",
			run+"; if none has outbox.store log any more: "+d.psql("delete from "+marker))
	case l.Lost:
		d.find("landing", "the server has removed WAL that the slot "+l.Slot+" needs", "max_slot_wal_keep_size or idle_replication_slot_timeout was set; events that no relay had landed are lost, and publishers with outbox.store log are refused meanwhile",
			run+": it creates another slot, and says which part was lost")
	case !l.Read:
		d.find("landing", fmt.Sprintf("no relay lands the events in the WAL: the server keeps %s for the slot %s", words.Bytes(l.Kept), l.Slot), "no relay with outbox.store log runs, or it cannot read the WAL; meanwhile events are accepted and not published, and the WAL fills the disk",
			run+`, or see the relays' logs; if no publisher has outbox.store log any more, follow "Back to rows" in docs/operations.md`)
	case l.Stuck:
		d.find("landing", fmt.Sprintf("a relay reads the WAL, but has landed nothing since %s", l.LandedAt.UTC().Format(time.DateTime)), "it waits for a lock of the outbox or for a standby, reads a large transaction, or hangs; or another program reads the slot; meanwhile events are accepted and not published",
			"see the relays' logs; find long transactions: "+d.command("", "doctor", "--max-transaction", "1m"))
	case l.Kept > muchWAL:
		d.find("landing", fmt.Sprintf("the server keeps %s of WAL for the slot %s", words.Bytes(l.Kept), l.Slot), "the relay that lands its events is behind, a transaction is open for long, or a standby of synchronized_standby_slots is away",
			"see the relays' logs; find long transactions: "+d.command("", "doctor", "--max-transaction", "1m"))
	}
	if l != nil && l.Cut != nil {
		c := l.Cut
		to := "where the next slot begins"
		if c.To != "" {
			to = c.To
		}
		d.find("landing", fmt.Sprintf("WAL was lost at %s: from %s to %s", c.At.UTC().Format(time.DateTime), c.From, to), c.Reason+"; events in there that no relay had landed are lost",
			"publish them again from what their transactions have changed; then clear this: "+d.psql("update "+marker+" set cut_at = null"))
	}
	return d.losable(ctx, l != nil && l.Failover)
}

// lands returns the state of landing, and whether publishers put events into the WAL.
func (d *doctor) lands(ctx context.Context) (l *outboxadmin.LandingReport, used bool, err error) {
	if !d.there["outbox"] {
		return nil, false, nil
	}
	l, err = outboxadmin.InspectLanding(ctx, d.pool, d.Schema)
	return l, l != nil || d.Log, err
}

// emitters notes that any role can put events into the WAL.
func (d *doctor) emitters(ctx context.Context) error {
	var public bool
	if err := d.pool.QueryRow(ctx, d.query("emitters")).Scan(&public); err != nil {
		return err
	}
	if public {
		d.note("landing", `every role of the database may put events into the WAL, because PUBLIC may execute pg_logical_emit_message: see "Who may publish" in docs/operations.md`)
	}
	return nil
}

// losable reports settings with which the server may lose WAL.
func (d *doctor) losable(ctx context.Context, failover bool) error {
	rows, err := d.pool.Query(ctx, d.query("landing"))
	if err != nil {
		return err
	}
	var name, value string
	var wanted *string
	var standbys []string
	_, err = pgx.ForEachRow(rows, []any{&name, &value, &wanted, &standbys}, func() error {
		reload := " -c 'select pg_reload_conf()'"
		switch {
		case name != "synchronized_standby_slots":
			d.find("landing", name+" is "+value, "the server may remove WAL with events that no relay has landed", d.psql("alter system set "+name+" = "+*wanted)+reload)
		case failover && len(standbys) > 0:
			d.find("landing", "synchronized_standby_slots is empty", "a standby's slot may be past events whose rows the standby does not have; a failover to it loses them",
				d.psql("alter system set "+name+" = '"+strings.Join(standbys, ", ")+"'")+reload+", with the slots of the standbys that may be promoted")
		}
		return nil
	})
	return err
}
