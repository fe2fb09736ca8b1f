package console_test

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/console"
)

// Without Config.Authorize only this machine is answered, and nothing can be changed.
func TestLoopbackAlone(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		remote, host, header string
		allowed              bool
	}{
		{"127.0.0.1:1", "localhost:8026", "", true},
		{"127.0.0.1:1", "127.0.0.1", "", true},
		{"[::1]:1", "[::1]:8026", "", true},
		{"[::ffff:127.0.0.1]:1", "localhost", "", true},
		{"10.0.0.1:1", "localhost", "", false},
		{"192.168.1.1:1", "localhost", "", false},
		{"[2001:db8::1]:1", "localhost", "", false},
		{"", "localhost", "", false},
		{"localhost:1", "localhost", "", false},
		{"127.0.0.1:1", "evil.example", "", false},
		{"127.0.0.1:1", "127.0.0.1.evil.example", "", false},
		{"127.0.0.1:1", "localhost.evil.example:8026", "", false},
		{"127.0.0.1:1", "", "", false},
		{"127.0.0.1:1", "[", "", false},
		{"127.0.0.1:1", "localhost", "X-Forwarded-For", false},
		{"127.0.0.1:1", "localhost", "Forwarded", false},
		{"127.0.0.1:1", "localhost", "Via", false},
		{"127.0.0.1:1", "localhost", "X-Real-Ip", false},
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
		r.RemoteAddr, r.Host = c.remote, c.host
		if c.header != "" {
			r.Header.Set(c.header, "127.0.0.1")
		}
		rights, _ := console.Loopback(console.Look, "")(r)
		assert.Equal(t, c.allowed, rights == console.Look, "%+v", c)
		r.Proto, r.ProtoMajor, r.ProtoMinor = "HTTP/1.0", 1, 0
		rights, _ = console.Loopback(console.Look, "")(r)
		assert.Zero(t, rights, "nginx sends no header by itself, and speaks HTTP/1.0 before its version 1.29.7: %+v", c)
	}
	for name, values := range map[string][]string{"X-Forwarded-For": {""}, "Forwarded": {"", "for=10.0.0.1"}, "X-Forwarded-Proto": {"https"}, "X-Envoy-Internal": {"true"}} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
		r.RemoteAddr, r.Host, r.Header[name] = "127.0.0.1:1", "localhost", values
		rights, _ := console.Loopback(console.Look, "")(r)
		assert.Zero(t, rights, name)
	}
	s := open(t, 0, func(c *console.Config) { c.Authorize = nil })
	s.fail()
	assert.Contains(t, text(s.get(http.StatusOK, "/dead")), "You may only look. Ask for the right to act.")
	assert.Contains(t, text(s.get(http.StatusOK, "/")), "may look, payloads hidden")
}

func TestRights(t *testing.T) {
	t.Parallel()
	nobody := open(t, 0)
	for _, path := range []string{"/", "/outbox", "/consumers", "/dead", "/event?id=e1", "/effects", "/keys", "/audit", "/live", "/do/replay"} {
		assert.Contains(t, nobody.get(http.StatusForbidden, path), "You may not see this console.", path)
	}
	open(t, console.Act|console.Payloads).get(http.StatusForbidden, "/") // who may not look may do nothing

	for name, s := range map[string]*site{
		"may look": open(t, console.Look|console.Payloads), "read-only": open(t, everything, func(c *console.Config) { c.ReadOnly = true }),
		"nobody by name": open(t, 0, func(c *console.Config) {
			c.Authorize = func(*http.Request) (console.Rights, string) { return everything, "" }
		}),
	} {
		s.fail()
		page := s.get(http.StatusOK, "/do/replay")
		assert.Contains(t, text(page), "You may only look. Ask for the right to act.", name)
		_, rest, _ := strings.Cut(page, `name="csrf" value="`)
		token, _, _ := strings.Cut(rest, `"`)
		s.post(http.StatusForbidden, "/do/replay", url.Values{"csrf": {token}, "expected": {"2"}})
		assert.Equal(t, 2, s.count(`select count(*) from {schema}.claim_failed where state = 'dead'`), name)
	}
}

