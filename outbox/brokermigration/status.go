package brokermigration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/outbox/internal/store"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
)

// DefaultQuiet is how long a broker that does not tell what is unread must have delivered nothing.
const DefaultQuiet = 15 * time.Minute

// Query says what Inspect looks at.
type Query struct {
	Pool   *pgxpool.Pool // of the database whose outbox is published from
	Schema string        // of its tables. Default: "millrace"

	// Others are databases whose services consume the same topics: their consumers must have read everything, too. Default: none.
	Others []Database

	From, To transport.Transport // the brokers of the configuration

	// Quiet is how long a broker that does not tell what is unread (Pub/Sub) must have delivered nothing. It must be longer than the
	// broker takes to deliver a message again. Default: DefaultQuiet.
	Quiet time.Duration
}

// Database is one with Millrace's tables.
type Database struct {
	Pool   *pgxpool.Pool
	Schema string // of the tables. Default: "millrace"
}

// Status is how far a migration has come, and what keeps it from going on.
type Status struct {
	From      string    `json:"from"`
	To        string    `json:"to"`
	Phase     Phase     `json:"phase"`
	Epoch     int64     `json:"epoch"`
	ChangedAt time.Time `json:"changed_at,omitzero"`
	Processes []Process `json:"processes"`           // that live
	Strangers []string  `json:"strangers,omitempty"` // that live and take part in no migration, or in another one
	Next      *Way      `json:"next,omitempty"`      // nil: this is the last phase
	Back      *Way      `json:"back,omitempty"`      // nil: this is the first phase
}

// Way is a step that could be made.
type Way struct {
	Phase   Phase    `json:"phase"`
	Blocked []string `json:"blocked,omitempty"` // why it must not be made now; none: it is safe
}

// Inspect tells how far the migration has come, and whether the steps from there are safe. It changes nothing.
func Inspect(ctx context.Context, q Query) (Status, error) {
	s, err := inspect(ctx, &q)
	if err != nil {
		return s, fmt.Errorf("inspect the broker migration: %w", err)
	}
	return s, nil
}

func inspect(ctx context.Context, q *Query) (Status, error) {
	schema, err := pgschema.Validate(q.Schema)
	if err != nil {
		return Status{}, err
	}
	q.Schema = schema
	if q.Quiet == 0 {
		q.Quiet = DefaultQuiet
	}
	r, err := ReadRecord(ctx, q.Pool, schema)
	if err != nil {
		return Status{}, err
	}
	if r, err = r.In(q.From.Name(), q.To.Name()); err != nil {
		return Status{}, err
	}
	facts, err := q.facts(ctx)
	if err != nil {
		return Status{}, err
	}
	s := Status{From: r.From, To: r.To, Phase: r.Phase, Epoch: r.Epoch, ChangedAt: r.ChangedAt, Processes: facts.Processes, Strangers: facts.Strangers}
	way := func(steps map[Phase]Phase) *Way {
		to, ok := steps[r.Phase]
		if !ok {
			return nil
		}
		return &Way{Phase: to, Blocked: blocked(r, to, facts)}
	}
	s.Next, s.Back = way(forward), way(back)
	return s, nil
}

// facts asks the databases who lives, and then the brokers what is unread. A process that registers in between finds the record.
func (q *Query) facts(ctx context.Context) (f Facts, err error) {
	var known []Process
	for i, d := range append([]Database{{q.Pool, q.Schema}}, q.Others...) {
		schema, err := pgschema.Validate(d.Schema)
		if err != nil {
			return f, err
		}
		processes, parts, err := whoLives(ctx, d.Pool, schema)
		if err != nil {
			return f, err
		}
		var here []Process // one process may have services, and databases, that take part, and others that do not
		for _, p := range processes {
			if p.from == q.From.Name() && p.to == q.To.Name() {
				here = append(here, p)
				if p.alive && i == 0 { // others publish from other outboxes, by other records
					f.Processes = append(f.Processes, p)
				}
			}
		}
		known = append(known, here...)
		for _, part := range parts {
			if !slices.ContainsFunc(here, part.registered) && !slices.Contains(f.Strangers, part.String()) {
				f.Strangers = append(f.Strangers, part.String())
			}
		}
	}
	reads, alive := readers(known)
	f.Unread, f.Missing = map[string][]string{}, map[string][]string{}
	for _, r := range reads {
		from, err := look(ctx, q.From, r)
		if err != nil {
			return f, err
		}
		to, err := look(ctx, q.To, r)
		if err != nil {
			return f, err
		}
		for _, b := range []struct {
			broker      transport.Transport
			here, there transport.Inspection
		}{{q.From, from, to}, {q.To, to, from}} {
			name := b.broker.Name()
			if why := q.unread(b.broker, r, b.here, alive[r], quietFor(known, name)); why != "" {
				f.Unread[name] = append(f.Unread[name], why)
			}
			if why := missing(b.broker, r, b.here, alive[r] > 0 || b.there.Consumer); why != "" {
				f.Missing[name] = append(f.Missing[name], why)
			}
		}
	}
	return f, nil
}

