package console_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/console"
)

// Who may only look finds no button and no payload, however he comes to a page.
func TestRightsInABrowser(t *testing.T) {
	t.Parallel()
	s := open(t, console.Look)
	s.fail()
	s.pending("order.placed", "p1")
	b := s.tab(t)
	for _, path := range []string{"/", "/outbox", "/consumers", "/dead", "/dead/event?id=e1&consumer=shop/book", "/do/replay", "/do/discard", "/do/pause?topic=order.placed"} {
		b.open(path)
		assert.Zero(t, value[int](b, `document.querySelectorAll("main form[method=post], main textarea, main a[href*='/do/'], main a[href*='/edit']").length`), path)
		assert.False(t, value[bool](b, `document.documentElement.outerHTML.includes("ada@example.com")`), path)
	}
	b.open("/dead/event?id=e1&consumer=shop/book")
	b.shows("You may not see payloads.")
}

func TestMaskingInABrowser(t *testing.T) {
	t.Parallel()
	s := open(t, everything, func(c *console.Config) { c.Mask = []string{"email", "token"} })
	s.fail()
	b := s.tab(t)
	b.open("/dead/event?id=e1&consumer=shop/book")
	b.press("Show it")
	b.shows(`"email": "••••••"`)
	b.shows("Its whole life")
	html := value[string](b, `document.documentElement.outerHTML`)
	assert.NotContains(t, html, "ada@example.com")
	assert.NotContains(t, html, "hunter2")
	assert.NotContains(t, html, "/dead/edit", "an edit would show or lose what is masked")
}

// A form without the token of its session is refused, and so is one that a page of somebody else sends, even if it has the token.
func TestForgedFormsInABrowser(t *testing.T) {
	t.Parallel()
	s := open(t, everything)
	s.fail()
	b := s.tab(t)
	refused := `document.body.textContent.includes("This form is not from a page that you have opened here")`
	for _, change := range []string{`e.remove()`, `e.value = ""`, `e.value = "x" + e.value.slice(1) + "y"`} {
		b.open("/do/replay")
		b.until(`((e) => { ` + change + `; return true; })(document.querySelector("main [name=csrf]"))`)
		b.press("Replay 2 events")
		b.until(refused)
	}
	b.open("/do/replay")
	var fields strings.Builder
	for name, values := range map[string]string{"csrf": value[string](b, `document.querySelector("main [name=csrf]").value`), "expected": "2"} {
		fmt.Fprintf(&fields, `<input name=%s value=%s>`, name, strconv.Quote(values))
	}
	foreign := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, `<iframe src="%[1]s/"></iframe><form method=post action="%[1]s/do/replay">%[2]s<button>Win</button></form>`, s.server.URL+s.base, fields.String())
	}))
	defer foreign.Close()
	b.do(chromedp.Navigate(foreign.URL))
	b.wrong()
	b.press("Win")
	b.until(refused)
	assert.Equal(t, 2, s.count(`select count(*) from {schema}.claim_failed where state = 'dead'`))
	assert.Zero(t, s.count(`select count(*) from {schema}.claim_replay`))
}

// What others have written runs in no page, and is no element of it.
func TestMarkupOfOthersInABrowser(t *testing.T) {
	t.Parallel()
	s := open(t, everything)
	s.hostile()
	b := s.tab(t)
	for _, path := range []string{"/", "/outbox", "/consumers", "/dead", "/dead?key=" + evilQuery, "/dead/event?id=" + evilQuery, "/dead/edit?id=" + evilQuery, "/event?id=" + evilQuery, "/do/replay?key=" + evilQuery, "/do/pause?topic=" + evilQuery, "/keys", "/effects?key=" + evilQuery, "/audit"} {
		b.open(path)
		assert.Zero(t, value[int](b, `document.querySelectorAll("script:not([src]), img, [onerror], iframe").length`), path)
		assert.Empty(t, b.wrong(), path)
	}
}