// A form is answered where the rights, and the name of who has them, depend on the database: by its name, or by the path behind the prefix.
func TestFormsWhereRightsDependOnTheDatabase(t *testing.T) {
	t.Parallel()
	for name, is := range map[string]func(r *http.Request) bool{
		"by name": func(r *http.Request) bool { return r.PathValue("db") == "orders" },
		"by path": func(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, "/orders/") },
	} {
		s := open(t, everything, func(c *console.Config) {
			c.Authorize = func(r *http.Request) (console.Rights, string) {
				if is(r) {
					return everything, "ada"
				}
				return 0, ""
			}
		})
		s.fail()
		page := s.get(http.StatusOK, "/outbox")
		_, rest, _ := strings.Cut(page, `name="csrf" value="`)
		token, _, _ := strings.Cut(rest, `"`)
		form := url.Values{"csrf": {token}, "theme": {"dark"}, "back": {"/orders/outbox"}}
		s.base = "/console"
		assert.Contains(t, s.post(http.StatusOK, "/theme", form), `data-theme="dark"`, name)
		form.Set("back", "/elsewhere/")
		s.post(http.StatusForbidden, "/theme", form)
		s.base = "/console/orders"
		s.act(http.StatusOK, "/do/discard?event=e1&consumer=shop%2Fbook")
		assert.Equal(t, 1, s.count(`select count(*) from {schema}.claim_audit where actor = 'ada' and action = 'discard'`), name)
	}
}

// Nobody but our own pages sends our forms.
func TestForgedForms(t *testing.T) {
	t.Parallel()
	s := open(t, everything)
	s.fail()
	form := s.form(s.get(http.StatusOK, "/do/replay"))
	with := func(name, value string) url.Values {
		f := url.Values{}
		for k, v := range form {
			f[k] = v
		}
		f.Set(name, value)
		return f
	}
	header := func(name, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(name, value) }
	}
	s.post(http.StatusForbidden, "/do/replay", url.Values{})
	s.post(http.StatusForbidden, "/do/replay", with("csrf", ""))
	s.post(http.StatusForbidden, "/do/replay", with("csrf", form.Get("csrf")[1:]))
	s.post(http.StatusForbidden, "/do/replay", form, header("Sec-Fetch-Site", "cross-site"))
	s.post(http.StatusForbidden, "/do/replay", form, header("Sec-Fetch-Site", "same-site"))
	s.post(http.StatusForbidden, "/do/replay", form, header("Origin", "https://evil.example"))
	s.post(http.StatusForbidden, "/do/replay", form, header("Origin", "null"))
	jar := s.client.Jar
	s.client.Jar = nil
	s.post(http.StatusForbidden, "/do/replay", form) // without the session's cookie
	s.post(http.StatusForbidden, "/do/replay", form, header("Cookie", "millrace_session=AAAAAAAAAAAAAAAAAAAAAAAAAA"))
	s.client.Jar = jar
	other := open(t, everything)
	s.post(http.StatusForbidden, "/do/replay", with("csrf", other.form(func() string { other.fail(); return other.get(http.StatusOK, "/do/replay") }()).Get("csrf")))

	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.server.URL+s.base+"/do/replay?"+form.Encode(), nil)
	require.NoError(t, err)
	got, _ := s.do(r)
	assert.Equal(t, http.StatusOK, got.Status, "a GET asks, and does nothing")
	for _, method := range []string{http.MethodPut, http.MethodDelete, http.MethodPatch, http.MethodOptions, "TRACE"} {
		r, err := http.NewRequestWithContext(t.Context(), method, s.server.URL+s.base+"/do/replay", nil)
		require.NoError(t, err)
		got, _ := s.do(r)
		assert.Equal(t, http.StatusMethodNotAllowed, got.Status, method)
	}
	assert.Equal(t, 2, s.count(`select count(*) from {schema}.claim_failed where state = 'dead'`))
	s.post(http.StatusOK, "/do/replay", form, header("Sec-Fetch-Site", "same-origin"), header("Origin", s.server.URL))
	assert.Zero(t, s.count(`select count(*) from {schema}.claim_failed where state = 'dead'`), "our own form does it")
}

