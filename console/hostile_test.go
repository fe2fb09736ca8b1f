package console_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var evilQuery = url.QueryEscape(evil)

// hostile puts markup into all that others write: IDs, keys, topics, headers, payloads, errors, notes and names.
func (s *site) hostile() {
	s.exec(`insert into {schema}.consumer (name) values ('shop/' || $1)`, evil)
	s.exec(`insert into {schema}.claim_failed (consumer, record, event_id, key, state, attempts, reason, error, history, handler, topic, headers, payload)
		select 1, gen_random_uuid(), $1, $1, 'dead', 3, 'attempts', $1, jsonb_build_array(jsonb_build_object('at', '2026-01-02T03:04:05Z', 'by', $1::text, 'error', $1::text)), $1, $1,
			convert_to(jsonb_build_object('uuid', $1::text, 'metadata', jsonb_build_object($1::text, $1::text))::text, 'UTF8'), convert_to($1, 'UTF8')`, evil)
	s.exec(`insert into {schema}.claim_key values (1, $1, 1, now())`, evil)
	s.exec(`insert into {schema}.claim_run (service, name, beat_at, paused)
		values ('shop', $1, now() + interval '1 hour', jsonb_build_array(jsonb_build_object('consumer', 'shop/' || $1, 'seconds', 5, 'left', 5, 'error', $1::text)))`, evil)
	s.exec(`insert into {schema}.journal values (date_trunc('minute', now()), 1, 1, 1, 1, 1, 1, 1, 1)`)
	s.exec(`insert into {schema}.claim_audit (actor, action, consumer, event_id, detail) values ($1, 'edit', $1, $1, jsonb_build_object('note', $1::text, 'error', $1::text))`, evil)
	s.exec(`insert into {schema}.claim_replay (actor, note, selection, rate, max_failed, up_to, selected, state, reason) values ($1, $1, jsonb_build_object('key', $1::text), 0, 1, 100, 3, 'stopped', $1)`, evil)
	s.pending(evil, evil)
	s.exec(`insert into {schema}.outbox_failed (hash, shard, seq, event_id, topic, key, headers, payload, created_at, state, attempts, reason)
		values (1, 3, 1, $1, $1, $1, convert_to('{}', 'UTF8'), '', now(), 'dead', 3, $1)`, evil)
	s.exec(`insert into {schema}.outbox_topic (topic, paused_at, paused_by, pause_note) values ($1 || '2', now(), $1, $1)`, evil)
	s.exec(`insert into {schema}.outbox_journal select date_trunc('minute', now()), topic, gen_random_uuid(), 1, 1 from unnest(array[$1::text, '']) topic`, evil)
	s.archived(evil, 1)
	s.exec(`update {schema}.outbox_archive set key = $1`, evil)
	s.exec(`insert into {schema}.outbox_audit (actor, action, events, detail) values ($1, 'replay', 0, jsonb_build_object('note', $1::text, 'topic', $1::text, 'key', $1::text, 'to', $1::text))`, evil)
	s.exec(`insert into {schema}.outbox_replay (id, topic, key, until, to_topic, published_at, rate, stopped_by, selected, more) values (1, $1, $1, now(), $1, '-infinity', 0, $1, 1, true)`, evil)
	s.exec(`insert into {schema}.effect (created_at, key, state, token, calls, first_called_at, called_at, until, reason) select now(), $1, 'doubt', gen_random_uuid(), 1, now(), now(), now(), $1`, evil)
	s.exec(`insert into {schema}.idempotency_key (id, service, scope, key, request, fingerprint, status, headers, body)
		values (sha256('k'), $1, '\x01', $1, $1, '', 201, convert_to('X-A: ' || $1, 'UTF8'), convert_to($1, 'UTF8'))`, evil)
}

