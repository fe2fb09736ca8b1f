package store

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Landing has the statements about events that are in the write-ahead log alone. Its methods must not be called before LoadSettings.
type Landing struct {
	*WAL
	settingsSQL, holderSQL, markerSQL, markSQL, landSQL string
}

// NewLanding returns the statements for the relay with that ID.
func NewLanding(pool *pgxpool.Pool, schema string, relay uuid.UUID, ttl time.Duration) *Landing {
	w := NewWAL(pool, schema, relay, ttl)
	w.Slot, w.Publication, w.instead = "", schema+"_outbox_landing", "store events as rows"
	query := func(name string) string { return Query("landing_"+name, schema) }
	return &Landing{WAL: w, settingsSQL: query("settings"), holderSQL: query("holder"), markerSQL: query("marker"), markSQL: query("mark"), landSQL: query("land")}
}

// Settings are those of the server.
type Settings struct {
	Standby bool  // it cannot be written to yet
	Unsafe  error // why it may remove WAL that nobody has read, with the remedy
}

// LoadSettings returns the settings, and learns the slot's name.
func (l *Landing) LoadSettings(ctx context.Context) (settings Settings, err error) {
	var size, idle string
	err = l.ask(ctx, statement{sql: l.settingsSQL, row: func(v [][]byte) error {
		l.Slot, settings.Standby, size, idle = string(v[0]), v[1][0] != 0, string(v[2]), string(v[3])
		return nil
	}})
	if err != nil {
		return settings, err
	}
	for _, s := range []struct{ setting, is, wanted string }{{"max_slot_wal_keep_size", size, "-1"}, {"idle_replication_slot_timeout", idle, "0"}} {
		if s.is != s.wanted {
			settings.Unsafe = errors.Join(settings.Unsafe, fmt.Errorf(`%s is %s, so the server may remove events that are only in the WAL: run "alter system set %s = %s", then "select pg_reload_conf()"`,
				s.setting, s.is, s.setting, s.wanted))
		}
	}
	return settings, nil
}

// CreatePublication creates the publication, which has no tables, unless it exists. It must be created before the slot: otherwise the slot
// could not be read.
func (l *Landing) CreatePublication(ctx context.Context) error {
	exists, _, _, err := l.publication(ctx)
	if err != nil || exists {
		return err
	}
	create := `create publication ` + pgx.Identifier{l.Publication}.Sanitize()
	var pgErr *pgconn.PgError
	if _, err := l.pool.Exec(ctx, create); err != nil && !(errors.As(err, &pgErr) && (pgErr.Code == "42710" || pgErr.Code == "23505")) { // another relay was faster
		return fmt.Errorf(`create the publication for landing: run "%s" as the owner of the database: %w`, create, err)
	}
	return nil
}

// Holder is the process that lands events.
type Holder struct {
	Process   int    // 0: nobody does
	Own       bool   // this relay has started the process
	Heartbeat string // changes while it is alive; "" if this role may not see it
}

// Holder returns who lands events.
func (l *Landing) Holder(ctx context.Context) (h Holder, err error) {
	err = l.ask(ctx, statement{sql: l.holderSQL, args: []argument{bigint(l.lock()), id(l.id)}, row: func(v [][]byte) error {
		h = Holder{Process: asInt4(v[0]), Own: v[1][0] != 0, Heartbeat: string(v[2])}
		return nil
	}})
	return h, err
}

// lock is the number of the advisory lock of the relay that lands.
func (l *Landing) lock() int64 { return Hash("landing "+l.schema, "") }

// Hold makes this relay the one that lands, as long as the connection of Dial lives. It returns false if another relay is.
func (l *Landing) Hold(ctx context.Context, conn *pgconn.PgConn) (bool, error) {
	got, err := one(ctx, conn, `select pg_try_advisory_lock(`+strconv.FormatInt(l.lock(), 10)+`)`)
	return got == "t", err
}

// Drop drops the slot, on the connection that holds the lock.
func (l *Landing) Drop(ctx context.Context, conn *pgconn.PgConn) error {
	_, err := one(ctx, conn, `select pg_drop_replication_slot('`+l.Slot+`')`)
	return err
}

// one returns the first column of a statement's only row.
func one(ctx context.Context, conn *pgconn.PgConn, sql string) (string, error) {
	results, err := conn.Exec(ctx, sql).ReadAll()
	if err != nil {
		return "", err
	}
	return string(results[0].Rows[0][0]), nil
}

// Position is how far the WAL has been landed. Transactions whose commit begins before Landed have been landed, and the first Part messages
// of the one whose commit begins at PartOf.
type Position struct {
	Landed, PartOf uint64
	Part           int
}

// Marker is what the database knows about landing.
type Marker struct {
	Position
	Known             bool      // something is known of this server and database
	Foreign           bool      // there is a marker, of another server or database
	SlotServerStarted time.Time // when the server started at which a relay created the slot or began to
	ServerStarted     time.Time // when this one started
	LandedAt          time.Time // when a relay last advanced it; now, if nothing is known
}