// The log tells who did what, what was refused and what failed, and nothing that somebody may not see: no payload, response, cookie or
// token, and nothing of a query.
func TestNothingSecretIsLogged(t *testing.T) {
	t.Parallel()
	var log lockedBuffer
	var refused atomic.Bool
	s := open(t, everything, func(c *console.Config) {
		c.Secret = []byte("secret-of-forms-secret-of-forms-32")
		c.Logger = slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		c.Authorize = func(*http.Request) (console.Rights, string) {
			if refused.Load() {
				return 0, ""
			}
			return everything, "ada"
		}
	})
	paths := s.revealing()
	s.exec(`update {schema}.claim_failed set payload = convert_to('{"card": "4929-secret"}', 'UTF8') where event_id in ('e1', 'e2')`)
	s.exec(`update {schema}.effect set state = 'doubt', response = '"4929-secret"'`)
	s.exec(`update {schema}.idempotency_key set body = convert_to('4929-secret', 'UTF8'), headers = convert_to('Set-Cookie: 4929-secret', 'UTF8')`)
	secret := func(r *http.Request) { // what browsers and proxies send
		r.AddCookie(&http.Cookie{Name: "login", Value: "4929-secret"})
		r.Header.Set("Authorization", "Bearer 4929-secret")
	}
	for path := range paths {
		s.reveal(http.StatusOK, path)
		s.post(http.StatusForbidden, path, url.Values{"csrf": {"4929-secret"}}, secret)
	}
	form := s.form(s.changes(http.StatusOK, `{"card": "4929-secret-2"}`))
	token := form.Get("csrf")
	s.post(http.StatusForbidden, "/do/edit", url.Values{"csrf": {"4929-secret"}, "payload": {"4929-secret"}}, secret)
	s.exec(`create function {schema}.refuse() returns trigger language plpgsql as $$ begin raise 'no space left' using detail = new::text; end $$`)
	for _, table := range []string{"claim_audit", "claim_failed", "effect_resolution", "idempotency_key_audit"} {
		s.exec(`create trigger refuse before insert or update on {schema}.` + table + ` for each row execute function {schema}.refuse()`)
	}
	s.post(http.StatusInternalServerError, "/do/edit", form, secret)
	s.act(http.StatusInternalServerError, "/do/resolve?key=shop/card/e1&happened=yes", "response", `{"card": "4929-secret"}`)
	for path := range paths {
		s.reveal(http.StatusInternalServerError, path)
	}
	for _, table := range []string{"claim_audit", "claim_failed", "effect_resolution", "idempotency_key_audit"} {
		s.exec(`drop trigger refuse on {schema}.` + table)
	}
	s.post(http.StatusOK, "/do/edit", form, secret)
	s.act(http.StatusOK, "/do/resolve?key=shop/card/e1&happened=yes", "response", `{"card": "4929-secret"}`)
	s.get(http.StatusNotFound, "/dead/event?id=4929-secret")
	s.get(http.StatusBadRequest, "/dead?since=4929-secret")
	refused.Store(true)
	s.get(http.StatusForbidden, "/dead?key=4929-secret&csrf="+url.QueryEscape(token))
	s.post(http.StatusForbidden, "/do/edit", form, secret)
	at, err := url.Parse(s.server.URL + s.base)
	require.NoError(t, err)
	cookies := s.client.Jar.Cookies(at)
	require.NotEmpty(t, cookies)

	told := log.String()
	for _, says := range []string{"console action", `"user":"ada"`, `"action":"edit"`, "no space left", "console action failed", "console page failed", "console refused a request", "console refused a form"} {
		assert.Contains(t, told, says)
	}
	for _, kept := range []string{"4929-secret", "secret-of-forms", token, cookies[0].Value, "csrf"} {
		require.NotEmpty(t, kept)
		assert.NotContains(t, told, kept)
	}
}

// lockedBuffer is what a log was written to.
type lockedBuffer struct {
	mu  sync.Mutex
	all strings.Builder
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.String()
}

const evil = `"><script>alert(1)</script><img src=x onerror=alert(2)>'{{.}}</pre>`

