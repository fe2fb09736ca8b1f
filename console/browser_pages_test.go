package console_test

import (
	_ "embed"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
)

// axe is axe-core 4.14.1, which finds what people with disabilities cannot use. Its license lies beside it.
//
//go:embed testdata/axe.min.js
var axe string

// What axe looks for. Whether colours differ enough takes it longer than all other rules.
const (
	allRules = `rules: {}`
	colours  = `runOnly: ["color-contrast"]`
	elements = `rules: { "color-contrast": { enabled: false } }`
)

// unusable are the rules that the page breaks in a way that hinders people, each with a place.
func (b *tab) unusable(rules string) []string {
	b.t.Helper()
	if !value[bool](b, `"axe" in window`) {
		value[chromedp.Void](b, axe)
	}
	return value[[]string](b, `axe.run(document, { resultTypes: ["violations"], `+rules+` }).then((found) => found.violations.filter((v) => v.impact === "serious" || v.impact === "critical")
		.map((v) => v.id + ": " + v.help + ": " + v.nodes.slice(0, 3).map((n) => n.target.join(" ") + " " + n.html + " " + n.failureSummary).join("; ")))`)
}

// tooWide are elements that a person must scroll to the side for, where the page is too wide.
func (b *tab) tooWide() []string {
	b.t.Helper()
	return value[[]string](b, `(() => {
		const width = document.documentElement.clientWidth;
		if (document.documentElement.scrollWidth <= width) return [];
		return ["page of " + document.documentElement.scrollWidth].concat([...document.querySelectorAll("body *")].filter((e) => e.getBoundingClientRect().right > width).map((e) => e.outerHTML.slice(0, 100)));
	})()`)
}

// bright is how bright the page's background is, 0 to 255.
func (b *tab) bright() float64 {
	b.t.Helper()
	return value[float64](b, `getComputedStyle(document.body).backgroundColor.match(/\d+/g).slice(0, 3).reduce((sum, n) => sum + Number(n), 0) / 3`)
}

// fits checks a page that is open: the browser finds nothing wrong, it is dark and light as the person wants, everybody can use it, and
// it fits a phone.
func (b *tab) fits(name string) {
	b.t.Helper()
	assert.Empty(b.t, b.wrong(), "%s: the browser's console", name)
	b.prefers("dark")
	assert.Less(b.t, b.bright(), 64.0, name)
	assert.Empty(b.t, b.unusable(colours), "%s, dark", name)
	b.prefers("light")
	assert.Greater(b.t, b.bright(), 192.0, name)
	assert.Empty(b.t, b.unusable(allRules), "%s, light", name)
	b.size(390, 844)
	assert.Empty(b.t, b.tooWide(), "%s on a phone", name)
	assert.Empty(b.t, b.unusable(elements), "%s on a phone", name)
	b.size(1440, 1000)
	assert.Empty(b.t, b.wrong(), "%s: the browser's console, at the end", name)
}

// What does not fit is found: otherwise all pages would.
func TestWhatDoesNotFitIsFound(t *testing.T) {
	t.Parallel()
	s := open(t, everything)
	b := s.tab(t)
	b.open("/")
	value[chromedp.Void](b, `void document.querySelector("main").insertAdjacentHTML("beforeend", "<input id=nameless><p id=pale>pale</p>")`)
	value[chromedp.Void](b, `void Object.assign(document.getElementById("pale").style, { color: "#ccc", background: "#ddd", width: "2000px" })`)
	found := strings.Join(b.unusable(allRules), "\n")
	assert.Contains(t, found, "label")
	assert.Contains(t, found, "color-contrast")
	b.size(390, 844)
	assert.Contains(t, strings.Join(b.tooWide(), "\n"), "pale")
}

