package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/internal/pgschema"
)

// ErrCountsAsStandby says that the relay's own connection could confirm commits that wait for a standby.
var ErrCountsAsStandby = errors.New("the server counts this relay's replication connection as a synchronous standby: list the standbys by name in synchronous_standby_names")

// WAL has the statements about the outbox's part of the write-ahead log (WAL). It is safe for concurrent use.
type WAL struct {
	Slot, Publication string // their names
	instead           string // what to do where the WAL cannot be read

	pool             *pgxpool.Pool
	schema           string
	id               uuid.UUID
	ttl              time.Duration
	readySQL, pubSQL string
	slotSQL          string
}

// NewWAL returns the statements for the relay with that ID.
func NewWAL(pool *pgxpool.Pool, schema string, id uuid.UUID, ttl time.Duration) *WAL {
	return &WAL{
		Slot: SlotName(pool.Config().ConnConfig.Database, schema), Publication: PublicationName(schema), instead: "read the table", pool: pool, schema: schema, id: id, ttl: ttl,
		readySQL: Query("wal_ready", schema), pubSQL: Query("wal_publication", schema), slotSQL: Query("wal_slot", schema),
	}
}

// SlotName is the name of the replication slot that relays read. Names of slots are those of a server, so it depends on the database.
func SlotName(database, schema string) string {
	sum := sha256.Sum256([]byte(database + "\x00" + schema))
	return schema[:min(len(schema), 40)] + "_outbox_" + hex.EncodeToString(sum[:4])
}

// PublicationName is the name of the publication of the outbox's inserts.
func PublicationName(schema string) string { return schema[:min(len(schema), 55)] + "_outbox" }

// CheckConnection returns an error if the server admits no connection for replication.
func (w *WAL) CheckConnection(ctx context.Context) error {
	conn, err := w.Dial(ctx)
	if err != nil {
		return fmt.Errorf("connect for replication: connect to the server directly, not through a pooler, and check pg_hba.conf and max_wal_senders: %w", err)
	}
	return conn.Close(ctx)
}

// Application is the name by which other relays recognize the connection that reads the slot.
func (w *WAL) Application() string { return "millrace-relay-" + w.id.String() }

// Ready returns an error that names the remedy if the role cannot read the WAL, or no slot is left.
func (w *WAL) Ready(ctx context.Context) error {
	var level, role string
	var replicates, free, anyStandby bool
	err := w.ask(ctx, statement{sql: w.readySQL, args: []argument{text(w.Slot)}, row: func(v [][]byte) error {
		level, replicates, free, role, anyStandby = string(v[0]), v[1][0] != 0, v[2][0] != 0, string(v[3]), v[4][0] != 0
		return nil
	}})
	switch {
	case err != nil:
		return err
	case level != "logical":
		return fmt.Errorf(`wal_level is %s: run "alter system set wal_level = logical" and restart the server, or %s`, level, w.instead)
	case !replicates:
		return fmt.Errorf(`the role %s may not read the WAL: run "alter role %s replication", or %s`, role, pgx.Identifier{role}.Sanitize(), w.instead)
	case anyStandby:
		return errors.New("synchronous_standby_names has *, so the server would count this relay's replication connection as a synchronous standby: list the standbys by name")
	case !free:
		return errors.New("no replication slot is free: raise max_replication_slots and restart the server, or drop a slot that nobody reads (select * from pg_replication_slots)")
	}
	return nil
}

// CheckPublication returns an error if there is no publication of the outbox's inserts. It creates none.
func (w *WAL) CheckPublication(ctx context.Context) error {
	exists, inserts, more, err := w.publication(ctx)
	if err == nil && (!exists || !inserts || more) {
		err = fmt.Errorf("the publication %s was dropped or changed", w.Publication)
	}
	return err
}

func (w *WAL) publication(ctx context.Context) (exists, inserts, more bool, err error) {
	err = w.ask(ctx, statement{sql: w.pubSQL, args: []argument{text(w.Publication)}, row: func(v [][]byte) error {
		exists, inserts, more = v[0][0] != 0, v[1][0] != 0, v[2][0] != 0
		return nil
	}})
	return exists, inserts, more, err
}

// CreatePublication creates the publication of the outbox's inserts, unless it exists.
func (w *WAL) CreatePublication(ctx context.Context) error {
	name := pgx.Identifier{w.Publication}.Sanitize()
	create := pgschema.Render(`create publication `+name+` for table {schema}.outbox with (publish = 'insert')`, w.schema)
	for created := false; ; created = true {
		exists, inserts, more, err := w.publication(ctx)
		switch {
		case err != nil:
			return err
		case exists && (!inserts || more):
			return fmt.Errorf(`the publication %s is not one of the inserts of the outbox alone: run "drop publication %s", then "%s"`, w.Publication, name, create)
		case exists:
			return nil
		case created:
			return fmt.Errorf("the publication %s was dropped", w.Publication)
		}
		var pgErr *pgconn.PgError
		if _, err := w.pool.Exec(ctx, create); errors.As(err, &pgErr) && (pgErr.Code == "42710" || pgErr.Code == "23505") {
			continue // another relay was faster
		} else if err != nil {
			return fmt.Errorf(`create the publication of the outbox: run "%s" as the owner of the table: %w`, create, err)
		}
	}
}

