package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/outbox/fleet"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
)

// silent is the DSN of a server that accepts connections and never answers.
func silent(t *testing.T) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var open []net.Conn
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			open = append(open, c)
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-ended
		for _, c := range open {
			c.Close()
		}
	})
	return "postgres://nobody@" + l.Addr().String() + "/nothing?sslmode=disable"
}

// A database whose server is silent, one that is locked, and one that does not exist stand beside good ones.
func TestFleetForwardsBesideDeadDatabases(t *testing.T) {
	t.Parallel()
	good := databases(t, 4)
	locked := good[3]
	good = good[:3]
	conn, err := pgx.Connect(t.Context(), locked.DSN)
	require.NoError(t, err)
	defer conn.Close(context.WithoutCancel(t.Context()))
	_, err = conn.Exec(t.Context(), `begin; lock table millrace.outbox in access exclusive mode`)
	require.NoError(t, err)
	bad := []fleet.Database{
		locked,
		{Name: "silent", DSN: silent(t)},
		{Name: "missing", DSN: strings.Replace(good[0].DSN, "?", "_missing?", 1)},
	}
	b := newBroker()
	f, _ := run(t, fleet.Fixed(append(bad, good...)...), b, fleet.Config{})
	for i, db := range good {
		write(t, db, db.Name, fmt.Sprint("event-", i))
		eventually(t, "the event of "+db.Name, func() bool { return b.has(fmt.Sprint("event-", i)) })
	}
	failing := func(name string) bool {
		for _, s := range f.Status() {
			if s.Name == name {
				return s.Failures > 0 && s.Error != nil
			}
		}
		return false
	}
	for _, db := range bad {
		eventually(t, "the failure of "+db.Name, func() bool { return failing(db.Name) })
	}
	for i, db := range good {
		assert.False(t, failing(db.Name), db.Name)
		write(t, db, db.Name, fmt.Sprint("later-", i))
	}
	eventually(t, "later events", func() bool { return b.count() == 2*len(good) })
	_, err = conn.Exec(t.Context(), `insert into millrace.outbox (shard, seq, event_id, topic, key, headers, payload)
		values (0, millrace.outbox_next(0::smallint), 'id', 'orders', '', '{}', 'mended'); commit`)
	require.NoError(t, err)
	eventually(t, "a database that answers again", func() bool { return b.has("mended") })
}

// told counts what a logger is told, by message, at Info or above.
type told struct {
	slog.Handler
	mu   sync.Mutex
	seen map[string]int
}

func (l *told) Handle(ctx context.Context, r slog.Record) error {
	l.mu.Lock()
	l.seen[r.Message]++
	l.mu.Unlock()
	return l.Handler.Handle(ctx, r)
}

func (l *told) WithAttrs([]slog.Attr) slog.Handler { return l } // of all databases together

func (l *told) count(part string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for message, times := range l.seen {
		if strings.Contains(message, part) {
			n += times
		}
	}
	return n
}

// A relay that is not admitted is told of once, however often it is tried, and once when it is admitted.
func TestFleetTellsOnceOfARelayThatDoesNotStart(t *testing.T) {
	t.Parallel()
	db := databases(t, 1)[0]
	b, log := newBroker(), &told{Handler: slog.NewTextHandler(t.Output(), nil), seen: map[string]int{}}
	var tried atomic.Int64
	f, _ := run(t, fleet.Fixed(db), b, fleet.Config{Relay: outbox.RelayConfig{Logger: slog.New(log)}, Admit: func(context.Context, *pgxpool.Pool) error {
		if tried.Add(1) <= 3 {
			return errors.New("not yet")
		}
		return nil
	}})
	write(t, db, "k", "event")
	failing := func(least, most int, text string) func() bool {
		return func() bool {
			all := f.Status()
			return len(all) == 1 && all[0].Failures >= least && all[0].Failures <= most && strings.Contains(fmt.Sprint(all[0].Error), text)
		}
	}
	eventually(t, "the second failure, or the third", failing(2, 3, "not yet"))
	eventually(t, "the event", func() bool { return b.has("event") })
	eventually(t, "no failure", failing(0, 0, "nil"))
	assert.Equal(t, 1, log.count("does not start"))
	eventually(t, "the end of the failures is told", func() bool { return log.count("all right again") == 1 })
}

// lockedMigration returns a connection whose transaction holds up the start of every relay of the database.
func lockedMigration(t *testing.T, db fleet.Database) *pgx.Conn {
	t.Helper()
	locking, err := pgx.Connect(t.Context(), db.DSN)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, locking.Close(context.Background())) })
	_, err = locking.Exec(t.Context(), `begin; lock table millrace.migration in access exclusive mode`)
	require.NoError(t, err)
	return locking
}

