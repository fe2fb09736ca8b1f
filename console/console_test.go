package console_test

import (
	"cmp"
	"context"
	"html"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/console"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/internal/tables"
)

// site is a console on a schema of its own, in the browser of somebody.
type site struct {
	t      testing.TB
	pool   *pgxpool.Pool
	schema string
	page   *console.Console
	server *httptest.Server
	client *http.Client
	base   string
}

const (
	// wait is how long a test waits for what must come, and pause how often it looks.
	wait  = 2 * time.Minute
	pause = 50 * time.Millisecond
)

const everything = console.Look | console.Payloads | console.Act

// open migrates a schema and serves it.
func open(t testing.TB, rights console.Rights, change ...func(*console.Config)) *site {
	s := &site{t: t, pool: devtest.Pool(t), schema: devtest.Schema(t)}
	all, err := tables.Migrators(s.pool, s.schema)
	require.NoError(t, err)
	for _, m := range all {
		require.NoError(t, m.Up(t.Context()))
	}
	cfg := console.Config{
		Databases: []console.Database{{Name: "orders", Pool: s.pool, Schema: s.schema}},
		Authorize: func(*http.Request) (console.Rights, string) { return rights, "ada" },
		Prefix:    "/console",
		Timeout:   time.Minute, // for machines that are busy
		Logger:    slog.New(slog.DiscardHandler),
	}
	for _, c := range change {
		c(&cfg)
	}
	s.page, err = console.New(cfg)
	require.NoError(t, err)
	mux := http.NewServeMux()
	mux.Handle(cfg.Prefix+"/", s.page)
	s.server = httptest.NewServer(mux)
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	s.client = &http.Client{Jar: jar}
	s.base = cfg.Prefix + "/orders"
	t.Cleanup(func() {
		s.page.Close()
		s.client.CloseIdleConnections()
		s.server.Close()
	})
	return s
}

// named lets a login before the console name who sends a request. Without it that is Ada.
func named(c *console.Config) {
	c.Authorize = func(r *http.Request) (console.Rights, string) {
		return everything, cmp.Or(r.Header.Get("X-User"), "ada")
	}
}

// as returns the site behind the login of somebody else.
func (s *site) as(user string) *site {
	other := *s
	other.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Set("X-User", user)
		s.page.ServeHTTP(w, r)
	}))
	s.t.Cleanup(other.server.Close)
	return &other
}

func (s *site) exec(sql string, args ...any) {
	s.t.Helper()
	_, err := s.pool.Exec(context.Background(), strings.ReplaceAll(sql, "{schema}", s.schema), args...)
	require.NoError(s.t, err)
}

func (s *site) count(sql string) (n int) {
	s.t.Helper()
	require.NoError(s.t, s.pool.QueryRow(context.Background(), strings.ReplaceAll(sql, "{schema}", s.schema)).Scan(&n))
	return n
}

// comes waits until a query counts so many.
func (s *site) comes(n int, sql string) {
	s.t.Helper()
	require.Eventually(s.t, func() bool { return s.count(sql) == n }, wait, 20*time.Millisecond, sql)
}

// answer is what a request got.
type answer struct {
	Status int
	Header http.Header
}

// do sends a request, and returns the answer with its body.
func (s *site) do(r *http.Request) (answer, string) {
	s.t.Helper()
	response, err := s.client.Do(r)
	require.NoError(s.t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(s.t, err)
	return answer{response.StatusCode, response.Header}, string(body)
}

// ask returns a page, whatever its status.
func (s *site) ask(path string) (answer, string) {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, s.server.URL+s.base+path, nil)
	require.NoError(s.t, err)
	return s.do(r)
}

// get returns a page, which must have the status.
func (s *site) get(status int, path string) string {
	s.t.Helper()
	got, body := s.ask(path)
	require.Equal(s.t, status, got.Status, "%s: %s", path, body)
	return body
}

// post sends a form, which must be answered by the status.
func (s *site) post(status int, path string, form url.Values, change ...func(*http.Request)) string {
	s.t.Helper()
	got, body := s.send(path, form, change...)
	require.Equal(s.t, status, got.Status, "%s: %s", path, body)
	return body
}

// send sends a form, whatever it is answered by.
func (s *site) send(path string, form url.Values, change ...func(*http.Request)) (answer, string) {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, s.server.URL+s.base+path, strings.NewReader(form.Encode()))
	require.NoError(s.t, err)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	for _, c := range change {
		c(r)
	}
	return s.do(r)
}

var hidden = regexp.MustCompile(`<input type="hidden" name="([^"]*)" value="([^"]*)">`)