// content is a digest of all rows of all tables.
func (s *site) content() (digest string) {
	s.t.Helper()
	rows, err := s.pool.Query(s.t.Context(), `select tablename from pg_tables where schemaname = $1 order by 1`, s.schema)
	require.NoError(s.t, err)
	defer rows.Close()
	var all []string
	for rows.Next() {
		var table string
		require.NoError(s.t, rows.Scan(&table))
		all = append(all, fmt.Sprintf(`(select coalesce(string_agg(t::text, ',' order by t::text), '') from %s.%s t)`, s.schema, table))
	}
	require.NoError(s.t, rows.Err())
	require.Greater(s.t, len(all), 10)
	require.NoError(s.t, s.pool.QueryRow(s.t.Context(), `select md5(`+strings.Join(all, ` || '|' || `)+`)`).Scan(&digest))
	return digest
}

var (
	quoted  = regexp.MustCompile(`"[^"]*"`)
	ownTags = strings.NewReplacer(`<script src="/console/static/console.js" defer></script>`, "")
	foreign = regexp.MustCompile(`(?i)<(script|img|iframe|object|embed|base|style)|<[a-z][^>]*\s(on[a-z]+|style|srcdoc)=|ZgotmplZ`)
)

// markup is what a page has that is not the console's own: html/template writes quotes only around attributes.
func markup(page string) string {
	return foreign.FindString(quoted.ReplaceAllString(ownTags.Replace(page), `""`))
}

func TestMarkupIsFound(t *testing.T) {
	t.Parallel()
	for _, page := range []string{`<p><script>x</script>`, `<a href="x" onclick="y">`, `<p style="a">`, `<IMG src=x>`, `<script src="/console/static/other.js" defer></script>`} {
		assert.NotEmpty(t, markup(page), page)
	}
	assert.Empty(t, markup(`<script src="/console/static/console.js" defer></script><input value="&lt;img onerror=x&gt;"> &lt;script&gt; onclick=`))
}

// hostileRequest is one as it goes through the wire. In all its parts {evil} is markup, {sql} a statement, {csrf} the token of the session,
// {long} and {huge} 9 KB and 2 MB.
type hostileRequest struct {
	what    string
	line    string // method and target
	headers string // one a line; "-Name" leaves one out that is there otherwise
	body    string
	want    int
}

const form = "csrf={csrf}&expected=2"

