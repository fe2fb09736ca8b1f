package console_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/console"
)

const toEdit = "/dead/edit?id=e1&consumer=shop/book"

// payload is that of event e1 at shop/book.
func (s *site) payload() (payload string) {
	s.t.Helper()
	require.NoError(s.t, s.pool.QueryRow(s.t.Context(), strings.ReplaceAll(`select convert_from(payload, 'UTF8') from {schema}.claim_failed where event_id = 'e1' and consumer = 1`, "{schema}", s.schema)).Scan(&payload))
	return payload
}

// toEdit opens the form, and asks to see the payload there.
func (s *site) toEdit() string {
	s.t.Helper()
	return s.post(http.StatusOK, "/dead/edit", s.form(s.get(http.StatusOK, toEdit)))
}

// changes asks for the page that shows what a form would change.
func (s *site) changes(status int, payload string) string {
	s.t.Helper()
	form := s.form(s.toEdit())
	form.Set("payload", payload)
	return s.post(status, "/dead/edit", form)
}

// A payload is edited on a page, the next one shows what changes, and the one who confirms that writes it.
func TestEdit(t *testing.T) {
	t.Parallel()
	s := open(t, everything)
	s.fail()
	before := s.payload()
	assert.Contains(t, s.get(http.StatusOK, "/dead/event?id=e1&consumer=shop/book"), `href="/console/orders/dead/edit?consumer=shop%2Fbook&amp;id=e1"`)
	assert.Contains(t, text(s.toEdit()), `{ "email": "ada@example.com", "n": 12345678901234567890 }`)

	asked := s.changes(http.StatusOK, "{\r\n  \"email\": \"grace@example.com\",\r\n  \"n\": 12345678901234567890\r\n}")
	assert.Contains(t, text(asked), `{ - "email": "ada@example.com", + "email": "grace@example.com", "n": 12345678901234567890 }`)
	assert.Contains(t, text(asked), "millrace dead edit --consumer shop/book --payload-file FILE --schema "+s.schema+" e1")
	assert.Equal(t, before, s.payload(), "nothing is written yet")

	form := s.form(asked)
	again := url.Values{"again": {"yes"}}
	for name, values := range form {
		again[name] = values
	}
	assert.Contains(t, text(s.post(http.StatusOK, "/dead/edit", again)), `"email": "grace@example.com"`, "what was filled in stays")

	form.Set("note", "a wrong address")
	assert.Contains(t, text(s.post(http.StatusOK, "/do/edit", form)), "The payload of e1 is written.")
	assert.Equal(t, `{"email":"grace@example.com","n":12345678901234567890}`, s.payload())
	assert.Equal(t, 1, s.count(`select count(*) from {schema}.claim_failed where event_id = 'e1' and consumer = 1 and state = 'dead'`))
	assert.Equal(t, 1, s.count(`select count(*) from {schema}.claim_audit where actor = 'ada' and action = 'edit' and event_id = 'e1' and detail->>'new_payload_sha256' <> ''`))
	assert.Contains(t, text(s.get(http.StatusOK, "/audit")), "ada edit shop/book e1 a wrong address")
	assert.Contains(t, text(s.post(http.StatusConflict, "/do/edit", form)), "The payload was changed meanwhile. Edit it again.")
}

func TestEditWarns(t *testing.T) {
	t.Parallel()
	s := open(t, everything)
	s.fail()
	assert.Contains(t, text(s.changes(http.StatusOK, `{"email": "ada@example.com","n":12345678901234567890}`)), "Nothing is changed.", "but the spaces")
	assert.Contains(t, s.changes(http.StatusBadRequest, "\xff"), "a NUL byte or invalid UTF-8")
	broken := s.changes(http.StatusOK, `{"email": }`)
	assert.Contains(t, text(broken), "The payload was JSON, but the new text is not: invalid character '}' looking for beginning of value.")
	assert.Contains(t, text(s.post(http.StatusOK, "/do/edit", s.form(broken))), "is written", "a person decides")
	assert.Equal(t, `{"email": }`, s.payload())
	assert.NotContains(t, text(s.changes(http.StatusOK, "text")), "The payload was JSON", "it was none before")
	empty := s.changes(http.StatusOK, "")
	s.post(http.StatusOK, "/do/edit", s.form(empty))
	assert.Empty(t, s.payload())
}

// An edit that somebody else was faster than is refused, also where both were asked before.
func TestEditOfWhatHasChanged(t *testing.T) {
	t.Parallel()
	s := open(t, everything)
	s.fail()
	form := s.form(s.changes(http.StatusOK, "1"))
	s.exec(`update {schema}.claim_failed set payload = '2' where event_id = 'e1'`)
	assert.Contains(t, text(s.post(http.StatusConflict, "/do/edit", form)), "The payload was changed meanwhile.")
	assert.Equal(t, "2", s.payload())
	s.exec(`delete from {schema}.claim_failed where event_id = 'e1'`)
	s.post(http.StatusNotFound, "/do/edit", form)
	assert.Zero(t, s.count(`select count(*) from {schema}.claim_audit where action <> 'reveal'`))
}

// Nobody edits what he may not see, or may not change.
func TestEditNeedsBothRights(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rights console.Rights
		mask   []string
		says   string
	}{
		{console.Look | console.Payloads, nil, "ask for the rights to act and to see payloads"},
		{console.Look | console.Act, nil, "ask for the rights to act and to see payloads"},
		{everything, []string{"EMAIL"}, "fields that are masked"},
	} {
		s := open(t, c.rights, func(cfg *console.Config) { cfg.Mask = c.mask })
		s.fail()
		before := s.payload()
		event := s.get(http.StatusOK, "/dead/event?id=e1&consumer=shop/book")
		assert.NotContains(t, event, "/dead/edit")
		refused := s.get(http.StatusForbidden, toEdit)
		assert.Contains(t, text(refused), c.says)
		assert.NotContains(t, refused, "ada@example.com")
		_, rest, _ := strings.Cut(event, `name="csrf" value="`)
		token, _, _ := strings.Cut(rest, `"`)
		form := url.Values{"csrf": {token}, "id": {"e1"}, "consumer": {"shop/book"}, "payload": {"x"}, "expected": {"0"}}
		for _, path := range []string{"/dead/edit", "/do/edit"} {
			assert.NotContains(t, s.post(http.StatusForbidden, path, form), "ada@example.com")
		}
		assert.Equal(t, before, s.payload())
	}
}

func TestWhatAFormCannotEdit(t *testing.T) {
	t.Parallel()
	s := open(t, everything)
	s.fail()
	for _, c := range [][2]string{
		{`'\xff00'::bytea`, "A browser's form would change this payload."},
		{`convert_to(E'a\r\nb', 'UTF8')`, "A browser's form would change this payload."},
		{`convert_to(repeat('x', 20000), 'UTF8')`, "The payload is too large for a form, which takes 16,384 bytes."},
	} {
		s.exec(`update {schema}.claim_failed set payload = ` + c[0])
		assert.Eventually(t, func() bool {
			got, page := s.ask(toEdit)
			return got.Status == http.StatusForbidden && strings.Contains(text(page), c[1])
		}, 30*time.Second, 50*time.Millisecond, c[1])
		assert.Contains(t, text(s.get(http.StatusOK, "/dead/event?id=e1&consumer=shop/book")), "It cannot be edited here. "+c[1])
	}
	s.get(http.StatusNotFound, "/dead/edit?id=e9")
	s.get(http.StatusNotFound, "/do/edit?id=e1&consumer=shop/book&payload=x")
}