// look asks a broker for a consumer. One that cannot be asked has it, and does not tell what is unread.
func look(ctx context.Context, broker transport.Transport, r Read) (transport.Inspection, error) {
	i := transport.Inspection{Topic: true, Consumer: true, Lag: -1}
	if inspector, ok := broker.(transport.Inspector); ok {
		var err error
		if i, err = inspector.Inspect(ctx, r.Topic, r.Group); err != nil {
			return i, fmt.Errorf("ask %s for topic %s, consumer %s: %w", broker.Name(), r.Topic, r.Group, err)
		}
	}
	return i, nil
}

// missing says that events of a topic would not reach a consumer that is needed. A broker that knows the lag of any consumer, as Kafka
// does, keeps the events for those that have not begun.
func missing(broker transport.Transport, r Read, i transport.Inspection, needed bool) string {
	if !needed || i.Topic && (i.Consumer || i.Lag >= 0) {
		return ""
	}
	return fmt.Sprintf("consumer %s of topic %s is not known to %s, so that events published there would not reach it: start a process of the migration that has it, or create topic and subscription",
		r.Group, r.Topic, broker.Name())
}

// unread says what a consumer has not read, as far as the broker tells.
func (q *Query) unread(broker transport.Transport, r Read, i transport.Inspection, alive int, quiet time.Duration) string {
	who := fmt.Sprintf("consumer %s of topic %s", r.Group, r.Topic)
	switch {
	case !i.Topic, i.Lag == 0, i.Lag < 0 && !i.Consumer: // there is nothing that it could read
		return ""
	case i.Lag > 0 && alive == 0: // a group that is deleted would have all that the topic has to read
		return fmt.Sprintf("no process of the migration reads %s from %s, which has %d messages for it: start one, or, if the consumer is gone for good, skip them: \"millrace consumer reset --broker %s --topic %s --consumer %s --to latest --dry-run\"",
			who, broker.Name(), i.Lag, broker.Name(), r.Topic, r.Group)
	case i.Lag > 0:
		return fmt.Sprintf("%s has not handled %d messages of %s", who, i.Lag, broker.Name())
	case alive == 0:
		return fmt.Sprintf("no process of the migration reads %s from %s: start one, or delete the subscription", who, broker.Name())
	case quiet < q.Quiet:
		return fmt.Sprintf("%s may have messages of %s, which does not tell: nothing came for %s, want %s", who, broker.Name(), quiet.Truncate(time.Second), q.Quiet)
	}
	return ""
}

// ReadRecord returns what the database says of migrations.
func ReadRecord(ctx context.Context, db pgtx.DB, schema string) (r Record, err error) {
	err = pgtx.Run(ctx, db, func(ctx context.Context, tx pgx.Tx) error {
		return scanRecord(tx.QueryRow(ctx, store.Query("broker_record", schema)), &r)
	})
	return r, err
}

// ErrBlocked means that a step would not be safe now: Status says why. Try again.
var ErrBlocked = errors.New("the step is not safe now")