func TestPagesInABrowser(t *testing.T) {
	t.Parallel()
	devtest.Long(t)
	s := open(t, everything)
	s.incident()
	s.exec(`update {schema}.claim_replay set state = 'stopped', reason = 'stopped by grace'`) // it does not change meanwhile
	b := s.tab(t)
	for _, path := range []string{
		"/", "/outbox", "/consumers", "/dead", "/dead?consumer=shop%2Fupdate-ledger&state=all", "/dead/event?id=0198c0d1-1001-7e31-b0c2-4f19d3a8e655", "/event", "/event?id=0198c0d1-1001-7e31-b0c2-4f19d3a8e655",
		"/effects", "/effects?state=all&key=shop%2Fsms%2F0198c0d1-77aa-7e31-b0c2-4f19d3a8e655", "/keys", "/keys?key=client-7-order-58001", "/replay?id=1", "/audit",
		"/outbox/archive", "/outbox/archive?topic=order.placed&since=2d", "/outbox/archive/replay?id=1", "/do/archive-replay?topic=order.placed", "/do/archive-stop?id=1",
		"/do/replay?consumer=shop%2Fbook-shipment", "/do/discard?consumer=shop%2Fbook-shipment", "/do/pause?topic=order.placed", "/do/resolve?happened=yes&key=shop%2Fsms%2F0198c0d1-77aa-7e31-b0c2-4f19d3a8e655", "/do/continue?id=1",
		"/do/stop?id=1", "/do/archive-continue?id=1", "/do/resume?topic=order.placed", "/do/forget?id=" + strings.Repeat("a", 64),
	} {
		b.open(path)
		b.fits(path)
	}
	b.open("/outbox")
	b.press("message of")
	b.shows("Events of cause")
	b.fits("events of a cause")
	b.press("Discard …")
	b.until(`location.pathname.endsWith("/do/outbox-discard")`)
	b.fits("discard of the outbox")
	b.press("Cancel")
	b.press("Retry …")
	b.until(`location.pathname.endsWith("/do/outbox-retry")`)
	b.fits("retry of the outbox")
	b.press("Retry ")
	b.shows("will be retried")
	b.fits("what an action did")
	b.open("/dead/event?id=0198c0d1-1001-7e31-b0c2-4f19d3a8e655&consumer=shop%2Fbook-shipment")
	b.press("Show it")
	b.until(`document.querySelector("pre.payload:not(.bad)")`)
	b.fits("a payload")
	b.press("Edit …")
	b.until(`location.pathname.endsWith("/dead/edit")`)
	b.press("Show it")
	b.until(`document.getElementById("payload")`)
	b.fits("edit")
	b.fill("payload", `{"order": }`)
	b.press("Show what changes")
	b.shows("the new text is not")
	b.fits("what an edit changes")
}

// Pages without anything to show fit, too.
func TestEmptyPagesInABrowser(t *testing.T) {
	t.Parallel()
	s := open(t, everything)
	b := s.tab(t)
	for _, path := range []string{"/", "/outbox", "/consumers", "/outbox/archive", "/dead", "/effects", "/keys", "/audit"} {
		b.open(path)
		b.fits(path)
	}
	b.open("/nothing")
	assert.Empty(t, b.unusable(allRules))
	assert.True(t, slices.ContainsFunc(b.wrong(), func(m string) bool { return m != "" }), "the browser says that the page is not there")
}

// The buttons change the page whatever the system prefers, and the choice stays.
func TestThemesInABrowser(t *testing.T) {
	t.Parallel()
	s := open(t, everything)
	b := s.tab(t)
	b.prefers("light")
	b.open("/dead")
	for _, c := range []struct {
		button, prefers string
		dark            bool
	}{{"Dark", "light", true}, {"Light", "dark", false}, {"System", "dark", true}} {
		b.prefers(c.prefers)
		b.press(c.button)
		b.until(`[...document.querySelectorAll("[aria-pressed]")].some((e) => e.textContent === "` + c.button + `")`)
		assert.Equal(t, c.dark, b.bright() < 64, c.button)
		b.open("/audit")
		assert.Equal(t, c.dark, b.bright() < 64, "%s, on another page", c.button)
	}
}