// What others have written stays text, wherever it stands.
func TestMarkupOfOthersIsText(t *testing.T) {
	t.Parallel()
	s := open(t, everything)
	s.exec(`insert into {schema}.consumer (name) values ('shop/' || $1)`, evil)
	s.exec(`insert into {schema}.claim_failed (consumer, record, event_id, key, state, attempts, reason, error, history, handler, topic, headers, payload)
		select 1, gen_random_uuid(), $1, $1, 'dead', 3, 'attempts', $1, jsonb_build_array(jsonb_build_object('at', '2026-01-02T03:04:05Z', 'by', $1::text, 'error', $1::text)), $1, $1,
			convert_to(jsonb_build_object('uuid', $1::text, 'metadata', jsonb_build_object($1::text, $1::text))::text, 'UTF8'), convert_to($1, 'UTF8')`, evil)
	s.exec(`insert into {schema}.claim_key values (1, $1)`, evil)
	q := url.QueryEscape(evil)
	for _, path := range []string{
		"/", "/dead", "/dead?filter=" + q, "/dead?key=" + q, "/dead?consumer=" + q, "/dead?state=" + q, "/dead?since=" + q, "/dead/event?id=" + q, "/event?id=" + q, "/do/replay?key=" + q, "/do/discard?event=" + q,
		"/do/pause?topic=" + q, "/do/resume?topic=" + q, "/do/outbox-retry?group=" + q, "/outbox?group=" + q, "/keys?key=" + q, "/audit", "/do/" + url.PathEscape(evil), "/" + url.PathEscape(evil), "/effects?key=" + q,
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.server.URL+s.base+path, nil)
		require.NoError(t, err)
		got, page := s.do(r)
		assert.Less(t, got.Status, http.StatusInternalServerError, path)
		assert.NotContains(t, page, "<script>alert", path)
		assert.NotContains(t, page, "<img", path)
		assert.NotContains(t, page, "ZgotmplZ", path)
		assert.Equal(t, "nosniff", got.Header.Get("X-Content-Type-Options"), path)
	}
	assert.Contains(t, s.get(http.StatusOK, "/dead/event?id="+q), "&lt;script&gt;alert(1)", "it is shown as it is")
	assert.Contains(t, text(s.act(http.StatusOK, "/do/replay?key="+q, "note", evil)), " of 1 ")
	s.comes(1, `select count(*) from {schema}.claim_audit`)
	for _, path := range []string{"/replay?id=1", "/dead", "/audit", "/do/continue?id=1", "/do/continue?id=1&rate=" + q, "/do/stop?id=" + q, "/audit?before=" + q, "/dead?after=" + q} {
		_, page := s.ask(path)
		assert.NotContains(t, page, "<script>alert", path)
	}
}

// A filter is a value, whatever it holds.
func TestStatementsInFilters(t *testing.T) {
	t.Parallel()
	s := open(t, everything)
	s.fail()
	for _, text := range []string{
		`' or 1=1 --`, `'; drop table claim_failed; --`, `" or ""="`, `%`, `_`, `\`, `$1`, `e1') union select 1 --`, `{schema}`, `*/ select pg_sleep(60) /*`, "a\nb", "\ufeff",
	} {
		q := url.QueryEscape(text)
		for _, path := range []string{"/dead?consumer=" + q, "/dead?topic=" + q, "/dead?key=" + q, "/dead?group=" + q, "/dead?reason=" + q, "/dead?event=" + q, "/keys?key=" + q, "/event?id=" + q, "/outbox?group=" + q} {
			assert.NotContains(t, s.get(http.StatusOK, path), "e2</a>", "%s selects nothing", path)
		}
	}
	s.get(http.StatusBadRequest, "/dead?key=%00")
	s.get(http.StatusNotFound, "/dead/event?id=%00")
	s.get(http.StatusNotFound, "/dead/event?id=%ff%fe")
	assert.Contains(t, s.get(http.StatusOK, "/event?id=%00"), "This can be no event ID.")
	assert.Equal(t, 4, s.count(`select count(*) from {schema}.claim_failed`))
}

func TestPathsAndSizes(t *testing.T) {
	t.Parallel()
	s := open(t, everything)
	s.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	for _, path := range []string{
		"/../../../etc/passwd", "/..%2f..%2fconsole.go", "/%2e%2e/static/console.go", "//evil.example", "/do/..%2f..%2f", "/dead/..%2fevent", "/static/../templates/layout.html", "/do/", "/do/nothing",
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.server.URL+s.base+path, nil)
		require.NoError(t, err)
		got, page := s.do(r)
		assert.NotEqual(t, http.StatusOK, got.Status, path)
		assert.NotContains(t, page, "package console", path)
		assert.NotContains(t, got.Header.Get("Location"), "evil.example/", path)
	}
	s.get(http.StatusRequestURITooLong, "/dead?key="+strings.Repeat("x", 9000))
	s.get(http.StatusRequestURITooLong, "/dead?key="+strings.Repeat("%41", 3000))
	s.post(http.StatusRequestEntityTooLarge, "/do/replay", url.Values{"note": {strings.Repeat("x", 100_000)}})
	s.post(http.StatusRequestEntityTooLarge, "/do/replay", url.Values{}, func(r *http.Request) { r.URL.RawQuery = "%zz" })
	assert.Contains(t, text(s.get(http.StatusBadRequest, "/dead?filter="+strings.Repeat("x", 2500))), "want 2000 at most")
	s.base = "/console"
	for _, path := range []string{"/static/console.go", "/static/", "/static/layout.html", "/nowhere/", "/ORDERS/"} {
		s.get(http.StatusNotFound, path)
	}
}

