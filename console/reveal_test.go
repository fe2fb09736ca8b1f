package console_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/console"
)

// revealing fills the tables with a failed event, an effect and a stored answer, and returns the pages and the audits of their payloads.
func (s *site) revealing() map[string]string {
	s.fail()
	s.exec(`insert into {schema}.effect (created_at, key, state, token, calls, first_called_at, called_at, until, settled_by, settled_at, event_id, response)
		values (now(), 'shop/card/e1', 'done', gen_random_uuid(), 1, now(), now(), now(), 'call', now(), 'e1', '{"of": "ada@example.com"}')`)
	s.exec(`insert into {schema}.idempotency_key (id, service, scope, key, request, fingerprint, status, headers, body)
		values (sha256('k'), 'shop', '\x01', 'key-1', 'POST /orders', '', 201, '', convert_to('ada@example.com', 'UTF8'))`)
	return map[string]string{
		"/dead/event?id=e1&consumer=shop/book": `select count(*) from {schema}.claim_audit where actor = 'ada' and action = 'reveal' and consumer = 'shop/book' and event_id = 'e1' and detail = '{}'`,
		"/effects?state=all&key=shop/card/e1":  `select count(*) from {schema}.effect_resolution where resolved_by = 'ada' and action = 'reveal' and key = 'shop/card/e1' and state = 'done'`,
		"/keys?key=key-1":                      `select count(*) from {schema}.idempotency_key_audit where actor = 'ada' and action = 'reveal' and service = 'shop' and key = 'key-1'`,
	}
}

// A page shows a payload to somebody who asks for it, and the audit notes each time. A page alone shows and notes nothing.
func TestRevealsAreAudited(t *testing.T) {
	t.Parallel()
	s := open(t, console.Look|console.Payloads)
	for path, noted := range s.revealing() {
		assert.NotContains(t, s.get(http.StatusOK, path), "ada@example.com", path)
		assert.Zero(t, s.count(noted), path)
		for n := range 2 {
			assert.Contains(t, s.reveal(http.StatusOK, path), "ada@example.com", path)
			assert.Equal(t, n+1, s.count(noted), path)
		}
		s.post(http.StatusForbidden, path, url.Values{})
		assert.Equal(t, 2, s.count(noted), path)
	}
	s.comesTo("/audit", "ada reveal shop/book e1", "ada reveal effects shop/card/e1", "ada reveal keys of shop key-1")
}

// The results that sessions share had payloads of up to 10 MB, also for people who had not asked to see them. 256 results are kept.
func TestNoPayloadIsKept(t *testing.T) {
	t.Parallel()
	for name, rights := range map[string]console.Rights{"who may see it": everything, "who may not": console.Look} {
		s := open(t, rights)
		paths := s.revealing()
		s.exec(`update {schema}.effect set state = 'doubt'`)
		for path := range paths {
			page := s.get(http.StatusOK, path)
			if rights == everything {
				assert.Contains(t, s.reveal(http.StatusOK, path), "ada@example.com")
			} else {
				assert.Contains(t, text(page), "You may not see payloads.", path)
			}
		}
		if rights == everything {
			assert.Contains(t, s.toEdit(), "ada@example.com")
		}
		for _, path := range []string{"/", "/effects", "/effects?state=all", "/keys", "/dead"} {
			s.get(http.StatusOK, path)
		}
		assert.False(t, s.page.Keeps("orders", "ada@example.com"), name)
		for _, metadata := range []string{"shop/card/e1", "no user 7", "POST /orders", "hunter2"} {
			assert.True(t, s.page.Keeps("orders", metadata), metadata)
		}
	}
}

// comesTo waits until a page says all of that: it may have been read before.
func (s *site) comesTo(path string, says ...string) {
	s.t.Helper()
	assert.Eventually(s.t, func() bool {
		page := text(s.get(http.StatusOK, path))
		for _, what := range says {
			if !strings.Contains(page, what) {
				return false
			}
		}
		return true
	}, wait, pause, says)
}

