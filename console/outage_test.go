package console_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/console"
)

// openFrail is open with everything allowed. away(true) cuts the console off from its database.
func openFrail(t *testing.T, change ...func(*console.Config)) (s *site, away func(bool)) {
	var cut atomic.Bool
	var pool *pgxpool.Pool
	s = open(t, everything, func(c *console.Config) {
		cfg := c.Databases[0].Pool.Config()
		dial := cfg.ConnConfig.DialFunc
		cfg.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			if cut.Load() {
				return nil, errors.New("the network is down")
			}
			return dial(ctx, network, address)
		}
		var err error
		pool, err = pgxpool.NewWithConfig(t.Context(), cfg)
		require.NoError(t, err)
		c.Databases[0].Pool = pool
		for _, ch := range change {
			ch(c)
		}
	})
	t.Cleanup(pool.Close)
	return s, func(to bool) {
		cut.Store(to)
		pool.Reset()
	}
}

// While the database does not answer, pages say so. They do not say that they are not there, or that nothing is.
func TestDatabaseThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	s, away := openFrail(t)
	paths := []string{"/outbox", "/consumers", "/dead", "/dead/event?id=e1", "/dead/edit?id=e1", "/event?id=e1", "/effects", "/keys", "/keys?key=k", "/replay?id=1", "/audit", "/do/forget?id=aaaaaaaa", "/do/pause?topic=t"}
	down := func(path string) {
		page := text(s.get(http.StatusServiceUnavailable, path))
		assert.Contains(t, page, "The database does not answer.", path)
		assert.Contains(t, page, "the network is down", path)
		assert.NotContains(t, page, "no such page", path)
	}

	away(true)
	for _, path := range paths {
		down(path)
	}
	assert.Contains(t, text(s.get(http.StatusOK, "/")), "The database does not answer.")
	s.get(http.StatusNotFound, "/nothing")

	away(false)
	require.Eventually(t, func() bool {
		answer, _ := s.ask("/keys")
		return answer.Status == http.StatusOK
	}, wait, pause)

	away(true)
	require.Eventually(t, func() bool {
		answer, _ := s.ask("/audit")
		return answer.Status == http.StatusServiceUnavailable
	}, wait, pause)
	down("/keys?key=k2")
	down("/replay?id=2")
}

// An error of one part took the figures of all, and the page said that the database did not answer.
func TestPartWithoutFigures(t *testing.T) {
	t.Parallel()
	s := open(t, everything, func(c *console.Config) {
		cfg := c.Databases[0].Pool.Config()
		cfg.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, `set role `+c.Databases[0].Schema+`_looker`)
			return err
		}
		schema := c.Databases[0].Schema
		_, err := c.Databases[0].Pool.Exec(t.Context(), `create role `+schema+`_looker; grant usage on schema `+schema+` to `+schema+`_looker;
			grant select on all tables in schema `+schema+` to `+schema+`_looker; revoke all on `+schema+`.claim_failed_count from `+schema+`_looker`)
		require.NoError(t, err)
		pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
		require.NoError(t, err)
		t.Cleanup(pool.Close)
		c.Databases[0].Pool = pool
	})
	t.Cleanup(func() {
		_, err := s.pool.Exec(context.WithoutCancel(t.Context()), `drop owned by `+s.schema+`_looker; drop role `+s.schema+`_looker`)
		assert.NoError(t, err)
	})
	s.pending("order.placed", "p1")
	const why = "There are no figures of the consumers. "
	overview := text(s.get(http.StatusOK, "/"))
	assert.NotContains(t, overview, "The database does not answer")
	assert.NotContains(t, overview, "No consumer has claimed an event")
	assert.Contains(t, overview, "order.placed 1 oldest")
	assert.Contains(t, overview, why)
	assert.Contains(t, overview, "permission denied for table claim_failed_count")
	assert.Contains(t, row(s.get(http.StatusOK, "/outbox"), "topics-table", "order.placed"), "order.placed flows – – 1")
	consumers := text(s.get(http.StatusOK, "/consumers"))
	assert.Contains(t, consumers, why)
	assert.Contains(t, consumers, "Not known.")
	s.get(http.StatusOK, "/effects")
}

// What was read before stayed on the page, without its time, beside the reason why it could not be read again.
func TestListThatCannotBeReadAgain(t *testing.T) {
	t.Parallel()
	s := open(t, console.Look)
	s.fail()
	s.archived("order.placed", 3)
	assert.Contains(t, text(s.get(http.StatusOK, "/dead")), "no user")
	assert.Contains(t, text(s.get(http.StatusOK, "/outbox/archive")), "order.placed 3")
	s.exec(`alter table {schema}.claim_failed rename to gone; alter table {schema}.outbox_archive rename to gone_too`)
	for _, path := range []string{"/dead", "/outbox/archive"} {
		read := regexp.MustCompile(`no user|order.placed 3|match`)
		require.Eventually(t, func() bool {
			page := text(s.get(http.StatusOK, path)) // a figure may be read again before the list is
			reason := strings.LastIndex(page, "does not exist")
			return reason >= 0 && !read.MatchString(page[reason:])
		}, wait, pause, path)
	}
}

