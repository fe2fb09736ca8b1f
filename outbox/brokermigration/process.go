package brokermigration

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/internal/self"
	"github.com/millrace-go/millrace/outbox/internal/store"
)

const (
	// ttl is how long a process is registered after a beat. A step waits so long for one that was killed.
	ttl = 10 * time.Second
	// beatEvery is how often a process looks for steps.
	beatEvery = time.Second
	// knockEvery is how often it asks the brokers whether they are there: one that is away looks like one without messages.
	knockEvery = 5 * time.Second
)

// process is this one, as the database knows it.
type process struct {
	pool     *pgxpool.Pool
	schema   string
	id       uuid.UUID
	name     string
	service  string
	log      *slog.Logger
	from, to *side
	conn     *pgx.Conn // of its own, because the handlers may have all those of the pool
	stop     context.CancelFunc
	running  sync.WaitGroup

	mu        sync.Mutex
	gate      gate
	consumers []Read
}

// register beats once, and goes on until end.
func register(ctx context.Context, pool *pgxpool.Pool, schema, service string, log *slog.Logger, from, to *side) (*process, error) {
	p := &process{
		pool: pool, schema: schema, id: uuid.New(), name: self.Name, service: service,
		log: log, from: from, to: to, consumers: []Read{},
	}
	err := p.beat(ctx)
	if err == nil {
		err = p.gate.wrong
	}
	if err != nil {
		p.disconnect()
		return nil, err
	}
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	p.stop = stop
	p.running.Go(func() { every(life, beatEvery, p.renew) })
	p.running.Go(func() { every(life, knockEvery, p.knock) })
	return p, nil
}

func every(ctx context.Context, pause time.Duration, do func(context.Context)) {
	ticker := time.NewTicker(pause)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			do(ctx)
		}
	}
}

func (p *process) renew(ctx context.Context) {
	if err := p.beat(ctx); err != nil && ctx.Err() == nil {
		p.disconnect()
		p.log.WarnContext(ctx, "look for the phase of the broker migration", "error", err)
	}
}

// knock notes which brokers are away.
func (p *process) knock(ctx context.Context) {
	for _, s := range []*side{p.from, p.to} {
		asking, cancel := context.WithTimeout(ctx, knockEvery)
		s.away.Store(s.ping(asking) != nil)
		cancel()
	}
}

func (p *process) query(name string) string { return store.Query(name, p.schema) }

// beat registers the process for another while, and reads the record: after the lock, so that whoever makes a step later finds it.
func (p *process) beat(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, ttl)
	defer cancel()
	if p.conn == nil || p.conn.IsClosed() {
		if p.conn, err = store.Connect(ctx, p.pool); err != nil {
			p.conn = nil
			return err
		}
	}
	fromBusy, toBusy := p.from.busy(), p.to.busy()
	p.mu.Lock()
	before, epoch := p.gate.record, p.gate.epoch()
	consumers, err := json.Marshal(p.consumers)
	p.mu.Unlock()
	if err != nil {
		return err
	}
	began := time.Now()
	var r Record
	batch := &pgx.Batch{}
	batch.Queue(`begin isolation level read committed`) // else, by the role's default, the record may be that before the wait for the lock
	batch.Queue(p.query("broker_lock_shared"))
	batch.Queue(p.query("broker_beat"), p.id, p.name, p.service, p.from.Name(), p.to.Name(), ttl.Milliseconds(), epoch, string(consumers), fromBusy, toBusy)
	batch.Queue(p.query("broker_record")).QueryRow(func(row pgx.Row) error { return scanRecord(row, &r) })
	batch.Queue(`commit`)
	if err := p.conn.SendBatch(ctx, batch).Close(); err != nil {
		if fromBusy { // the next beat tells
			p.from.delivered.Add(1)
		}
		if toBusy {
			p.to.delivered.Add(1)
		}
		return err
	}
	view, wrong := r.In(p.from.Name(), p.to.Name())
	p.mu.Lock()
	defer p.mu.Unlock()
	was := p.gate.wrong
	p.gate.seen(view, wrong, began.Add(ttl), time.Now())
	switch {
	case wrong != nil && (was != nil || p.stop == nil): // it is known, or register returns it
	case wrong != nil:
		p.log.ErrorContext(ctx, "nothing is published", "error", wrong)
	case before.Epoch != view.Epoch || before.Phase == "":
		p.log.InfoContext(ctx, "broker migration", "from", view.From, "to", view.To, "phase", view.Phase)
	}
	return nil
}

// scanRecord reads the record, which is zero where there is none.
func scanRecord(row pgx.Row, r *Record) error {
	err := row.Scan(&r.Epoch, &r.From, &r.To, &r.Phase, &r.ChangedAt)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	return err
}

func (p *process) begin() (broker string, t token, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.gate.begin(time.Now())
}

func (p *process) finish(t token) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.gate.end(t, time.Now())
}

// reads notes that this process reads a topic.
func (p *process) reads(r Read) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.Contains(p.consumers, r) {
		p.consumers = append(p.consumers, r)
	}
}

// end says that the process has ended.
func (p *process) end() {
	p.stop()
	p.running.Wait()
	p.mu.Lock()
	p.gate.term.End() // nothing is published any more
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), ttl)
	defer cancel()
	if _, err := p.pool.Exec(ctx, p.query("broker_leave"), p.id); err != nil {
		p.log.WarnContext(ctx, "tell that this process has ended: the next step of the broker migration waits for it", "error", err)
	}
	if _, err := p.pool.Exec(ctx, p.query("broker_sweep")); err != nil {
		p.log.WarnContext(ctx, "forget processes of the broker migration", "error", err)
	}
	p.disconnect()
}

func (p *process) disconnect() {
	if p.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = p.conn.Close(ctx) // nothing is lost with it
	p.conn = nil
}