// form is what the form of a page would send, without those of the frame.
func (s *site) form(page string) url.Values {
	s.t.Helper()
	_, main, found := strings.Cut(page, "<main")
	require.True(s.t, found)
	form := url.Values{}
	for _, field := range hidden.FindAllStringSubmatch(main, -1) {
		form.Add(field[1], html.UnescapeString(field[2]))
	}
	require.NotEmpty(s.t, form.Get("csrf"), main)
	return form
}

// act opens the page that asks, and confirms it.
func (s *site) act(status int, path string, with ...string) string {
	s.t.Helper()
	form := s.form(s.get(http.StatusOK, path))
	for i := 0; i < len(with); i += 2 {
		form.Set(with[i], with[i+1])
	}
	path, _, _ = strings.Cut(path, "?")
	return s.post(status, path, form)
}

// reveal asks to see the payload of a page.
func (s *site) reveal(status int, path string) string {
	s.t.Helper()
	return s.post(status, path, url.Values{"csrf": {s.form(s.get(http.StatusOK, path)).Get("csrf")}})
}

// text is a page without its markup.
func text(page string) string {
	page = regexp.MustCompile(`(?s)<svg.*?</svg>|<[^>]*>`).ReplaceAllString(page, " ")
	return html.UnescapeString(strings.Join(strings.Fields(page), " "))
}

// fail puts events into the consumers' tables: e1 and e2 dead, e3 blocked behind e2, and e1 at another consumer waits for a retry.
func (s *site) fail() {
	s.exec(`insert into {schema}.consumer (name) values ('shop/book'), ('shop/bill')`)
	s.exec(`insert into {schema}.claim_failed (consumer, record, event_id, key, state, attempts, reason, error, history, handler, topic, headers, payload)
		select c, gen_random_uuid(), e, k, s, 3, r, x, '[{"at": "2026-01-02T03:04:05Z", "by": "host/1", "error": "first"}]', 'h', 'parcel.packed',
			convert_to('{"uuid": "' || e || '", "metadata": {"trace": "t-1", "token": "hunter2"}}', 'UTF8'), convert_to(p, 'UTF8')
		from (values (1, 'e1', '', 'dead', 'attempts', 'no user 7', '{"email": "ada@example.com", "n": 12345678901234567890}'),
			(1, 'e2', 'k', 'dead', 'attempts', 'no user 8', '{"a": [{"Email": "bob@example.com"}]}'), (1, 'e3', 'k', 'blocked', 'blocked', '', 'x'),
			(2, 'e1', '', 'retrying', 'error', 'oops', 'y')) v(c, e, k, s, r, x, p)`)
	s.exec(`insert into {schema}.claim_key values (1, 'k')`)
}

func TestEmptyPages(t *testing.T) {
	t.Parallel()
	s := open(t, console.Look)
	for path, says := range map[string]string{
		"/": "No consumer has claimed an event.", "/outbox": "No event waits, and no topic is paused.", "/consumers": "No consumer has claimed an event.", "/dead": "No dead letters.", "/event": "Paste an ID", "/event?id=e9": "No table has this event.",
		"/effects": "All outcomes are known.", "/effects?state=all": "None.", "/keys": "None is stored.", "/keys?key=k": "Nothing is stored for this key", "/audit": "Nobody has changed anything.",
	} {
		page := s.get(http.StatusOK, path)
		assert.Contains(t, text(page), says, path)
		assert.NotContains(t, page, "ZgotmplZ", path)
		assert.Contains(t, page, `<html lang="en">`)
	}
	assert.Contains(t, s.get(http.StatusNotFound, "/nothing"), "there is no such page")
}

func TestWithoutTables(t *testing.T) {
	t.Parallel()
	s := open(t, console.Look, func(c *console.Config) { c.Databases[0].Schema = "no_such_schema" })
	assert.Contains(t, text(s.get(http.StatusOK, "/")), `schema "no_such_schema" has no tables of Millrace`)
	for path, says := range map[string]string{
		"/outbox": "This schema has no outbox.", "/consumers": "No consumer has claimed an event in this schema.", "/dead": "No consumer has claimed an event in this schema.", "/effects": "This schema has no ledger of effects.",
		"/keys": "This schema has no answers", "/audit": "Nobody has changed anything.", "/event?id=e1": `has no tables of Millrace`,
	} {
		assert.Contains(t, text(s.get(http.StatusOK, path)), says, path)
	}
}

func TestOverview(t *testing.T) {
	t.Parallel()
	s := open(t, console.Look)
	s.fail()
	page := text(s.get(http.StatusOK, "/"))
	assert.Contains(t, page, "1 thing needs a person.")
	assert.Contains(t, page, "2 dead letters with 1 different error")
	assert.Contains(t, page, "Dead letters 2")
	assert.Contains(t, page, "shop/book – 2 dead")
	assert.Contains(t, page, "shop/bill – none dead")
	assert.Contains(t, page, "millrace dead list --groups --schema "+s.schema, "the commands reach this schema")
}