// Step goes to the next phase, or one phase back, if that is safe. It returns the status before the step, and ErrBlocked where it was
// not made. Another error says whether the step may have been made. Then ask Inspect for the phase before another try, because after a
// step that was made Step makes the next one. A step whose answer is lost counts as made if the record says so.
func Step(ctx context.Context, q Query, goBack bool, actor string) (Status, error) {
	s, err := inspect(ctx, &q)
	if err != nil {
		return s, fmt.Errorf("step of the broker migration: %w", err)
	}
	way := s.Next
	if goBack {
		way = s.Back
	}
	switch {
	case way == nil && goBack:
		return s, fmt.Errorf("step of the broker migration: phase %s is the first: there is nothing to go back to", s.Phase)
	case way == nil:
		return s, fmt.Errorf("step of the broker migration: phase %s is the last: run the processes with broker: %s and no migration", s.Phase, s.To)
	case len(way.Blocked) > 0:
		return s, ErrBlocked
	}
	var made pgconn.CommandTag
	batch := &pgx.Batch{} // in one round trip: all relays wait for the lock when they renew their leases
	batch.Queue(`begin isolation level read committed`)
	batch.Queue(`set local lock_timeout = '1s'`) // who waits for the lock keeps those from it that come later
	batch.Queue(store.Query("broker_lock", q.Schema))
	batch.Queue(store.Query("broker_step", q.Schema), s.Epoch+1, s.From, s.To, way.Phase, actor).Exec(func(tag pgconn.CommandTag) error {
		made = tag
		return nil
	})
	batch.Queue(`commit`)
	if failed := q.Pool.SendBatch(ctx, batch).Close(); failed != nil { // a connection in a transaction does not go back to the pool
		now, err := q.afterStep(ctx)
		if err != nil {
			return s, fmt.Errorf("step of the broker migration: it may have been made: look at \"millrace migration status\" before you try again, because that could make a second step: "+
				"phase %s means that it was made, phase %s that it was not, or that its transaction still runs: %w", way.Phase, s.Phase, errors.Join(failed, err))
		}
		now.ChangedAt = time.Time{}
		if now != (Record{Epoch: s.Epoch + 1, From: s.From, To: s.To, Phase: way.Phase}) {
			return s, fmt.Errorf("step of the broker migration: %w", failed)
		}
		return s, nil // only its answer was lost, and trying again would make another step
	}
	if made.RowsAffected() == 0 {
		return s, errors.New("step of the broker migration: somebody else has made a step: look at the status again")
	}
	return s, nil
}

// stepPatience bounds the reading of the record after a step whose answer was lost.
const stepPatience = 10 * time.Second

// afterStep returns the record, also if ctx has ended. It waits for the transaction of the step, which may still run.
func (q *Query) afterStep(ctx context.Context) (r Record, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stepPatience)
	defer cancel()
	err = pgtx.Run(ctx, q.Pool, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, store.Query("broker_lock_shared", q.Schema)); err != nil {
			return err
		}
		return scanRecord(tx.QueryRow(ctx, store.Query("broker_record", q.Schema)), &r)
	}, pgtx.Isolation(pgx.ReadCommitted))
	return r, err
}

// part is a relay or a claim that lives.
type part struct {
	process string // host and process
	service string // "" for a relay
}

func (p part) String() string {
	if p.service == "" {
		return p.process
	}
	return p.process + " of service " + p.service
}

// registered reports whether the process, which takes part in the migration, is that of p.
func (p part) registered(in Process) bool {
	return in.alive && in.Name == p.process && (p.service == "" || in.Service == "" || in.Service == p.service)
}

// whoLives returns the processes that take part in migrations, and all relays and claims that live.
func whoLives(ctx context.Context, db pgtx.DB, schema string) (processes []Process, parts []part, err error) {
	err = pgtx.Run(ctx, db, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, store.Query("broker_processes", schema))
		if err != nil {
			return err
		}
		if processes, err = pgx.CollectRows(rows, scanProcess); err != nil {
			return err
		}
		living := []string{store.Query("broker_relays", schema)}
		var claims bool
		if err := tx.QueryRow(ctx, `select to_regclass($1) is not null`, schema+".claim_run").Scan(&claims); err != nil {
			return err
		}
		if claims {
			living = append(living, pgschema.Render(`select name, service from {schema}.claim_run where beat_at > clock_timestamp() - interval '30 seconds'`, schema))
		}
		for _, q := range living {
			rows, err := tx.Query(ctx, q)
			if err != nil {
				return err
			}
			var p part
			_, err = pgx.ForEachRow(rows, []any{&p.process, &p.service}, func() error {
				parts = append(parts, p)
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	return processes, parts, err
}

func scanProcess(row pgx.CollectableRow) (p Process, err error) {
	var from, to float64
	err = row.Scan(&p.Name, &p.Service, &p.from, &p.to, &p.alive, &p.Epoch, &p.Consumers, &from, &to)
	p.quiet = map[string]time.Duration{p.from: time.Duration(from * float64(time.Second)), p.to: time.Duration(to * float64(time.Second))}
	return p, err
}
