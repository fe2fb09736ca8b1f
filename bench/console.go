package main

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/console"
)

// consolePages measures the operator's page over large tables: how long the server takes for each page, and how much of that the
// database. Each request goes to a console of its own, whose cache is empty, so each reads everything that its page shows, as if nobody
// had asked before.
var consolePages = scenario{
	name:    "console",
	summary: "the console's pages over 10,000,000 events in outbox, archive and dead letters each",
	full:    size{rows: 10_000_000, runs: 10, requests: 50},
	quick:   size{rows: 100_000, runs: 3, requests: 10},
	run:     runConsole,
}

func runConsole(ctx context.Context, env *environment) (r *report, err error) {
	facts, err := serverFacts(ctx, env.dsn, env.source)
	if err != nil {
		return nil, err
	}
	err = withSchema(ctx, env.dsn, func(pool *pgxpool.Pool, schema string) error {
		s := stock{pool: pool, schema: schema, rows: env.size.rows}
		if err := s.fill(ctx, env.progress); err != nil {
			return fmt.Errorf("fill the tables: %w", err)
		}
		r, err = measurePages(ctx, env, s)
		return err
	})
	if r != nil {
		r.facts = facts
	}
	return r, err
}

// visit is one page of the console.
type visit struct {
	name, path string
	page       ratios // milliseconds, the 95th percentile of each run
	database   ratios
}

func measurePages(ctx context.Context, env *environment, s stock) (*report, error) {
	var spent spent
	pool, err := openPool(ctx, env.dsn, 4, 0, func(c *pgxpool.Config) { c.ConnConfig.Tracer = &spent })
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	visits, err := s.visits(ctx)
	if err != nil {
		return nil, err
	}
	whole, inDatabase := ratios{name: "page_p95_ms", unit: "ms"}, ratios{name: "database_p95_ms", unit: "ms"}
	for run := range env.size.runs {
		took, there := make([][]float64, len(visits)), make([][]float64, len(visits))
		for range env.size.requests {
			for _, i := range rand.Perm(len(visits)) {
				spent.total.Store(0)
				if err := ctx.Err(); err != nil { // the page itself tells a visitor of it, and is no error
					return nil, err
				}
				d, err := visits[i].ask(ctx, pool, s.schema)
				if err != nil {
					return nil, err
				}
				took[i], there[i] = append(took[i], d.Seconds()*1000), append(there[i], time.Duration(spent.total.Load()).Seconds()*1000)
			}
		}
		for i := range visits {
			v := &visits[i]
			v.page.perRun, v.database.perRun = append(v.page.perRun, p95(took[i])), append(v.database.perRun, p95(there[i]))
		}
		slowest, ms := worst(took)
		_, msThere := worst(there)
		whole.perRun, inDatabase.perRun = append(whole.perRun, ms), append(inDatabase.perRun, msThere)
		env.progress("run %d of %d: the slowest page, %s, took %.1f ms or less in 95 of 100 requests; in the database no page took more than %.1f ms", run+1, env.size.runs, visits[slowest].name, ms, msThere)
	}
	r := &report{
		title:  fmt.Sprintf("the console's pages over %s events in outbox, archive and dead letters each; 95th percentiles of the time on the server, with an empty cache; page_p95_ms is that of the slowest page", thousands(float64(s.rows))),
		ratios: []ratios{whole, inDatabase},
	}
	for _, v := range visits {
		r.ratios = append(r.ratios, v.page, v.database)
	}
	return r, nil
}

// ask asks a new console for the page.
func (v visit) ask(ctx context.Context, pool *pgxpool.Pool, schema string) (time.Duration, error) {
	page, err := console.New(console.Config{
		Databases: []console.Database{{Name: "bench", Pool: pool, Schema: schema}},
		Authorize: func(*http.Request) (console.Rights, string) { return console.Look | console.Act, "bench" },
		Logger:    slog.New(slog.DiscardHandler),
		Timeout:   time.Minute, // a page that takes so long is to be measured
	})
	if err != nil {
		return 0, err
	}
	defer page.Close()
	w := httptest.NewRecorder()
	began := time.Now()
	page.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/bench"+v.path, nil))
	took := time.Since(began)
	if w.Code != http.StatusOK {
		return 0, fmt.Errorf("page %s: the console answered %d: %s", v.path, w.Code, w.Body)
	}
	return took, nil
}

