package chaos

import (
	"context"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
)

// kind is a kind of fault.
type kind struct {
	name        string
	least, most time.Duration // how long it lasts
	needs       string        // what only one fault at a time may have; "": nothing
	kafka       bool          // only there
	do          action
}

type action func(ctx context.Context, s *system, f fault) error

// What faults need for themselves, beside the process that they befall.
const (
	thePostgres = "postgres"
	theBroker   = "broker"
	theLink     = "link to PostgreSQL"
	theWire     = "link to the broker"
	theLayout   = "layout"
)

const (
	ms = time.Millisecond
	s1 = time.Second
	// againWithin is how long a service may take to run again, also when everything is over.
	againWithin = 5 * time.Minute
	// shardsWithin is how long a change of the shards may wait.
	shardsWithin = 20 * time.Second
)

var allKinds = []kind{
	{name: "kill relay", do: kill("relay")},
	{name: "kill service", do: kill("service")},
	{name: "kill consumer", do: kill("consumer")},
	{name: "freeze relay", least: 2 * leaseTTL, most: 4 * leaseTTL, do: freeze("relay")},
	{name: "freeze service", least: 2 * s1, most: 5 * s1, do: freeze("service")},
	{name: "freeze consumer", least: sessionTimeout + 2*s1, most: handlerTimeout + 4*s1, do: freeze("consumer")},
	{name: "replace relay", do: replace("relay")},
	{name: "replace service", do: replace("service")},
	{name: "replace consumer", do: replace("consumer")},
	{name: "crash postgres", least: 200 * ms, most: 2 * s1, needs: thePostgres, do: crashPostgres},
	{name: "crash backend", needs: thePostgres, do: insist(crashBackend)},
	{name: "end backends", do: insist(endBackends)},
	{name: "cut postgres", least: 500 * ms, most: 3 * s1, needs: theLink, do: cut(toDatabase)},
	{name: "strand postgres", needs: theLink, do: strand(toDatabase)},
	{name: "mute postgres", least: 2 * s1, most: 6 * s1, needs: theLink, do: mute(toDatabase)},
	{name: "delay postgres", least: 3 * s1, most: 6 * s1, needs: theLink, do: delay(toDatabase)},
	{name: "cut broker", least: 2 * s1, most: 6 * s1, needs: theWire, do: cut(toBroker)},
	{name: "strand broker", needs: theWire, do: strand(toBroker)},
	{name: "mute broker", least: 2 * s1, most: 6 * s1, needs: theWire, do: mute(toBroker)},
	{name: "delay broker", least: 3 * s1, most: 6 * s1, needs: theWire, do: delay(toBroker)},
	{name: "kill broker", least: 200 * ms, most: 2 * s1, needs: theBroker, kafka: true, do: bounceBroker(false)},
	{name: "bounce broker", least: 200 * ms, most: 2 * s1, needs: theBroker, kafka: true, do: bounceBroker(true)},
	{name: "exhaust pool", least: 2 * s1, most: 5 * s1, do: exhaustPool},
	{name: "exhaust connections", least: s1, most: 3 * s1, do: exhaustConnections},
	{name: "foreign transaction", least: 5 * s1, most: 12 * s1, do: foreignTransaction},
	{name: "slow commits", least: 3 * s1, most: 6 * s1, do: slowCommits},
	{name: "change shards", needs: theLayout, do: insist(changeShards)},
	{name: "replay archive", do: insist(replayArchive)},
	{name: "publish twice", least: 2 * s1, most: 5 * s1, do: publishTwice},
	{name: "silent provider", least: s1, most: 4 * s1, do: silentProvider},
}

// kindsOn returns the kinds that the broker allows, or those of them that are named.
func kindsOn(broker string, names ...string) (kinds []kind) {
	for _, k := range allKinds {
		wanted := len(names) == 0
		for _, name := range names {
			wanted = wanted || name == k.name
		}
		if wanted && (!k.kafka || broker == Kafka) {
			kinds = append(kinds, k)
		}
	}
	return kinds
}

func kindNames() (names []string) {
	for _, k := range allKinds {
		names = append(names, k.name)
	}
	return names
}

// with calls fn with the process of the role that the fault picks, when no other fault has it.
func (s *system) with(role string, f fault, fn func(*child) error) error {
	all := s.cast.of(role)
	one := all[f.Pick%len(all)]
	one.fault.Lock()
	defer one.fault.Unlock()
	return fn(one)
}

func kill(role string) action {
	return func(ctx context.Context, s *system, f fault) error {
		return s.with(role, f, func(one *child) error { return one.kill(ctx) })
	}
}

func freeze(role string) action {
	return func(ctx context.Context, s *system, f fault) error {
		return s.with(role, f, func(one *child) error { return one.freeze(ctx, f.Lasts) })
	}
}

func replace(role string) action {
	return func(ctx context.Context, s *system, f fault) error {
		return s.with(role, f, func(one *child) error { return one.replace(ctx) })
	}
}

// insist repeats what other faults may refuse, as an operator does, until it is done.
func insist(do action) action {
	return func(ctx context.Context, s *system, f fault) error {
		for {
			err := do(ctx, s, f)
			if err == nil || ctx.Err() != nil {
				return err
			}
			_ = pause(ctx, restartWait) // the loop sees its end
		}
	}
}

