package console_test

import (
	"strconv"
	"testing"

	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func number(n float64) string { return strconv.FormatFloat(n, 'f', -1, 64) }

// tabTo presses the tab key until an element has the focus. A person sees where the focus is all the way.
func (b *tab) tabTo(condition string) {
	b.t.Helper()
	for range 60 {
		b.keys(kb.Tab)
		b.until(`((e, r, style) => e === document.body || style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1 && r.width > 1 && r.height > 1 &&
			r.right > 0 && r.left < innerWidth && r.bottom > 0 && r.top < innerHeight)(document.activeElement, document.activeElement.getBoundingClientRect(), getComputedStyle(document.activeElement))`)
		if value[bool](b, `Boolean(((e) => `+condition+`)(document.activeElement))`) {
			return
		}
	}
	require.FailNow(b.t, "the focus never comes to "+condition)
}

// Without a mouse a person filters, opens an event, and replays it.
func TestKeyboardAlone(t *testing.T) {
	t.Parallel()
	s := open(t, everything)
	s.fail()
	b := s.tab(t)
	b.open("/dead")
	b.tabTo(`e.matches(".skip")`)
	b.tabTo(`e.id === "filter"`)
	b.keys("consumer:shop/book" + kb.Enter)
	b.until(`location.search === "?consumer=shop%2Fbook"`)
	b.shows("2 match")
	b.tabTo(`e.textContent === "e1"`)
	b.keys(kb.Enter)
	b.shows("dead at shop/book")
	b.tabTo(`e.textContent === "Replay …"`)
	b.keys(kb.Enter)
	b.until(`document.activeElement.id === "note"`)
	b.keys("by" + kb.Enter + "keys") // confirms nothing
	b.tabTo(`e.textContent === "Replay 1 event"`)
	b.keys(kb.Enter)
	b.shows("1 of 1")
	s.comes(1, `select count(*) from {schema}.claim_replay where note = 'by keys'`)
}

func TestKeysOfPages(t *testing.T) {
	t.Parallel()
	s := open(t, everything)
	s.fail()
	b := s.tab(t)
	b.open("/")
	for _, c := range [][2]string{{"gb", "/outbox"}, {"gc", "/consumers"}, {"gd", "/dead"}, {"ge", "/event"}, {"gf", "/effects"}, {"gk", "/keys"}, {"ga", "/audit"}, {"go", "/"}, {"gd", "/dead"}} {
		b.keys(c[0])
		b.until(`document.readyState === "complete" && location.pathname === ` + strconv.Quote(s.base+c[1]))
	}
	b.keys("f")
	b.until(`document.activeElement.id === "filter"`)
	b.keys("gb") // is text there
	assert.Equal(t, "gb", value[string](b, `document.activeElement.value`))
	b.keys(kb.Escape)
	b.keys("/")
	b.until(`document.activeElement.id === "find"`)
	b.keys(kb.Escape)
	b.keys("j")
	b.until(`document.activeElement.closest("th")`)
	b.keys("?")
	b.until(`document.querySelector("dialog[open]")`)
	b.keys(kb.Escape)
	b.until(`!document.querySelector("dialog[open]")`)
	b.open("/do/discard?consumer=shop/book")
	b.until(`document.activeElement.id === "note"`)
	b.keys(kb.Escape + kb.Escape)
	b.until(`location.pathname.endsWith("/dead")`)
	assert.Equal(t, 2, s.count(`select count(*) from {schema}.claim_failed where state = 'dead'`))
}