// visits are the pages, each as it is when the tables are full.
func (s stock) visits(ctx context.Context) (all []visit, err error) {
	id := eventID(s.rows * 3 / 2)
	short := url.QueryEscape(id[:8] + "…" + id[len(id)-4:]) // as tables show it
	var group, reason string
	err = s.pool.QueryRow(ctx, `select error_group, (select left(md5('broker: timeout after <n> ms'), 8)) from `+s.schema+`.claim_failed order by id limit 1`).Scan(&group, &reason)
	for _, v := range [][2]string{
		{"overview", "/"},
		{"outbox", "/outbox"},
		{"consumers", "/consumers"},
		{"outbox_cause", "/outbox?group=" + reason},
		{"archive", "/outbox/archive"},
		{"archive_topic", "/outbox/archive?topic=topic-7"},
		{"archive_key", "/outbox/archive?key=key-17"},
		{"plan_of_archive", "/do/archive-replay?topic=topic-7"},
		{"dead", "/dead"},
		{"dead_all_states", "/dead?state=all"},
		{"dead_consumer", "/dead?consumer=bench%2Fconsumer-3"},
		{"dead_cause", "/dead?group=" + group},
		{"dead_key", "/dead?state=all&key=key-17"},
		{"dead_topic", "/dead?topic=topic-7"},
		{"dead_topic_old", "/dead?topic=topic-old"},
		{"dead_reason", "/dead?reason=attempts"},
		{"dead_since", "/dead?since=1h"},
		{"dead_until", "/dead?until=1h"},
		{"dead_after", "/dead?topic=topic-7&after=" + strconv.Itoa(s.rows/2)},
		{"dead_consumer_and_cause", "/dead?consumer=bench%2Fconsumer-3&group=" + group},
		{"dead_letter", "/dead/event?id=" + eventID(s.rows/2)},
		{"plan_of_replay", "/do/replay?topic=topic-7"},
		{"plan_of_outbox_retry", "/do/outbox-retry?group=" + reason},
		{"plan_of_outbox_discard", "/do/outbox-discard?group=" + reason},
		{"event_dead", "/event?id=" + eventID(s.rows/2)},
		{"event_pending", "/event?id=" + eventID(s.rows*3/2)},
		{"event_archived", "/event?id=" + eventID(s.rows*5/2)},
		{"event_unknown", "/event?id=" + url.QueryEscape("no such event")},
		{"event_short", "/event?id=" + short},
		{"effects", "/effects"},
		{"effects_done", "/effects?state=done"},
		{"keys", "/keys"},
		{"keys_key", "/keys?key=key-17"},
		{"audit", "/audit"},
	} {
		all = append(all, visit{v[0], v[1], ratios{name: v[0] + "_p95_ms", unit: "ms"}, ratios{name: v[0] + "_database_p95_ms", unit: "ms"}})
	}
	return all, err
}

// worst returns the page with the largest 95th percentile, and that percentile. All pages together would hide a slow one: of 24 pages
// one is beyond the 95th percentile.
func worst(pages [][]float64) (slowest int, ms float64) {
	for i, values := range pages {
		if p := p95(values); p > ms {
			slowest, ms = i, p
		}
	}
	return slowest, ms
}

func p95(values []float64) float64 { return percentile(slices.Sorted(slices.Values(values)), 0.95) }

// spent adds up how long statements have taken, with their way to the server.
type spent struct{ total atomic.Int64 }

type spentSince struct{}

func (s *spent) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return context.WithValue(ctx, spentSince{}, time.Now())
}

func (s *spent) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	if since, ok := ctx.Value(spentSince{}).(time.Time); ok {
		s.total.Add(int64(time.Since(since)))
	}
}

func (s *spent) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return context.WithValue(ctx, spentSince{}, time.Now())
}

func (s *spent) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

func (s *spent) TraceBatchEnd(ctx context.Context, c *pgx.Conn, _ pgx.TraceBatchEndData) {
	s.TraceQueryEnd(ctx, c, pgx.TraceQueryEndData{})
}
