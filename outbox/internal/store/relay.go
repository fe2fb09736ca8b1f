package store

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/outbox/internal/step"
)

// ExchangeTimeout bounds a round trip. A connection that is silent for longer is closed.
const ExchangeTimeout = time.Minute

// ErrElsewhere means that the fleet publishes to a broker other than this relay's.
var ErrElsewhere = errors.New("restart the process with the brokers of the migration, or stop it")

// Relay runs a relay's statements. It is safe for concurrent use, except Renew.
type Relay struct {
	// Broker is the broker that the relay publishes to. If it is "", Renew does not compare it with the record of the migration.
	Broker string
	// Durable makes each delete wait for the disk, so that a crash of the server does not undo it.
	Durable bool

	pool    *pgxpool.Pool
	id      uuid.UUID
	name    string
	ttl     time.Duration
	archive time.Duration // how long published events are kept; 0: not at all
	sql     relayStatements

	leases   *pgx.Conn     // used by Renew only
	patience time.Duration // how long Renew waits for the server
}

type relayStatements struct {
	delete, deleteMoved, archiveDays, seen, well, gone, release, leave, take, rescan, note, clear, survived, observe, observeFailed, lockBroker, elsewhere,
	retryDead, keys, look, move, due, controls, commands, promote, fetch, done, again, left, delayed, journal string
}

// NewRelay returns the statements of the relay with that ID. name is shown to people.
func NewRelay(pool *pgxpool.Pool, schema string, id uuid.UUID, name string, ttl, archive time.Duration) *Relay {
	query := func(name string) string { return Query(name, schema) }
	suffix := ""
	if archive > 0 {
		suffix = "_archive"
	}
	return &Relay{pool: pool, id: id, name: name, ttl: ttl, archive: archive, patience: ttl / 4, sql: relayStatements{
		delete: query("delete" + suffix), deleteMoved: query("delete_moved" + suffix), archiveDays: query("archive_days"),
		seen: query("relay_seen"), well: query("relay_well"), gone: query("relay_gone"), release: query("lease_release"), leave: query("lease_leave"), take: query("lease_take"),
		rescan: query("rescan"), note: query("suspect_note"), clear: query("suspect_clear"), survived: query("suspect_survived"),
		lockBroker: query("broker_lock_shared"), elsewhere: query("broker_elsewhere"), observe: query("observe"), observeFailed: query("observe_failed"), keys: query("failed_keys"), look: query("look"), move: query("failed_move"),
		due: query("failed_due"), controls: query("topic_controls"), commands: query("failed_commands"), promote: query("failed_promote"), fetch: query("failed_fetch"),
		retryDead: query("retry_dead"), done: query("failed_done" + suffix), again: query("failed_again"), left: query("failed_left"), delayed: query("delayed_move"), journal: query("journal_add"),
	}}
}

// transact runs statements in a transaction, in one round trip.
func (r *Relay) transact(ctx context.Context, statements ...statement) error {
	ctx, cancel := context.WithTimeout(ctx, ExchangeTimeout)
	defer cancel()
	return roundTrip(ctx, r.pool, append(append([]statement{begin}, statements...), commit)...)
}

// Connect opens a connection outside the pool, with the pool's settings.
func Connect(ctx context.Context, pool *pgxpool.Pool) (*pgx.Conn, error) {
	cfg := pool.Config()
	if cfg.BeforeConnect != nil { // it may fetch a password that changes
		if err := cfg.BeforeConnect(ctx, cfg.ConnConfig); err != nil {
			return nil, err
		}
	}
	conn, err := pgx.ConnectConfig(ctx, cfg.ConnConfig)
	if err != nil || cfg.AfterConnect == nil {
		return conn, err
	}
	if err := cfg.AfterConnect(ctx, conn); err != nil {
		return nil, errors.Join(err, conn.Close(ctx))
	}
	return conn, nil
}

// longestPatience is how long Renew waits at most, unless leases last longer.
const longestPatience = 10 * time.Second

