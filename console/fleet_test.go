package console_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/console"
)

// fleetOf is a console of the site's database beside two others: payments is empty, and archive does not answer.
func fleetOf(t testing.TB, orders *site, change ...func(*console.Config)) *site {
	payments := open(t, everything)
	payments.pending("payment.captured", "p1")
	cfg := orders.pool.Config()
	cfg.ConnConfig.DialFunc = func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("the network is down") }
	away, err := pgxpool.NewWithConfig(context.Background(), cfg)
	require.NoError(t, err)
	s := open(t, everything, append([]func(*console.Config){func(c *console.Config) {
		c.Databases = []console.Database{{Name: "payments", Pool: payments.pool, Schema: payments.schema}, {Name: "archive", Pool: away, Schema: orders.schema}, {Name: "orders", Pool: orders.pool, Schema: orders.schema}}
	}}, change...)...)
	t.Cleanup(away.Close)
	s.schema, s.base = payments.schema, "/console"
	return s
}

// All databases stand side by side, those with trouble first, each with what its own first page says.
func TestFleet(t *testing.T) {
	t.Parallel()
	orders := open(t, everything)
	orders.fail()
	s := fleetOf(t, orders)
	page := s.get(http.StatusOK, "/")
	assert.NotContains(t, page, "ZgotmplZ")
	says := text(page)
	assert.Contains(t, says, "of 3 databases have trouble.")
	assert.Contains(t, says, "Databases 3 1 without an answer Pending 1+ in all outboxes Dead letters 2+ of all consumers")
	_, table, found := strings.Cut(says, "What is wrong ")
	require.True(t, found)
	assert.Regexp(t, `^archive – – – – – – It does not answer\. .*the network is down.* orders 0 – 0 2 0 0 1 thing needs a person\. A person decides: 2 dead letters with 1 different error.* payments 1 `, table)
	for _, link := range []string{"/console/orders/", "/console/orders/dead", "/console/payments/outbox", "/console/archive/"} {
		assert.Contains(t, page, `href="`+link+`"`)
	}
	assert.NotContains(t, page, `class="find"`, "an event is looked for in one database")
	assert.Contains(t, s.get(http.StatusOK, "/orders/"), `<a href="/console/">All databases</a>`)

	s.get(http.StatusNotFound, "/live/")
	assert.Contains(t, orders.get(http.StatusOK, ""), "<title>Overview · orders")
	orders.base = "/console"
	assert.Contains(t, orders.get(http.StatusOK, "/"), "<title>Overview · orders", "one database has no page of all")
}

// Somebody who may see some databases learns nothing of the others, and not their names.
func TestFleetShowsWhatSomebodyMaySee(t *testing.T) {
	t.Parallel()
	orders := open(t, everything)
	orders.fail()
	s := fleetOf(t, orders, func(c *console.Config) {
		c.Authorize = func(r *http.Request) (console.Rights, string) {
			if strings.Contains(r.URL.Path, "/orders/") {
				return 0, ""
			}
			return console.Look, "ada"
		}
	})
	for _, path := range []string{"/payments/", "/payments/dead"} {
		of := text(s.get(http.StatusOK, path))
		assert.Contains(t, of, "payments 2 databases All databases payments archive ")
		assert.NotContains(t, of, "orders", path)
	}
	page := text(s.get(http.StatusOK, "/"))
	assert.Contains(t, page, "Databases 2 ")
	assert.Contains(t, page, "Dead letters 0+ of all consumers")
	assert.NotContains(t, page, "orders")
	s.get(http.StatusForbidden, "/orders/")

	s = fleetOf(t, orders, func(c *console.Config) {
		c.Authorize = func(r *http.Request) (console.Rights, string) {
			if r.PathValue("db") == "orders" {
				return 0, ""
			}
			return console.Look, "ada"
		}
	})
	assert.NotContains(t, text(s.get(http.StatusOK, "/")), "orders", "its own page forbids it")
	s.get(http.StatusForbidden, "/orders/")

	s = fleetOf(t, orders, func(c *console.Config) {
		c.Authorize = func(r *http.Request) (console.Rights, string) {
			if strings.HasPrefix(r.URL.Path, "/orders/") {
				return console.Look, "ada"
			}
			return 0, ""
		}
	})
	assert.Contains(t, text(s.get(http.StatusOK, "/")), "All databases orders ada may look, payloads hidden", "a right at the root is not needed")

	s = fleetOf(t, orders, func(c *console.Config) {
		c.Authorize = func(*http.Request) (console.Rights, string) { return 0, "" }
	})
	s.get(http.StatusForbidden, "/")
	s.get(http.StatusForbidden, "/static/live")
}