// TestFleetDoesNotWarnOfWhatLeaves: a database that left the fleet while its relay started was told of as one whose relay does not start.
func TestFleetDoesNotWarnOfWhatLeaves(t *testing.T) {
	t.Parallel()
	all := databases(t, 2)
	leaving, staying := all[0], all[1]
	lockedMigration(t, leaving)
	var left atomic.Bool
	b, log := newBroker(), &told{Handler: slog.NewTextHandler(t.Output(), nil), seen: map[string]int{}}
	f, _ := run(t, func(context.Context) ([]fleet.Database, error) {
		if left.Load() {
			return []fleet.Database{staying}, nil
		}
		return all, nil
	}, b, fleet.Config{Refresh: 100e6, Relay: outbox.RelayConfig{Logger: slog.New(log)}})
	write(t, leaving, "k", "held")
	eventually(t, "the start", func() bool {
		return slices.ContainsFunc(f.Status(), func(s fleet.Status) bool { return s.Name == leaving.Name && s.State == "active" })
	})
	left.Store(true)
	eventually(t, "its end", func() bool { return len(f.Status()) == 1 })
	write(t, staying, "k", "event")
	eventually(t, "the event of the one that stays", func() bool { return b.has("event") })
	assert.Zero(t, log.count("does not start"))
}

// TestFleetCountsStartsThatHang: a relay whose start waited for a lock until its turn ended was started again at once, for ever, and was
// in nobody's way but that of the databases that waited. It has failed, is tried less and less often, and starts when it can.
func TestFleetCountsStartsThatHang(t *testing.T) {
	t.Parallel()
	all := databases(t, 2)
	hanging, busy := all[0], all[1]
	locking := lockedMigration(t, hanging)
	b := newBroker()
	f, _ := run(t, fleet.Fixed(all...), b, fleet.Config{Connections: 16}) // one relay at a time
	status := func() fleet.Status {
		for _, s := range f.Status() {
			if s.Name == hanging.Name {
				return s
			}
		}
		return fleet.Status{}
	}
	write(t, hanging, "k", "held")
	for n := range 2 {
		eventually(t, "the start", func() bool { return status().State == "active" })
		payload := fmt.Sprint("busy ", n)
		write(t, busy, "k", payload) // so that somebody waits, and the turn ends
		eventually(t, "a failure", func() bool { return status().Failures > n })
		assert.ErrorContains(t, status().Error, "has not started in time")
		eventually(t, "the other database's event", func() bool { return b.has(payload) })
	}
	assert.False(t, b.has("held"))
	_, err := locking.Exec(t.Context(), `rollback`)
	require.NoError(t, err)
	eventually(t, "the event", func() bool { return b.has("held") })
	eventually(t, "no failure", func() bool { return status().Failures == 0 })
}

// What the provider says at run time holds, and an error or a wrong answer of it changes nothing.
func TestFleetFollowsItsProvider(t *testing.T) {
	t.Parallel()
	all := databases(t, 3)
	var mu sync.Mutex
	now, failure := all[:1], error(nil)
	say := func(databases []fleet.Database, err error) {
		mu.Lock()
		defer mu.Unlock()
		now, failure = databases, err
	}
	b := newBroker()
	f, _ := run(t, func(context.Context) ([]fleet.Database, error) {
		mu.Lock()
		defer mu.Unlock()
		return now, failure
	}, b, fleet.Config{Refresh: 100e6})
	names := func() (found []string) {
		for _, s := range f.Status() {
			found = append(found, s.Name)
		}
		return found
	}
	write(t, all[0], "k", "one")
	write(t, all[1], "k", "two")
	eventually(t, "the first database", func() bool { return b.has("one") })
	say(all[:2], nil)
	eventually(t, "the second database", func() bool { return b.has("two") })
	say(all[1:], nil)
	eventually(t, "the first is gone", func() bool { return slices.Equal(names(), []string{"tenant-1", "tenant-2"}) })
	write(t, all[0], "k", "not for this fleet")
	for _, wrong := range []func(){
		func() { say(nil, errors.New("the control plane is away")) },
		func() { say(nil, nil) },
		func() { say([]fleet.Database{{Name: "x"}}, nil) },
	} {
		wrong()
		event := fmt.Sprint("event-", b.count())
		write(t, all[2], "k", event)
		eventually(t, "those of before", func() bool { return b.has(event) })
	}
	assert.Equal(t, []string{"tenant-1", "tenant-2"}, names())
	assert.False(t, b.has("not for this fleet"))
	// A database that is removed can be dropped: the fleet holds no connection to it.
	conn, err := pgx.Connect(t.Context(), all[0].DSN)
	require.NoError(t, err)
	defer conn.Close(context.WithoutCancel(t.Context()))
	eventually(t, "the fleet's sessions end", func() bool {
		var others int
		require.NoError(t, conn.QueryRow(t.Context(), `select count(*) from pg_stat_activity
			where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'`).Scan(&others))
		return others == 0
	})
}