// Renew renews leases on a connection of its own, so that an exhausted pool does not cost the leases. It must not be called concurrently.
//
// A silent connection must cost little of the lease's time, so Renew first waits a quarter of it. Each failure doubles that time, so that
// a slow server or a slow source of passwords does not keep the relay without leases.
//
// The record of the migration is read after its lock is taken, so a later step finds this relay. The error is ErrElsewhere if the record
// names another broker.
func (r *Relay) Renew(ctx context.Context, a step.Renew) (answer step.Renewed) {
	ctx, cancel := context.WithTimeout(ctx, r.patience)
	defer cancel()
	defer func() {
		if answer.Err != nil {
			r.patience = min(2*r.patience, max(r.ttl, longestPatience))
		} else {
			r.patience = r.ttl / 4
		}
	}()
	answer.Asked = a.Hold
	if r.leases == nil || r.leases.IsClosed() {
		r.leases, answer.Err = Connect(ctx, r.pool)
		if answer.Err != nil {
			return answer
		}
	}
	answer.Began = time.Now() // the leases last from the time of the request
	ttl := integer(int(r.ttl.Milliseconds()))
	statements := []statement{begin}
	if r.Broker != "" {
		statements = append(statements, statement{sql: r.sql.lockBroker})
	}
	statements = append(statements,
		statement{sql: r.sql.seen, args: []argument{id(r.id), ttl, text(r.name), boolean(a.Struggling), integer(a.Left), text(encodeTopics(a.Topics))}},
		statement{sql: r.sql.take, args: []argument{id(r.id), ttl, int2s(a.Hold), int2s(a.Shun)}, row: func(v [][]byte) error {
			answer.Fair, answer.Shards = asInt4(v[0]), asInt4(v[1])
			if v[2] != nil {
				answer.Held = append(answer.Held, step.Lease{Shard: asInt2(v[2]), Term: asInt8(v[3]), Deaths: asInt4(v[4]), Suspect: string(v[5]), SuspectDeaths: asInt4(v[6])})
			}
			return nil
		}},
		statement{sql: r.sql.well, args: []argument{id(r.id)}})
	var elsewhere error
	if r.Broker != "" {
		statements = append(statements, statement{sql: r.sql.elsewhere, args: []argument{text(r.Broker)}, row: func(v [][]byte) error {
			elsewhere = fmt.Errorf("the events of this database are in migration from %s to %s, phase %s, and this relay publishes to %s: %w", v[0], v[1], v[2], r.Broker, ErrElsewhere)
			return nil
		}})
	}
	if answer.Err = exchange(ctx, r.leases.PgConn(), append(statements, commit)...); answer.Err != nil {
		r.closeLeases(ctx) // it may be in a transaction
	} else {
		answer.Err = elsewhere
	}
	return answer
}

func (r *Relay) closeLeases(ctx context.Context) {
	if r.leases == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = r.leases.Close(ctx) // nothing is lost with it
	r.leases = nil
}

// Release gives leases back. Even if the server executes it late, it does not release a later lease of the same shard.
func (r *Relay) Release(ctx context.Context, a step.Release) error {
	ctx, cancel := context.WithTimeout(ctx, r.ttl)
	defer cancel()
	return roundTrip(ctx, r.pool, statement{sql: r.sql.release, args: []argument{id(r.id), int2s(a.Shards), int8s(a.Terms)}})
}

// Leave gives all leases back and removes the relay's row. The Relay cannot be used afterwards.
func (r *Relay) Leave(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.ttl)
	defer cancel()
	defer r.closeLeases(ctx)
	return r.transact(ctx,
		statement{sql: r.sql.leave, args: []argument{id(r.id)}},
		statement{sql: r.sql.gone, args: []argument{id(r.id)}})
}

// Blocked returns the keys that have failed events, by shard, with possible duplicates, and the operators' settings for topics.
func (r *Relay) Blocked(ctx context.Context, a step.LoadBlocked) step.BlockedLoaded {
	answer := step.BlockedLoaded{Shards: a.Shards, Keys: map[int16][]string{}}
	type place struct {
		shard    int16
		hash, id int64
		events   int // of the last page
	}
	var rest []*place
	for _, ref := range a.Shards {
		rest = append(rest, &place{shard: ref.Shard, hash: -1})
	}
	for statements := []statement{r.controls(&answer.Controls), inOrder}; len(rest) > 0 && answer.Err == nil; statements = []statement{inOrder} {
		for _, p := range rest {
			p.events = 0
			statements = append(statements, statement{
				sql: r.sql.keys, args: []argument{smallint(p.shard), bigint(p.hash), bigint(p.id), integer(keysPage)},
				row: func(v [][]byte) error {
					if len(v[0]) > 0 {
						answer.Keys[p.shard] = append(answer.Keys[p.shard], string(v[0]))
					}
					p.hash, p.id, p.events = asInt8(v[1]), asInt8(v[2]), asInt4(v[3])
					return nil
				},
			})
		}
		answer.Err = r.transact(ctx, statements...)
		rest = slices.DeleteFunc(rest, func(p *place) bool { return p.events < keysPage })
	}
	return answer
}