// SlotState is what the server says about the slot, and about other relays.
type SlotState struct {
	Exists          bool
	Fits            bool   // its plugin is pgoutput, and it belongs to this database
	Lost            bool   // the server has removed WAL that it needs
	Reader          int    // the server's process that reads it; 0: none
	Own             bool   // this relay has started that process
	Orphaned        bool   // the relay that has started it has ended
	Lag             int64  // bytes of WAL that the server keeps for the slot
	Others          bool   // another relay holds shards
	Flushed         uint64 // the end of the WAL
	ServerStarted   time.Time
	CountsAsStandby bool // the server counts that process as a synchronous standby

	Confirmed uint64 // what its reader has confirmed; 0: the slot is being created
	Temporary bool   // it ends with its session
}

// State asks the server, and changes nothing.
func (w *WAL) State(ctx context.Context) (s SlotState, err error) {
	err = w.ask(ctx, statement{
		sql: w.slotSQL, args: []argument{text(w.Slot), id(w.id), integer(int(w.ttl.Milliseconds()))},
		row: func(v [][]byte) error {
			is := func(i int) bool { return v[i][0] != 0 }
			s = SlotState{
				Exists: is(0), Fits: is(1), Lost: is(2), Reader: asInt4(v[3]), Own: is(4), Orphaned: is(5), Lag: asInt8(v[6]), Others: is(7),
				Flushed: asUint8(v[8]), ServerStarted: asTime(v[9]), CountsAsStandby: is(10), Confirmed: asUint8(v[11]), Temporary: is(12),
			}
			return nil
		},
	})
	return s, err
}

// ask sends a statement, and waits for the answer no longer than a lease lasts.
func (w *WAL) ask(ctx context.Context, s statement) error {
	ctx, cancel := context.WithTimeout(ctx, max(w.ttl, longestPatience))
	defer cancel()
	return roundTrip(ctx, w.pool, s)
}

// Terminate ends the server's process that reads the slot.
func (w *WAL) Terminate(ctx context.Context, reader int) error {
	return w.ask(ctx, statement{sql: `select pg_terminate_backend($1::int)`, args: []argument{integer(reader)}})
}

// Drop drops the slot.
func (w *WAL) Drop(ctx context.Context) error {
	return w.ask(ctx, statement{sql: `select pg_drop_replication_slot($1::text)`, args: []argument{text(w.Slot)}})
}

// Dial opens a connection for replication, with the pool's settings.
func (w *WAL) Dial(ctx context.Context) (*pgconn.PgConn, error) {
	cfg := w.pool.Config()
	if cfg.BeforeConnect != nil {
		if err := cfg.BeforeConnect(ctx, cfg.ConnConfig); err != nil {
			return nil, err
		}
	}
	cfg.ConnConfig.RuntimeParams["replication"] = "database"
	cfg.ConnConfig.RuntimeParams["application_name"] = w.Application()
	cfg.ConnConfig.RuntimeParams["statement_timeout"] = "0" // a slot's creation waits for transactions
	return pgconn.ConnectConfig(ctx, &cfg.ConnConfig.Config)
}

// Create creates the slot, on a connection of Dial. On PostgreSQL 17 and later it is one that standbys may synchronize, so that it survives
// a failover. It waits for the transactions that have written something and still run.
func (w *WAL) Create(ctx context.Context, conn *pgconn.PgConn) error {
	var version int
	if _, err := fmt.Sscanf(conn.ParameterStatus("server_version"), "%d", &version); err != nil {
		return fmt.Errorf("read the server's version: %w", err)
	}
	failover := ""
	if version >= 17 {
		failover = ", false, false, true"
	}
	_, err := conn.Exec(ctx, `select pg_create_logical_replication_slot('`+w.Slot+`', 'pgoutput'`+failover+`)`).ReadAll()
	return err
}

// End returns the end of the WAL and when the server started, on a connection of Dial.
func (w *WAL) End(ctx context.Context, conn *pgconn.PgConn) (position uint64, serverStarted time.Time, err error) {
	results, err := conn.Exec(ctx, `select (pg_current_wal_flush_lsn() - '0/0')::bigint, (extract(epoch from pg_postmaster_start_time()) * 1000000)::bigint`).ReadAll()
	if err != nil {
		return 0, time.Time{}, err
	}
	p, err1 := strconv.ParseUint(string(results[0].Rows[0][0]), 10, 64)
	micros, err2 := strconv.ParseInt(string(results[0].Rows[0][1]), 10, 64)
	return p, time.UnixMicro(micros), errors.Join(err1, err2)
}

// Sleep returns false if ctx has ended.
func Sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// Receive returns the next message of a stream, on the connection on which it was started.
func Receive(ctx context.Context, conn *pgconn.PgConn) ([]byte, error) {
	for {
		msg, err := conn.ReceiveMessage(ctx)
		if err != nil {
			return nil, err
		}
		switch msg := msg.(type) {
		case *pgproto3.NoticeResponse, *pgproto3.ParameterStatus: // a server may send them at any time
			continue
		case *pgproto3.ErrorResponse:
			return nil, pgconn.ErrorResponseToPgError(msg)
		case *pgproto3.CopyData:
			if len(msg.Data) > 0 {
				return msg.Data, nil
			}
		}
		return nil, fmt.Errorf("the server has ended the stream with %T", msg)
	}
}