// queryTracer sees each statement, and may change its context.
type queryTracer func(ctx context.Context, sql string) context.Context

func (f queryTracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	return f(ctx, data.SQL)
}

func (queryTracer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// A page does not have doctor ask a database that has just not answered in time, which would take as long again. It keeps what doctor
// has found before.
func TestDatabaseThatDoesNotAnswerInTime(t *testing.T) {
	t.Parallel()
	var stuck atomic.Bool
	var others atomic.Int32
	s := cut(t, func(sql string) bool {
		switch {
		case !stuck.Load() || sql == "-- ping":
			return false
		case sql != "select now()": // with which the figures begin
			others.Add(1)
			return false
		}
		return true
	})
	s.fail()
	comes := func(what string) (page string) {
		require.Eventually(t, func() bool {
			page = text(s.get(http.StatusOK, "/"))
			return strings.Contains(page, what)
		}, wait, pause)
		return page
	}
	stuck.Store(true)
	assert.Contains(t, text(s.get(http.StatusOK, "/")), "The checks did not end. The database did not answer in time.")
	assert.Zero(t, others.Load())
	stuck.Store(false)
	comes("2 dead letters with 1 different error")
	stuck.Store(true)
	assert.Contains(t, comes("The checks did not end. The database did not answer in time."), "2 dead letters with 1 different error")
}

// cut opens a site whose statements are cancelled if away says so.
func cut(t *testing.T, away func(sql string) bool) *site {
	var pool *pgxpool.Pool
	s := open(t, everything, func(c *console.Config) {
		cfg := c.Databases[0].Pool.Config()
		cfg.ConnConfig.Tracer = queryTracer(func(ctx context.Context, sql string) context.Context {
			if !away(sql) {
				return ctx
			}
			late, cancel := context.WithTimeout(ctx, 0)
			cancel()
			return late
		})
		var err error
		pool, err = pgxpool.NewWithConfig(t.Context(), cfg)
		require.NoError(t, err)
		c.Databases[0].Pool = pool
	})
	t.Cleanup(pool.Close)
	return s
}

// The first page went on saying that everything flows while the database was away.
func TestVerdictOnADatabaseThatIsAway(t *testing.T) {
	t.Parallel()
	var away atomic.Bool
	s := cut(t, func(string) bool { return away.Load() })
	s.tells("/", "Everything flows.")
	away.Store(true)
	s.tells("/", "The database does not answer. What this page shows is from before.")
	assert.NotContains(t, text(s.get(http.StatusOK, "/")), "Everything flows.")
}

// What an action had done until the database went away was told to nobody: the page said only that the database did not answer.
func TestActionThatTheDatabaseLeaves(t *testing.T) {
	t.Parallel()
	var away atomic.Bool
	s := cut(t, func(sql string) bool {
		if strings.Contains(sql, "-- Gives events up") {
			away.Store(true)
		}
		return away.Load()
	})
	s.fail()
	assert.Contains(t, text(s.act(http.StatusInternalServerError, "/do/discard")), "It failed: ")
}

// The answer to a form stays as it is: a page that is live asks for itself again, and at this address there would be no page.
func TestAnswerToAFormIsNotLive(t *testing.T) {
	t.Parallel()
	s := open(t, everything)
	assert.Contains(t, s.get(http.StatusOK, "/do/pause?topic=t"), `data-live="/console/orders/live"`)
	assert.Contains(t, s.act(http.StatusOK, "/do/pause?topic=t"), `data-live=""`)
}

// A role without a right on the table of migrations does not know which tables there are. Pages said that no consumer had claimed an
// event, and that there was no ledger, no archive and no audit.
func TestRoleThatDoesNotKnowTheTables(t *testing.T) {
	t.Parallel()
	s := open(t, everything, func(c *console.Config) {
		d := &c.Databases[0]
		cfg := d.Pool.Config()
		cfg.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, `set role `+d.Schema+`_blind`)
			return err
		}
		_, err := d.Pool.Exec(t.Context(), `create role `+d.Schema+`_blind; grant usage on schema `+d.Schema+` to `+d.Schema+`_blind;
			grant select on all tables in schema `+d.Schema+` to `+d.Schema+`_blind; revoke all on `+d.Schema+`.migration from `+d.Schema+`_blind`)
		require.NoError(t, err)
		pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
		require.NoError(t, err)
		t.Cleanup(pool.Close)
		d.Pool = pool
	})
	t.Cleanup(func() {
		_, err := s.pool.Exec(context.WithoutCancel(t.Context()), `drop owned by `+s.schema+`_blind; drop role `+s.schema+`_blind`)
		assert.NoError(t, err)
	})
	s.fail()
	for _, path := range []string{"/dead", "/effects", "/keys", "/outbox/archive", "/audit", "/do/discard", "/dead/event?id=e1", "/replay?id=1"} {
		page := text(s.get(http.StatusServiceUnavailable, path))
		assert.Contains(t, page, "the tables of this schema could not be listed, so this page cannot be shown", path)
		assert.Contains(t, page, "permission denied for table migration", path)
		assert.NotRegexp(t, `No consumer has|no ledger|no answers|no outbox|Nobody has changed|no such page`, page, path)
	}
}