// keysPage is how many failed events one statement reads for their keys. There may be any number of events, and a statement has a time
// limit.
const keysPage = 10_000

// controls reads the operators' settings for topics.
func (r *Relay) controls(found *[]step.Control) statement {
	return statement{sql: r.sql.controls, row: func(v [][]byte) error {
		*found = append(*found, step.Control{Topic: string(v[0]), Paused: asInt8(v[1]), To: string(v[2])})
		return nil
	}}
}

// Rescan returns which rows exist up to the numbers that were read.
func (r *Relay) Rescan(ctx context.Context, requests []step.RescanRequest) ([][]step.Identity, error) {
	found, statements := make([][]step.Identity, len(requests)), []statement{inOrder}
	for i, q := range requests {
		statements = append(statements, statement{
			sql: r.sql.rescan, args: []argument{smallint(q.Shard), bigint(q.UpTo), integer(q.Limit), texts(q.Skip)},
			row: func(v [][]byte) error {
				found[i] = append(found[i], step.Identity{Seq: asInt8(v[0]), EventID: string(v[1])})
				return nil
			},
		})
	}
	return found, r.transact(ctx, statements...)
}

// inOrder makes the planner read rows in the order of an index until the end of the transaction. Without it, reading and sorting them may
// look cheaper, by the statistics of an empty table or without any.
var inOrder = statement{sql: `select set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true)`}

// byPlace makes the planner find rows by ctid or by an index until the end of the transaction, even if reading a small table looks
// cheaper.
var byPlace = statement{sql: `select set_config('enable_seqscan', 'off', true)`}

// Delete deletes exactly the rows of published events. It does not matter if some were deleted already.
func (r *Relay) Delete(ctx context.Context, rows []step.ShardRow) error {
	var placed, placeless []step.ShardRow // rows from the WAL have no ctid
	for _, row := range rows {
		if row.Place == [6]byte{} {
			placeless = append(placeless, row)
		} else {
			placed = append(placed, row)
		}
	}
	if len(placeless) > 0 {
		if err := r.deleteMoved(ctx, placeless); err != nil || len(placed) == 0 {
			return r.archived(ctx, err)
		}
	}
	return r.deletePlaced(ctx, placed)
}

func (r *Relay) deletePlaced(ctx context.Context, rows []step.ShardRow) error {
	n := len(rows)
	places := array(tidArrayOID, pgtype.TIDOID, n, 6, func(b []byte, i int) []byte { return append(b, rows[i].Place[:]...) })
	seqs := array(pgtype.Int8ArrayOID, pgtype.Int8OID, n, 8, func(b []byte, i int) []byte { return binary.BigEndian.AppendUint64(b, uint64(rows[i].Seq)) })
	ids := array(pgtype.TextArrayOID, pgtype.TextOID, n, 40, func(b []byte, i int) []byte { return append(b, rows[i].EventID...) })
	deleted := 0
	err := r.transact(ctx, r.flushed(byPlace, statement{sql: r.sql.delete, args: r.signed(places, seqs, ids), row: func(v [][]byte) error {
		deleted = int(asInt8(v[0]))
		return nil
	}})...)
	if err != nil {
		return r.archived(ctx, err)
	}
	if deleted >= n {
		return nil
	}
	return r.deleteMoved(ctx, rows)
}

// deleteMoved deletes rows by their numbers, through the index. The transaction commits without waiting for the disk, as that of delete.sql.
func (r *Relay) deleteMoved(ctx context.Context, rows []step.ShardRow) error {
	shards, seqs, ids := make([]int16, len(rows)), make([]int64, len(rows)), make([]string, len(rows))
	for i, d := range rows {
		shards[i], seqs[i], ids[i] = d.Shard, d.Seq, d.EventID
	}
	return r.transact(ctx, r.flushed(inOrder, statement{sql: `select set_config('synchronous_commit', 'off', true)`},
		statement{sql: r.sql.deleteMoved, args: r.signed(int2s(shards), int8s(seqs), texts(ids))})...)
}