func TestHeaders(t *testing.T) {
	t.Parallel()
	s := open(t, everything)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.server.URL+s.base+"/", nil)
	require.NoError(t, err)
	got, page := s.do(r)
	policy := got.Header.Get("Content-Security-Policy")
	assert.Contains(t, policy, "default-src 'none'")
	assert.Contains(t, policy, "frame-ancestors 'none'")
	assert.NotContains(t, policy, "unsafe")
	assert.Equal(t, "no-store", got.Header.Get("Cache-Control"))
	assert.Contains(t, got.Header.Get("Set-Cookie"), "HttpOnly; SameSite=Lax")
	assert.NotRegexp(t, `\sstyle=|\son[a-z]+=|<script>|<style|https?://`, page, "the policy lets nothing inline run, and nothing comes from elsewhere")
	s.base = "/console"
	for file, says := range map[string]string{"console.css": "--canvas", "console.js": "EventSource", "wheel.svg": "<svg"} {
		assert.Contains(t, s.get(http.StatusOK, "/static/"+file), says)
	}
}

// The choice of a theme leads back to a page of ours, and to no other.
func TestTheme(t *testing.T) {
	t.Parallel()
	s := open(t, console.Look)
	s.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	page := s.get(http.StatusOK, "/dead?consumer=c")
	_, rest, _ := strings.Cut(page, `name="csrf" value="`)
	token, _, _ := strings.Cut(rest, `"`)
	s.base = "/console"
	for back, to := range map[string]string{
		"/orders/dead?consumer=c": "/console/orders/dead?consumer=c", "//evil.example": "/console/", "https://evil.example": "/console/", "javascript:alert(1)": "/console/", `/\evil.example`: "/console/", "": "/console/",
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.server.URL+"/console/theme", strings.NewReader(url.Values{"csrf": {token}, "theme": {"dark"}, "back": {back}}.Encode()))
		require.NoError(t, err)
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		got, _ := s.do(r)
		assert.Equal(t, http.StatusSeeOther, got.Status)
		assert.Equal(t, to, got.Header.Get("Location"), back)
	}
	assert.Contains(t, s.get(http.StatusOK, "/orders/"), `data-theme="dark"`)
}

func TestConfiguration(t *testing.T) {
	t.Parallel()
	_, err := console.New(console.Config{Mask: []string{"email", " "}})
	assert.EqualError(t, err, "Config.Databases is empty: want one or more\nConfig.Mask[1] is \" \": want the name of a field or header")
	pool := &pgxpool.Pool{}
	_, err = console.New(console.Config{
		Databases: []console.Database{{Name: "a", Pool: pool}, {Name: "a"}, {Name: "static", Pool: pool}, {Name: "A/b", Pool: pool, Schema: "no schema"}},
		Prefix:    "console/", Secret: []byte("short"), Timeout: 1, ActTimeout: 1,
	})
	require.Error(t, err)
	for _, says := range []string{
		`Databases[1].Name is "a": want a name that no other database has`, "Databases[1].Pool is nil", `Databases[2].Name is "static"`, `Databases[3].Name is "A/b"`, `Databases[3].Schema is "no schema"`,
		`Prefix is "console/"`, "Secret has 5 bytes", "Timeout is 1ns", "ActTimeout is 1ns",
	} {
		assert.ErrorContains(t, err, says)
	}
}

// Who may not look is not even told the name of the database.
func TestTheRootTellsNothing(t *testing.T) {
	t.Parallel()
	s := open(t, 0)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.server.URL+"/console/", nil)
	require.NoError(t, err)
	answer, err := http.DefaultTransport.RoundTrip(r) // which follows no redirect
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	assert.Equal(t, http.StatusForbidden, answer.StatusCode)
	assert.Empty(t, answer.Header.Get("Location"))
}