var hostileRequests = []hostileRequest{
	// Markup, in what is asked for and in what is stored.
	{"stored markup", "GET /console/orders/", "", "", 200},
	{"stored markup", "GET /console/orders/outbox", "", "", 200},
	{"stored markup", "GET /console/orders/consumers", "", "", 200},
	{"stored markup", "GET /console/orders/dead?state=all", "", "", 200},
	{"stored markup", "GET /console/orders/audit", "", "", 200},
	{"stored markup", "GET /console/orders/replay?id=1", "", "", 200},
	{"stored markup", "GET /console/orders/keys", "", "", 200},
	{"stored markup", "GET /console/orders/outbox/archive", "", "", 200},
	{"stored markup", "GET /console/orders/outbox/archive/replay?id=1", "", "", 200},
	{"stored markup", "GET /console/orders/do/archive-continue?id=1", "", "", 200},
	{"markup in a filter of the archive", "GET /console/orders/outbox/archive?topic={evil}&key={evil}", "", "", 200},
	{"markup in a time of the archive", "GET /console/orders/outbox/archive?since={evil}", "", "", 400},
	{"markup in a plan of the archive", "GET /console/orders/do/archive-replay?topic={evil}&to={evil}", "", "", 200},
	{"markup in a time of a plan", "GET /console/orders/do/archive-replay?until={evil}", "", "", 400},
	{"markup in a place in the archive", "GET /console/orders/outbox/archive?behind={evil}", "", "", 404},
	{"markup in a payload", "GET /console/orders/dead/event?id={evil}", "", "", 200},
	{"markup in a form", "GET /console/orders/dead/edit?id={evil}", "", "", 200},
	{"markup in an ID", "GET /console/orders/event?id={evil}", "", "", 200},
	{"markup in a key", "GET /console/orders/dead?key={evil}", "", "", 200},
	{"markup in a time", "GET /console/orders/dead?since={evil}", "", "", 400},
	{"markup in a filter", "GET /console/orders/dead?filter={evil}", "", "", 303},
	{"markup in a name of a filter", "GET /console/orders/dead?filter={evil}:{evil}", "", "", 400},
	{"markup in a cause", "GET /console/orders/outbox?group={evil}", "", "", 200},
	{"markup in an effect", "GET /console/orders/effects?state=all&key={evil}", "", "", 200},
	{"markup in an Idempotency-Key", "GET /console/orders/keys?key={evil}", "", "", 200},
	{"markup in a state", "GET /console/orders/effects?state={evil}", "", "", 404},
	{"markup in a topic", "GET /console/orders/do/pause?topic={evil}", "", "", 200},
	{"markup in a pace", "GET /console/orders/do/continue?id=1&rate={evil}", "", "", 200},
	{"markup in an action", "GET /console/orders/do/{evil}", "", "", 404},
	{"markup in a database", "GET /console/{evil}/", "", "", 404},
	{"markup in headers", "GET /console/orders/dead", "User-Agent: <script>\nReferer: javascript:alert(1)\nAccept-Language: <img src=x>", "", 200},
	{"markup in cookies", "GET /console/orders/dead", "-Cookie\nCookie: millrace_theme=\"><script>; millrace_session=<script>", "", 200},
	{"markup in a note", "POST /console/orders/do/replay?", "", "csrf={csrf}&expected=7&note={evil}", 409},
	{"markup in a payload that is edited", "POST /console/orders/dead/edit", "", "csrf={csrf}&id={evil}&payload={evil}{evil}", 200},

	// Statements.
	{"SQL in a consumer", "GET /console/orders/dead?consumer={sql}", "", "", 200},
	{"SQL on the page of consumers", "GET /console/orders/consumers?name={sql}", "", "", 200},
	{"SQL in a topic", "GET /console/orders/dead?topic={sql}", "", "", 200},
	{"SQL in a cause", "GET /console/orders/dead?group={sql}", "", "", 200},
	{"SQL in a reason", "GET /console/orders/dead?reason={sql}", "", "", 200},
	{"SQL in a time", "GET /console/orders/dead?until={sql}", "", "", 400},
	{"SQL in an event", "GET /console/orders/event?id={sql}", "", "", 200},
	{"SQL in an effect", "GET /console/orders/effects?key={sql}", "", "", 404},
	{"SQL in a page", "GET /console/orders/dead?after=1{sql}", "", "", 404},
	{"SQL in a page of the audit", "GET /console/orders/audit?before=1{sql}", "", "", 404},
	{"SQL in an action", "POST /console/orders/do/discard", "", "csrf={csrf}&expected=1&key={sql}", 409},
	{"SQL in a topic of the archive", "GET /console/orders/outbox/archive?topic={sql}&key={sql}", "", "", 200},
	{"SQL in a place in the archive", "GET /console/orders/outbox/archive?behind=1.1.1.1{sql}", "", "", 404},
	{"SQL in a replay of the archive", "POST /console/orders/do/archive-replay", "", "csrf={csrf}&expected=7&topic={sql}&to={sql}", 409},
	{"SQL in a topic to pause", "GET /console/orders/do/pause?topic={sql}", "", "", 200},

	// Paths.
	{"two slashes", "GET //evil.example/console/orders/", "", "", 307},
	{"two slashes within", "GET /console//evil.example/", "", "", 307},
	{"up", "GET /console/orders/../../etc/passwd", "", "", 307},
	{"up, encoded", "GET /console/%2e%2e/%2e%2e/etc/passwd", "", "", 404},
	{"up, slashes encoded", "GET /console/orders/..%2f..%2fconsole.go", "", "", 404},
	{"up from the files", "GET /console/static/..%2ftemplates%2flayout.html", "", "", 404},
	{"up, twice encoded", "GET /console/static/%252e%252e/console.go", "", "", 404},
	{"up, overlong", "GET /console/orders/%c0%ae%c0%ae/x", "", "", 404},
	{"backslashes", `GET /console/orders\..\..\x`, "", "", 404},
	{"a zero in a path", "GET /console/orders/dead%00", "", "", 404},
	{"a database without its slash", "GET /console/orders", "", "", 303},
	{"another host in the line", "GET http://evil.example/console/nowhere/", "", "", 404},
	{"a theme that leads away", "POST /console/theme", "", "csrf={csrf}&theme=dark&back=%2F%2Fevil.example", 303},
	{"a theme that ends a header", "POST /console/theme", "", "csrf={csrf}&theme=dark&back=/x%0d%0aSet-Cookie:a=b", 303},

	// Forms of others.
	{"no token", "POST /console/orders/do/replay", "", "expected=1", 403},
	{"a token in the URL", "POST /console/orders/do/replay?csrf={csrf}", "", "expected=1", 403},
	{"a wrong token before the right one", "POST /console/orders/do/replay", "", "csrf=x&" + form, 403},
	{"no session", "POST /console/orders/do/replay", "-Cookie", form, 403},
	{"another session", "POST /console/orders/do/replay", "-Cookie\nCookie: millrace_session=AAAAAAAAAAAAAAAAAAAAAAAAAA", form, 403},
	{"another site", "POST /console/orders/do/replay", "Sec-Fetch-Site: cross-site", form, 403},
	{"another port", "POST /console/orders/do/replay", "Sec-Fetch-Site: same-site", form, 403},
	{"another origin", "POST /console/orders/do/replay", "Origin: https://evil.example", form, 403},
	{"no origin", "POST /console/orders/do/replay", "Origin: null", form, 403},
	{"a form as text", "POST /console/orders/do/replay", "-Content-Type\nContent-Type: text/plain", form, 403},
	{"a form as JSON", "POST /console/orders/do/replay", "-Content-Type\nContent-Type: application/json", `{"csrf": "{csrf}"}`, 403},
	{"a form in parts", "POST /console/orders/do/replay", "-Content-Type\nContent-Type: multipart/form-data; boundary=x", "--x\r\nContent-Disposition: form-data; name=csrf\r\n\r\n{csrf}\r\n--x--\r\n", 403},
	{"an action by GET", "GET /console/orders/do/replay?" + form, "", "", 200},
	{"an action by HEAD", "HEAD /console/orders/do/replay?" + form, "", "", 200},
	{"a method in a header", "GET /console/orders/do/replay?" + form, "X-HTTP-Method-Override: POST", "", 200},
	{"PUT", "PUT /console/orders/do/replay", "", form, 405},
	{"DELETE", "DELETE /console/orders/dead", "", form, 405},
	{"PATCH", "PATCH /console/orders/dead", "", form, 405},
	{"OPTIONS", "OPTIONS /console/orders/do/replay", "Origin: https://evil.example\nAccess-Control-Request-Method: POST", "", 405},
	{"TRACE", "TRACE /console/orders/", "", "", 405},
	{"a form to a page", "POST /console/orders/dead", "", form, 404},

	// Sizes and numbers.
	{"a long URL", "GET /console/orders/dead?key={long}", "", "", 414},
	{"a long path", "GET /console/orders/{long}", "", "", 414},
	{"a long filter", "GET /console/orders/dead?filter=" + strings.Repeat("x", 2500), "", "", 400},
	{"large headers", "GET /console/orders/", "X-Large: {huge}", "", 431},
	{"a large form", "POST /console/orders/do/replay", "", "csrf={csrf}&note={huge}", 413},
	{"a large payload", "POST /console/orders/dead/edit", "", "csrf={csrf}&id={evil}&payload={huge}", 413},
	{"a length below zero", "POST /console/orders/do/replay", "Content-Length: -1", "", 400},
	{"an unknown encoding", "POST /console/orders/do/replay", "Transfer-Encoding: gzip", "", 501},
	{"a page below zero", "GET /console/orders/dead?after=-1", "", "", 404},
	{"a page above all", "GET /console/orders/dead?after=99999999999999999999", "", "", 404},
	{"the last page", "GET /console/orders/dead?after=9223372036854775807", "", "", 200},
	{"a page of the audit below zero", "GET /console/orders/audit?before=-1.-1.-1.-1", "", "", 404},
	{"a replay below zero", "GET /console/orders/replay?id=-1", "", "", 404},
	{"a replay above all", "GET /console/orders/replay?id=99999999999999999999", "", "", 404},
	{"a pace below zero", "POST /console/orders/do/continue", "", "csrf={csrf}&id=1&expected=0&rate=-5", 400},
	{"a pace above all", "POST /console/orders/do/continue", "", "csrf={csrf}&id=1&expected=0&rate=1000000000", 400},
	{"a replay of the archive above all", "GET /console/orders/outbox/archive/replay?id=99999999999999999999", "", "", 404},
	{"a place in the archive above all", "GET /console/orders/outbox/archive?behind=9223372036854775807.0.0.0", "", "", 404},
	{"the last place in the archive", "GET /console/orders/outbox/archive?behind=0.0.9223372036854775807.32767", "", "", 200},
	{"a time of the archive before all", "GET /console/orders/outbox/archive?since=0000-01-01", "", "", 200},
	{"a time of the archive after all", "GET /console/orders/outbox/archive?since=9999-12-31", "", "", 200},
	{"an age of the archive above all", "GET /console/orders/outbox/archive?since=99999999999999d", "", "", 400},
	{"a rate below zero", "POST /console/orders/do/archive-replay", "", "csrf={csrf}&expected=1&topic={evil}&rate=-5", 400},
	{"a rate above all", "POST /console/orders/do/archive-replay", "", "csrf={csrf}&expected=1&topic={evil}&rate=1000000000", 400},
	{"a replay of the archive by GET", "GET /console/orders/do/archive-replay?csrf={csrf}&expected=1", "", "", 200},
	{"a replay of the archive without a token", "POST /console/orders/do/archive-replay", "", "expected=1", 403},
	{"no text in a topic to replay to", "GET /console/orders/do/archive-replay?to=%ff", "", "", 200},
	{"no text in a topic of the archive", "GET /console/orders/outbox/archive?topic=%ff", "", "", 400},
	{"a percentage that is no number", "POST /console/orders/do/continue", "", "csrf={csrf}&id=1&expected=0&failed=NaN", 400},
	{"a number of events below zero", "POST /console/orders/do/discard", "", "csrf={csrf}&expected=-1", 409},
	{"a number of events above all", "POST /console/orders/do/discard", "", "csrf={csrf}&expected=1e99", 409},

	// What is no text.
	{"no text in a key", "GET /console/orders/dead?key=%ff", "", "", 400},
	{"no text in a filter", "GET /console/orders/dead?filter=%ff%fe", "", "", 303},
	{"no text in an ID", "GET /console/orders/dead/event?id=%ff", "", "", 404},
	{"a zero in an ID", "GET /console/orders/dead/event?id=%00", "", "", 404},
	{"no text in a cause", "GET /console/orders/outbox?group=%ff", "", "", 404},
	{"no text in a topic", "GET /console/orders/do/pause?topic=%ff", "", "", 404},
	{"no text in a path", "GET /console/orders/%ff", "", "", 404},
	{"no text in a note", "POST /console/orders/do/discard", "", "csrf={csrf}&expected=1&note=%ff", 400},
	{"a zero in a note", "POST /console/orders/do/discard", "", "csrf={csrf}&expected=1&note=%00", 400},
	{"a wrong escape", "GET /console/orders/dead%zz", "", "", 400},
	{"a wrong escape in a form", "POST /console/orders/do/discard", "", "csrf={csrf}&expected=1&note=%zz", 413},
}