// A role with the privileges of a relay alone does not see what other sessions do; then each database with a session is asked.
func TestFleetNeedsNoPrivilegesBesideThoseOfARelay(t *testing.T) {
	t.Parallel()
	all := databases(t, 2)
	role := "fleet_" + strings.ReplaceAll(outbox.NewID(), "-", "")
	for i, db := range all {
		conn, err := pgx.Connect(t.Context(), db.DSN)
		require.NoError(t, err)
		sql, err := outboxadmin.Grants("", outboxadmin.GrantRoles{Relay: role})
		require.NoError(t, err)
		if i == 0 {
			sql = `create role ` + role + ` login password 'relay';` + sql
		}
		_, err = conn.Exec(t.Context(), sql)
		require.NoError(t, err)
		t.Cleanup(func() {
			_, err := conn.Exec(context.Background(), `drop owned by `+role)
			require.NoError(t, err)
			if i == 0 {
				_, err = conn.Exec(context.Background(), `drop role `+role)
				require.NoError(t, err)
			}
			require.NoError(t, conn.Close(context.Background()))
		})
		cfg, err := pgx.ParseConfig(db.DSN)
		require.NoError(t, err)
		all[i].DSN = fmt.Sprintf("host=%s port=%d user=%s password=relay dbname=%s sslmode=disable", cfg.Host, cfg.Port, role, cfg.Database)
	}
	b := newBroker()
	run(t, fleet.Fixed(all...), b, fleet.Config{})
	owner, err := pgx.ParseConfig(databaseURL(t))
	require.NoError(t, err)
	for i, db := range append(all, all...) {
		cfg, err := pgx.ParseConfig(db.DSN)
		require.NoError(t, err)
		own := owner.Copy()
		own.Database = cfg.Database
		conn, err := pgx.ConnectConfig(t.Context(), own)
		require.NoError(t, err)
		require.NoError(t, insert(t.Context(), conn, "k", fmt.Sprint("event-", i)))
		require.NoError(t, conn.Close(t.Context()))
		eventually(t, "the event", func() bool { return b.has(fmt.Sprint("event-", i)) })
	}
}

// Events that are due later, and those that fail, need no commit to be looked for.
func TestFleetKeepsTime(t *testing.T) {
	t.Parallel()
	db := databases(t, 1)[0]
	b := newBroker()
	f, _ := run(t, fleet.Fixed(db), b, fleet.Config{})
	conn, err := pgx.Connect(t.Context(), db.DSN)
	require.NoError(t, err)
	defer conn.Close(context.WithoutCancel(t.Context()))
	_, err = conn.Exec(t.Context(), `insert into millrace.outbox_delayed (due_at, hash, event_id, topic, key, headers, payload)
		values (now() + interval '8 s', 0, 'id', 'orders', '', '{}', 'later')`)
	require.NoError(t, err)
	eventually(t, "it is idle", func() bool { return states(f)["idle"] == 1 })
	eventually(t, "the delayed event", func() bool { return b.has("later") })
}

func TestFleetRefusesWhatIsWrong(t *testing.T) {
	t.Parallel()
	b := newBroker()
	one := fleet.Fixed(fleet.Database{Name: "a", DSN: "postgres://db/a"})
	publisher, err := outbox.NewPublisher(outbox.PublisherConfig{})
	require.NoError(t, err)
	for want, try := range map[string]struct {
		provider  fleet.Provider
		publisher message.Publisher
		cfg       fleet.Config
	}{
		"provider is nil":                            {nil, b, fleet.Config{}},
		"publisher is nil":                           {one, nil, fleet.Config{}},
		"publisher is an outbox's own":               {one, publisher, fleet.Config{}},
		"Config.Connections is 15: want 16 or more":  {one, b, fleet.Config{Connections: 15}},
		"Config.Refresh is 1ns: want 100ms or more":  {one, b, fleet.Config{Refresh: 1}},
		"Config.Timeout is -1ns: want 100ms or more": {one, b, fleet.Config{Timeout: -1}},
		"Config.Relay.Database is set":               {one, b, fleet.Config{Relay: outbox.RelayConfig{Database: "x"}}},
		"RelayConfig.BatchSize is -1":                {one, b, fleet.Config{Relay: outbox.RelayConfig{BatchSize: -1}}},
		`Config.Relay.Schema is "no-good"`:           {one, b, fleet.Config{Relay: outbox.RelayConfig{Schema: "no-good"}}},
	} {
		_, err := fleet.New(try.provider, try.publisher, try.cfg)
		assert.ErrorContains(t, err, want)
	}
	for want, databases := range map[string][]fleet.Database{
		"there is no database":      {},
		`databases[0].Name is ""`:   {{DSN: "postgres://db/a"}},
		`databases[1].Name is "a"`:  {{Name: "a", DSN: "postgres://db/a"}, {Name: "a", DSN: "postgres://db/b"}},
		"databases[0].DSN is empty": {{Name: "a"}},
		"databases[0].DSN is no":    {{Name: "a", DSN: "postgre://hunter2@db"}},
	} {
		f, err := fleet.New(fleet.Fixed(databases...), b, fleet.Config{})
		require.NoError(t, err)
		err = f.Run(t.Context())
		assert.ErrorContains(t, err, want)
		assert.NotContains(t, fmt.Sprint(err), "hunter2")
		assert.ErrorContains(t, f.Run(t.Context()), "it has run before")
	}
	secret := fleet.Database{Name: "a", DSN: "postgres://u:hunter2@db"}
	assert.NotContains(t, fmt.Sprintf("%v %+v %#v %s", secret, secret, secret, []fleet.Database{secret}), "hunter2")
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "database", secret)
	assert.NotContains(t, log.String(), "hunter2")
}