// What the audit cannot note is not shown.
func TestNothingIsRevealedWithoutTheAudit(t *testing.T) {
	t.Parallel()
	s := open(t, everything)
	paths := s.revealing()
	s.exec(`create function {schema}.refuse() returns trigger language plpgsql as $$ begin raise 'no space left'; end $$`)
	for _, table := range []string{"claim_audit", "effect_resolution", "idempotency_key_audit"} {
		s.exec(`create trigger refuse before insert on {schema}.` + table + ` for each row execute function {schema}.refuse()`)
	}
	for path := range paths {
		page := s.reveal(http.StatusInternalServerError, path)
		assert.NotContains(t, page, "ada@example.com", path)
		assert.Contains(t, text(page), "the audit could not note it", path)
	}
	page := s.post(http.StatusInternalServerError, "/dead/edit", s.form(s.get(http.StatusOK, toEdit)))
	assert.NotContains(t, page, "ada@example.com")
}

// Somebody without the right, or without a name, sees no payload, whatever he sends, and nobody sees many of them at once.
func TestRevealsAreForFew(t *testing.T) {
	t.Parallel()
	for _, c := range []func(*console.Config){
		func(c *console.Config) {
			c.Authorize = func(*http.Request) (console.Rights, string) { return console.Look | console.Act, "ada" }
		},
		func(c *console.Config) {
			c.Authorize = func(*http.Request) (console.Rights, string) { return everything, "" }
		},
	} {
		s := open(t, 0, c)
		for path, noted := range s.revealing() {
			page := s.get(http.StatusOK, path)
			assert.NotContains(t, page, "Show it", path)
			_, rest, _ := strings.Cut(page, `name="csrf" value="`)
			token, _, _ := strings.Cut(rest, `"`)
			assert.NotContains(t, s.post(http.StatusForbidden, path, url.Values{"csrf": {token}}), "ada@example.com", path)
			assert.Zero(t, s.count(noted), path)
		}
	}
	s := open(t, everything)
	paths := s.revealing()
	s.page.Limit(1, time.Hour)
	s.reveal(http.StatusOK, "/keys?key=key-1")
	for path := range paths {
		got, page := s.send(path, url.Values{"csrf": {s.form(s.get(http.StatusOK, path)).Get("csrf")}})
		assert.Equal(t, http.StatusTooManyRequests, got.Status, path)
		assert.NotEmpty(t, got.Header.Get("Retry-After"), path)
		assert.NotContains(t, page, "ada@example.com", path)
	}
	s.act(http.StatusOK, "/do/pause?topic=t") // which is counted apart
}

// An edit shows the payload, so it is a reveal. What changes is shown to somebody who has seen it: nobody learns it by a guess of its hash.
func TestAnEditReveals(t *testing.T) {
	t.Parallel()
	s := open(t, everything)
	s.fail()
	noted := `select count(*) from {schema}.claim_audit where action = 'reveal' and event_id = 'e1'`
	assert.NotContains(t, s.get(http.StatusOK, toEdit), "ada@example.com")
	assert.Zero(t, s.count(noted))
	form := s.form(s.toEdit())
	assert.Equal(t, 1, s.count(noted))
	form.Set("payload", "{}")
	assert.Contains(t, s.post(http.StatusOK, "/dead/edit", form), "ada@example.com")
	for _, wrong := range []string{"", "x"} {
		form.Set("shown", wrong)
		for path, status := range map[string]int{"/dead/edit": http.StatusOK, "/do/edit": http.StatusConflict} {
			page := s.post(status, path, form)
			assert.NotContains(t, page, "ada@example.com", path)
			assert.Contains(t, text(page), "The payload was changed meanwhile.", path)
		}
	}
	assert.Equal(t, 1, s.count(noted))
}