// Marker returns the marker for the server with that system identifier.
func (l *Landing) Marker(ctx context.Context, conn *pgconn.PgConn, system string) (m Marker, err error) {
	err = exchange(ctx, conn, statement{sql: l.markerSQL, args: []argument{text(system)}, row: func(v [][]byte) error {
		m = Marker{
			Known: v[0][0] != 0, Position: Position{asUint8(v[1]), asUint8(v[2]), asInt4(v[3])}, SlotServerStarted: asTime(v[4]), ServerStarted: asTime(v[5]),
			LandedAt: asTime(v[6]), Foreign: v[7][0] != 0,
		}
		return nil
	}})
	return m, err
}

// durable makes a transaction survive a crash of the server once it is committed, and not end at the role's statement_timeout.
var durable = statement{sql: `select set_config('synchronous_commit', case current_setting('synchronous_commit') when 'remote_apply' then 'remote_apply' else 'on' end, true),
	set_config('statement_timeout', '0', true)`}

// Mark sets the marker, which was at from, to Landed or to nothing. A reason records that the WAL was cut at from. It returns false if another
// relay has landed meanwhile.
func (l *Landing) Mark(ctx context.Context, conn *pgconn.PgConn, system string, from, landed uint64, reason string) (changed bool, err error) {
	err = transact(ctx, conn, durable, statement{
		sql: l.markSQL, args: []argument{text(system), text(l.Slot), lsn(from), lsn(landed), text(reason)},
		done: func(tag pgconn.CommandTag) { changed = tag.RowsAffected() > 0 },
	})
	return changed, err
}

// transact runs the statements in a transaction. The connection can be used again after an error of the database.
func transact(ctx context.Context, conn *pgconn.PgConn, statements ...statement) error {
	all := append(append([]statement{begin}, statements...), commit)
	err := exchange(ctx, conn, all...)
	if err != nil && !conn.IsClosed() {
		_, rollback := conn.Exec(ctx, `rollback`).ReadAll()
		err = errors.Join(err, rollback)
	}
	return err
}

// LandedMessage is the row that a message of the WAL becomes.
type LandedMessage struct {
	Hash           int64
	ID, Topic, Key string
	Headers        []byte
	Payload        []byte
	Committed      time.Time
	Bad            string // why it is not an event; "": it is one
}

// Land makes rows of the messages and advances the marker. It returns up to where the WAL was flushed afterwards, or 0 if another relay has
// landed meanwhile.
func (l *Landing) Land(ctx context.Context, conn *pgconn.PgConn, system string, from, to Position, messages []LandedMessage) (flushed uint64, err error) {
	var good, bad []LandedMessage
	for _, m := range messages {
		if m.Bad == "" {
			good = append(good, m)
		} else {
			bad = append(bad, m)
		}
	}
	args := []argument{
		lsn(from.Landed), lsn(from.PartOf), integer(from.Part), lsn(to.Landed), lsn(to.PartOf), integer(to.Part), text(system),
		int8s(column(good, func(m LandedMessage) int64 { return m.Hash })), texts(column(good, func(m LandedMessage) string { return m.ID })),
		texts(column(good, func(m LandedMessage) string { return m.Topic })), texts(column(good, func(m LandedMessage) string { return m.Key })),
		byteas(column(good, func(m LandedMessage) []byte { return m.Headers })), byteas(column(good, func(m LandedMessage) []byte { return m.Payload })),
		int8s(column(good, func(m LandedMessage) int64 { return m.Committed.UnixMicro() })),
		int8s(column(bad, func(m LandedMessage) int64 { return m.Hash })), texts(column(bad, func(m LandedMessage) string { return m.ID })),
		byteas(column(bad, func(m LandedMessage) []byte { return m.Payload })),
		int8s(column(bad, func(m LandedMessage) int64 { return m.Committed.UnixMicro() })), texts(column(bad, func(m LandedMessage) string { return m.Bad })),
	}
	var advanced int64
	err = transact(ctx, conn, durable, statement{sql: l.landSQL, args: args, row: func(v [][]byte) error { advanced = asInt8(v[0]); return nil }})
	if err != nil || advanced == 0 {
		return 0, err
	}
	return l.flushed(ctx, conn)
}

func (l *Landing) flushed(ctx context.Context, conn *pgconn.PgConn) (to uint64, err error) {
	err = exchange(ctx, conn, statement{sql: `select pg_current_wal_flush_lsn()`, row: func(v [][]byte) error { to = asUint8(v[0]); return nil }})
	return to, err
}

func column[T any](messages []LandedMessage, of func(LandedMessage) T) []T {
	values := make([]T, len(messages))
	for i, m := range messages {
		values[i] = of(m)
	}
	return values
}

// Notify wakes relays of other processes.
func (l *Landing) Notify(ctx context.Context, payload string) error {
	return l.ask(ctx, statement{sql: `select pg_notify($1::text, $2::text)`, args: []argument{text(Channel(l.schema)), text(payload)}})
}

// Database opens a connection for what Marker, Mark and Land do.
func (l *Landing) Database(ctx context.Context) (*pgconn.PgConn, error) {
	conn, err := Connect(ctx, l.pool)
	if err != nil {
		return nil, err
	}
	_, err = conn.PgConn().Exec(ctx, `set idle_session_timeout = 0`).ReadAll() // it is idle while the server decodes a large transaction
	return conn.PgConn(), err
}