// Each of them is answered as it should be, with nothing in the page that is not ours, and changes nothing.
func TestHostileRequests(t *testing.T) {
	t.Parallel()
	require.Greater(t, len(hostileRequests), 40)
	s := open(t, everything)
	s.hostile()
	token := s.form(s.get(http.StatusOK, "/do/replay")).Get("csrf")
	address, err := url.Parse(s.server.URL + "/console/")
	require.NoError(t, err)
	cookies := s.client.Jar.Cookies(address)
	require.Len(t, cookies, 1)
	fill := strings.NewReplacer("{evil}", evilQuery, "{sql}", url.QueryEscape(`'; delete from `+s.schema+`.claim_failed; --`), "{csrf}", token, "{long}", strings.Repeat("x", 9000), "{huge}", strings.Repeat("x", 2<<20))
	before := s.content()
	for _, r := range hostileRequests {
		headers := map[string]string{"Host": address.Host, "Connection": "close", "Cookie": cookies[0].String()}
		if r.body != "" {
			headers["Content-Type"], headers["Content-Length"] = "application/x-www-form-urlencoded", fmt.Sprint(len(fill.Replace(r.body)))
		}
		for line := range strings.Lines(r.headers) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
			if drop, found := strings.CutPrefix(name, "-"); found {
				delete(headers, drop)
				continue
			}
			headers[name] = value
		}
		got, page := send(t, address.Host, fill.Replace(r.line), headers, fill.Replace(r.body), fill)
		where := r.what + ": " + r.line
		assert.Equal(t, r.want, got.Status, "%s: %s", where, page)
		assert.Empty(t, markup(page), where)
		assert.NotContains(t, page, "package console", where)
		assert.NotContains(t, page, "root:", where)
		assert.NotContains(t, page, "SQLSTATE", where)
		if to := got.Header.Get("Location"); to != "" {
			assert.Regexp(t, `^/[^/\\]`, to, where) // a path of this server
		}
		assert.False(t, slices.ContainsFunc(got.Header["Set-Cookie"], func(c string) bool { return !strings.HasPrefix(c, "millrace_") }), where)
		assert.Equal(t, before, s.content(), "%s has changed something", where)
	}
	assert.Contains(t, s.get(http.StatusOK, "/dead/event?id="+evilQuery), "&lt;script&gt;alert(1)", "it is shown as it is")
	for _, path := range []string{"/dead/event?id=" + evilQuery, "/effects?state=all&key=" + evilQuery, "/keys?key=" + evilQuery} {
		if page := s.get(http.StatusOK, path); strings.Contains(page, "Show it") {
			assert.Empty(t, markup(s.reveal(http.StatusOK, path)), path)
		}
	}
}

// send writes a request as it stands, which a client of net/http would refuse or mend.
func send(t *testing.T, address, line string, headers map[string]string, body string, fill *strings.Replacer) (answer, string) {
	t.Helper()
	conn, err := (&net.Dialer{Timeout: wait}).DialContext(t.Context(), "tcp", address)
	require.NoError(t, err)
	var writing sync.WaitGroup
	defer writing.Wait()
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(wait)))
	var head strings.Builder
	fmt.Fprintf(&head, "%s HTTP/1.1\r\n", line)
	for name, value := range headers {
		fmt.Fprintf(&head, "%s: %s\r\n", name, fill.Replace(value))
	}
	writing.Go(func() { _, _ = io.WriteString(conn, head.String()+"\r\n"+body) }) // the server may answer before it has read all
	method, _, _ := strings.Cut(line, " ")
	response, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
	require.NoError(t, err, line[:min(len(line), 200)])
	defer response.Body.Close()
	page, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return answer{response.StatusCode, response.Header}, string(page)
}