// signed adds the relay's name to the arguments of a statement that may archive rows.
func (r *Relay) signed(args ...argument) []argument {
	if r.archive > 0 {
		args = append(args, text(r.name))
	}
	return args
}

// flushed makes the transaction wait for the disk if deletes must be durable.
func (r *Relay) flushed(statements ...statement) []statement {
	if r.Durable {
		statements = append(statements, statement{sql: `select set_config('synchronous_commit', 'on', true)`})
	}
	return statements
}

// Poll returns the shards in which failed events are due or have a command, and the operators' settings for topics.
func (r *Relay) Poll(ctx context.Context, shards []int16) (answer step.Polled) {
	answer.Err = r.transact(ctx, statement{sql: r.sql.due, args: []argument{int2s(shards)}, row: func(v [][]byte) error {
		answer.Due = append(answer.Due, asInt2(v[0]))
		return nil
	}}, r.controls(&answer.Controls))
	return answer
}

// Note records that an event is about to be sent alone. It commits synchronously, whatever the role's default.
func (r *Relay) Note(ctx context.Context, shard int16, eventID string) error {
	return r.transact(ctx, statement{sql: `select set_config('synchronous_commit', 'on', true)`},
		statement{sql: r.sql.note, args: []argument{smallint(shard), id(r.id), text(eventID)}})
}

// Survived clears that record, because the relay has not ended.
func (r *Relay) Survived(ctx context.Context, shard int16, eventID string) error {
	return r.transact(ctx, statement{sql: r.sql.survived, args: []argument{smallint(shard), id(r.id), text(eventID)}})
}

// ClearSuspect clears the crash guard's record of a shard.
func (r *Relay) ClearSuspect(ctx context.Context, shard int16) error {
	return r.transact(ctx, statement{sql: r.sql.clear, args: []argument{smallint(shard), id(r.id)}})
}

// KeepArchive creates the missing days of the archive and drops the expired ones.
func (r *Relay) KeepArchive(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, ExchangeTimeout)
	defer cancel()
	if _, err := r.pool.Exec(ctx, r.sql.archiveDays, fmt.Sprintf("%d seconds", int64(r.archive.Seconds()))); err != nil {
		return fmt.Errorf("make the days of the archive: %w", err)
	}
	return nil
}

// archived creates the missing days if the error says that the archive has no partition for a deleted row.
func (r *Relay) archived(ctx context.Context, err error) error {
	const noPartition = "23514"
	var pgErr *pgconn.PgError
	if r.archive == 0 || !errors.As(err, &pgErr) || pgErr.Code != noPartition {
		return err
	}
	return errors.Join(err, r.KeepArchive(ctx))
}

// Backlog is what a shard holds.
type Backlog struct {
	Shard  int16
	Events int64
	Oldest float64 // the age of the oldest event in seconds; negative: there is none
}

// Observed is what the database says about the events of shards.
type Observed struct {
	Shards []Backlog
	Failed map[string]int64 // events, by state
}

// Observe returns the backlog of the shards, and the number of failed events in each state.
func (r *Relay) Observe(ctx context.Context, shards []int16) (Observed, error) {
	found := Observed{Failed: map[string]int64{step.Retrying: 0, step.Blocked: 0, step.Dead: 0, "discarded": 0}}
	held := []argument{int2s(shards)}
	err := roundTrip(ctx, r.pool, begin,
		statement{sql: r.sql.observe, args: held, row: func(v [][]byte) error {
			b := Backlog{asInt2(v[0]), asInt8(v[1]), -1}
			if v[2] != nil {
				b.Oldest = math.Float64frombits(binary.BigEndian.Uint64(v[2]))
			}
			found.Shards = append(found.Shards, b)
			return nil
		}},
		statement{sql: r.sql.observeFailed, args: held, row: func(v [][]byte) error {
			found.Failed[string(v[0])] = asInt8(v[1])
			return nil
		}}, commit)
	if err != nil {
		return Observed{}, err
	}
	return found, nil
}