// A page of all databases that is open hears of a change in any of them. Who may see which is asked once.
func TestFleetIsLive(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	s := fleetOf(t, open(t, everything), func(c *console.Config) {
		c.Authorize = func(*http.Request) (console.Rights, string) {
			asked.Add(1)
			return console.Look, "ada"
		}
	})
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.server.URL+s.base+"/static/live", nil)
	require.NoError(t, err)
	stream, err := s.client.Do(r)
	require.NoError(t, err)
	defer stream.Body.Close()
	assert.Equal(t, "text/event-stream", stream.Header.Get("Content-Type"))
	lines := bufio.NewScanner(stream.Body)
	changed := func() (version string) {
		for lines.Scan() {
			if lines.Text() == "event: changed" && lines.Scan() {
				return lines.Text()
			}
		}
		require.NoError(t, lines.Err())
		t.Fatal("the stream has ended")
		return ""
	}
	first, before := changed(), asked.Load()
	s.pending("payment.captured", "p2")
	assert.NotEqual(t, first, changed())
	assert.Equal(t, before, asked.Load())
}

// panicking is a tracer of a pool: each use of a connection panics.
type panicking struct{ queryTracer }

func (panicking) TraceAcquireStart(context.Context, *pgxpool.Pool, pgxpool.TraceAcquireStartData) context.Context {
	panic("a bug")
}

func (panicking) TraceAcquireEnd(context.Context, *pgxpool.Pool, pgxpool.TraceAcquireEndData) {}

// A read that panics ends the request, as on any page, and not the process.
func TestFleetPanicsInTheRequest(t *testing.T) {
	t.Parallel()
	cfg, err := pgxpool.ParseConfig("host=localhost")
	require.NoError(t, err)
	cfg.ConnConfig.Tracer = panicking{}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	defer pool.Close()
	page, err := console.New(console.Config{
		Databases: []console.Database{{Name: "orders", Pool: pool}, {Name: "payments", Pool: pool}},
		Authorize: func(*http.Request) (console.Rights, string) { return console.Look, "ada" },
	})
	require.NoError(t, err)
	defer page.Close()
	for _, path := range []string{"/", "/static/live"} {
		func() {
			defer func() {
				bug := fmt.Sprint(recover())
				assert.Contains(t, bug, "a bug", path)
				assert.Contains(t, bug, "TraceAcquireStart", "where it was")
			}()
			page.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
		}()
	}
}

func TestFleetInABrowser(t *testing.T) {
	t.Parallel()
	orders := open(t, everything)
	orders.incident()
	s := fleetOf(t, orders)
	b := s.tab(t)
	b.open("/")
	b.shows("3 of 3 databases have trouble.")
	b.fits("fleet")
	b.mark()
	s.pending("payment.captured", "p2")
	b.until(`[...document.querySelectorAll("#fleet-table tbody tr")].some((row) => row.textContent.includes("payments") && row.querySelector("td").textContent === "2")`)
	assert.True(t, b.marked(), "it is the same page")
	b.press("orders")
	b.shows("things need a person.")
	b.until(`document.querySelector(".databases summary")?.click() === undefined && document.querySelector(".databases")?.open`)
	b.press("All databases")
	b.until(`document.getElementById("fleet-table")`)
}