// crashPostgres kills the whole server at one moment.
func crashPostgres(ctx context.Context, s *system, f fault) error {
	if err := s.server.Crash(ctx); err != nil {
		return err
	}
	_ = pause(ctx, f.Lasts) // what follows must be done
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), againWithin)
	defer cancel()
	return s.server.Start(ctx)
}

// crashBackend kills one of the server's processes, whereupon the server ends all others and recovers by itself.
func crashBackend(ctx context.Context, s *system, _ fault) error {
	return s.admin(ctx, func(conn *pgx.Conn) error {
		return syscall.Kill(int(conn.PgConn().PID()), syscall.SIGKILL)
	})
}

func endBackends(ctx context.Context, s *system, _ fault) error {
	return s.admin(ctx, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid() and backend_type = 'client backend'`)
		return err
	})
}

func toDatabase(s *system) *devtest.Proxy { return s.database }
func toBroker(s *system) *devtest.Proxy   { return s.broker }

// cut resets all connections and refuses new ones.
func cut(link func(*system) *devtest.Proxy) action {
	return func(ctx context.Context, s *system, f fault) error {
		link(s).Refuse()
		_ = pause(ctx, f.Lasts) // what follows must be done
		return link(s).Accept()
	}
}

// strand makes a black hole of the connections that there are.
func strand(link func(*system) *devtest.Proxy) action {
	return func(_ context.Context, s *system, _ fault) error {
		link(s).Strand()
		return nil
	}
}

// mute lets nothing pass for a while, and nobody knows.
func mute(link func(*system) *devtest.Proxy) action {
	return func(ctx context.Context, s *system, f fault) error {
		defer link(s).Thaw()
		link(s).Freeze()
		return pause(ctx, f.Lasts)
	}
}

func delay(link func(*system) *devtest.Proxy) action {
	return func(ctx context.Context, s *system, f fault) error {
		defer link(s).Delay(0)
		link(s).Delay(30 * ms)
		return pause(ctx, f.Lasts)
	}
}

func bounceBroker(clean bool) action {
	return func(ctx context.Context, s *system, f fault) error {
		end := s.cluster.Kill
		if clean {
			end = s.cluster.Terminate
		}
		if err := end(ctx, 1); err != nil {
			return err
		}
		_ = pause(ctx, f.Lasts) // what follows must be done
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), againWithin)
		defer cancel()
		return s.cluster.Start(ctx, 1)
	}
}

func exhaustPool(ctx context.Context, s *system, f fault) error {
	one := s.cast.children[f.Pick%len(s.cast.children)]
	if err := one.tell(ctx, tellHold, f.Lasts); err != nil {
		return err
	}
	return pause(ctx, f.Lasts)
}

// exhaustConnections takes all that the server has left.
func exhaustConnections(ctx context.Context, s *system, f fault) error {
	ctx, cancel := context.WithTimeout(ctx, f.Lasts)
	defer cancel()
	var held []*pgx.Conn
	defer func() {
		for _, conn := range held {
			_ = conn.Close(context.WithoutCancel(ctx)) // it may be gone
		}
	}()
	for ctx.Err() == nil {
		conn, err := pgx.Connect(ctx, s.server.DSN())
		if err != nil {
			_ = pause(ctx, 100*ms) // the loop sees its end
			continue
		}
		held = append(held, conn)
	}
	return nil
}

// foreignTransaction holds a snapshot and a transaction's number, and again when another fault ends it.
func foreignTransaction(ctx context.Context, s *system, f fault) error {
	for over, held := time.Now().Add(f.Lasts), false; ; {
		err := s.admin(ctx, func(conn *pgx.Conn) error {
			return pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, `set local idle_in_transaction_session_timeout = 0`)
				if err == nil {
					_, err = tx.Exec(ctx, `insert into foreign_work default values`)
				}
				if err != nil {
					return err
				}
				held = true
				return pause(ctx, time.Until(over))
			})
		})
		if err == nil || ctx.Err() != nil || held && !time.Now().Before(over) {
			return context.Cause(ctx)
		}
		_ = pause(ctx, restartWait) // the loop sees its end
	}
}

func slowCommits(ctx context.Context, s *system, f fault) error {
	s.driver.slowCommits(f.Lasts)
	return pause(ctx, f.Lasts)
}

// changeShards is refused, and changes nothing, when it cannot be done in time: relays may be away.
func changeShards(ctx context.Context, s *system, f fault) error {
	ctx, cancel := context.WithTimeout(ctx, shardsWithin)
	defer cancel()
	counts := []int{4, 8, 16, 24}
	return outboxadmin.ChangeShards(ctx, s.pool, schema, counts[f.Pick%len(counts)], func(string) {})
}

// replayArchive publishes again what was published in the last seconds.
func replayArchive(ctx context.Context, s *system, _ fault) error {
	selection := outboxadmin.ArchiveSelection{Since: time.Now().Add(-15 * s1)}
	_, err := outboxadmin.Replay(ctx, s.pool, schema, outboxadmin.ReplayConfig{ArchiveSelection: selection}, outboxadmin.By{Actor: "chaos", Note: "a fault"})
	return err
}

func publishTwice(ctx context.Context, s *system, f fault) error {
	for _, one := range s.cast.of("relay") {
		if err := one.tell(ctx, tellTwice, f.Lasts); err != nil {
			return err
		}
	}
	return pause(ctx, f.Lasts)
}

func silentProvider(ctx context.Context, s *system, f fault) error {
	s.provider.silence(f.Lasts)
	return pause(ctx, f.Lasts)
}
