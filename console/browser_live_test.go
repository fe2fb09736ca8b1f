package console_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/console"
)

// mark leaves something on the page that another page would not have.
func (b *tab) mark() { value[chromedp.Void](b, `void (window.marked = true)`) }

func (b *tab) marked() bool { return value[bool](b, `window.marked === true`) }

// A page that is open shows what changes, without being loaded again, unless somebody pauses it.
func TestLiveInABrowser(t *testing.T) {
	t.Parallel()
	s := open(t, everything)
	b := s.tab(t)
	b.open("/outbox")
	b.shows("No event waits, and no topic is paused.")
	b.mark()
	s.pending("order.placed", "p1")
	b.shows("order.placed")
	b.until(`document.getElementById("nav").textContent.includes("Outbox 1")`)

	b.press("Live")
	s.pending("order.paid", "p2")
	b.until(`/^Paused, \d+ new$/.test(document.getElementById("pause-text").textContent)`)
	assert.False(t, value[bool](b, pageText+`.includes("order.paid")`))
	b.press("Paused")
	b.shows("order.paid")
	assert.True(t, b.marked(), "it is the same page")
	assert.Empty(t, b.wrong())
}

// A page that began without any dead letter has no list that could change: it is rebuilt. What somebody types beside it stays, and so does
// what he has typed within it.
func TestTheFirstDeadLetterInABrowser(t *testing.T) {
	t.Parallel()
	s := open(t, everything)
	b, typing := s.tab(t), s.tab(t)
	b.open("/dead")
	b.shows("No dead letters.")
	b.mark()
	value[chromedp.Void](b, `void (document.getElementById("find").focus(), document.getElementById("find").value = "018f")`)
	typing.open("/dead")
	typing.shows("No dead letters.")
	value[chromedp.Void](typing, `void (document.getElementById("filter").focus(), document.getElementById("filter").value = "key:4")`)
	s.fail()
	b.shows("2 match")
	assert.Equal(t, "018f", value[string](b, `document.activeElement.id === "find" && document.activeElement.value`))
	s.exec(`delete from {schema}.claim_failed where event_id = 'e1'`)
	b.shows("1 match")
	b.shows("Replay 1 …")
	assert.True(t, b.marked(), "it is the same page")
	assert.Empty(t, b.wrong())

	typing.until(`document.getElementById("nav").textContent.includes("Dead letters 1")`) // it has heard of it
	assert.Equal(t, "key:4", value[string](typing, `document.getElementById("filter").value`))
	typing.shows("No dead letters.")
	value[chromedp.Void](typing, `void (document.getElementById("filter").value = "", document.activeElement.blur())`)
	typing.shows("1 match")
}

// The list of a live page begins at another event. The next page begins where the list ends now: the page left events out.
func TestTheNextPageInABrowser(t *testing.T) {
	t.Parallel()
	s := open(t, everything)
	s.many(60)
	b := s.tab(t)
	b.open("/dead")
	const next = `new URL(document.querySelector("#pages [rel=next]").href).searchParams.get("after")`
	before := value[string](b, next)
	b.shows("62 match")
	s.exec(`insert into {schema}.claim_failed (consumer, record, event_id, key, state, attempts, reason, error, history, handler, topic, headers, payload)
		select consumer, gen_random_uuid(), 'g1', key, state, attempts, reason, error, history, handler, topic, headers, payload from {schema}.claim_failed where event_id = 'f1'`)
	b.shows("63 match")
	b.until(next + ` !== "` + before + `"`)
}

// A page that was opened in an outage, and could not be shown, is shown when the database is back.
func TestAPageOfAnOutageInABrowser(t *testing.T) {
	t.Parallel()
	s, away := openFrail(t)
	s.get(http.StatusOK, "/keys")
	away(true)
	b := s.tab(t)
	b.open("/keys?key=none")
	b.shows("This page cannot be shown.")
	away(false)
	b.shows("Nothing is stored for this key")
	assert.Equal(t, "Keys", value[string](b, `document.querySelector("h1").textContent`))
}

// Somebody else decides about the dead letter of an open page.
func TestADeadLetterThatIsGoneInABrowser(t *testing.T) {
	t.Parallel()
	s := open(t, everything)
	s.fail()
	b := s.tab(t)
	b.open("/dead/event?id=e1&consumer=shop/book")
	b.shows("dead at shop/book")
	s.exec(`update {schema}.claim_failed set state = 'retrying', due_at = now() + interval '1 hour' where event_id = 'e1'`)
	b.shows("retrying at shop/book")
	s.exec(`delete from {schema}.claim_failed where event_id = 'e1'`)
	b.shows("or it was settled since")
}

// A part of a page stays as it is while somebody works in it, and is brought up to date when he leaves it, though nothing changes any more.
func TestAPartThatSomebodyLeavesInABrowser(t *testing.T) {
	t.Parallel()
	s := open(t, everything)
	b := s.tab(t)
	b.open("/outbox")
	b.shows("No event waits, and no topic is paused.")
	value[chromedp.Void](b, `void document.querySelector("#nav a").focus()`)
	s.pending("order.placed", "p1")
	b.shows("order.placed")
	const told = `document.getElementById("nav").textContent.includes("Outbox 1")`
	require.Never(t, func() bool { return value[bool](b, told) }, 4*time.Second, 200*time.Millisecond)
	value[chromedp.Void](b, `void document.activeElement.blur()`)
	b.until(told)
}

// A page that nobody sees leaves its connection to the others: a browser has six for a server, and each page holds one.
func TestAHiddenPageInABrowser(t *testing.T) {
	t.Parallel()
	var connected atomic.Int32
	s := open(t, everything, func(c *console.Config) {
		c.Authorize = func(r *http.Request) (console.Rights, string) {
			if strings.HasSuffix(r.URL.Path, "/live") {
				connected.Add(1)
				context.AfterFunc(r.Context(), func() { connected.Add(-1) })
			}
			return everything, "ada"
		}
	})
	b := s.tab(t)
	b.open("/outbox")
	b.shows("No event waits, and no topic is paused.")
	one := func() bool { return connected.Load() == 1 }
	require.Eventually(t, one, wait, pause)
	const turns = `void (Object.defineProperty(document, "hidden", { configurable: true, value: %t }), document.dispatchEvent(new Event("visibilitychange")))`
	value[chromedp.Void](b, fmt.Sprintf(turns, true))
	require.Eventually(t, func() bool { return connected.Load() == 0 }, wait, pause)
	s.pending("order.placed", "p1")
	value[chromedp.Void](b, fmt.Sprintf(turns, false))
	b.shows("order.placed")
	require.Eventually(t, one, wait, pause)
}

// One answer never comes, as by a proxy that forgets it, while the stream goes on. The page stood still for ever and said that it was live.
func TestALostAnswerInABrowser(t *testing.T) {
	t.Parallel()
	var lose atomic.Bool
	s := open(t, everything, func(c *console.Config) {
		c.Authorize = func(r *http.Request) (console.Rights, string) {
			if strings.HasSuffix(r.URL.Path, "/outbox") && lose.CompareAndSwap(true, false) {
				<-r.Context().Done()
			}
			return everything, "ada"
		}
	})
	b := s.tab(t)
	b.open("/outbox")
	b.shows("No event waits, and no topic is paused.")
	lose.Store(true)
	s.pending("order.placed", "p1")
	b.shows("order.placed")
	assert.False(t, lose.Load())
}

// Figures change under the pointer; rows do not.
func TestFiguresUnderThePointerInABrowser(t *testing.T) {
	t.Parallel()
	s := open(t, everything)
	b := s.tab(t)
	b.open("/")
	b.shows("Nothing waits.")
	at := value[[]float64](b, `(({ x, y }) => [x + 40, y + 40])(document.getElementById("pipeline").getBoundingClientRect())`)
	_, err := chromedp.Call(b.ctx, input.DispatchMouseEvent, input.DispatchMouseEventParams{Type: "mouseMoved", X: at[0], Y: at[1]})
	require.NoError(t, err)
	b.until(`document.getElementById("pipeline").matches(":hover")`)
	s.pending("order.placed", "p1")
	b.until(`!document.getElementById("pipeline").textContent.includes("Nothing waits.")`)
}

// The database of an open page is gone. The page showed its figures as the present ones, because the server's answer is an error.
func TestOutageOfAnOpenPageInABrowser(t *testing.T) {
	t.Parallel()
	s, away := openFrail(t)
	b := s.tab(t)
	b.open("/effects")
	b.until(`!document.querySelector("#trouble p")`)
	away(true)
	b.until(`!!document.querySelector("#trouble p")`)
}

// The browser gives a stream up after an answer other than 200, such as one of a proxy while the console starts again. The page said that the
// browser tries again, and never heard of a change any more.
func TestAStreamThatWasRefusedInABrowser(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	s := open(t, everything, func(c *console.Config) {
		c.Authorize = func(r *http.Request) (console.Rights, string) {
			if strings.HasSuffix(r.URL.Path, "/live") && asked.Add(1) < 3 {
				return 0, ""
			}
			return everything, "ada"
		}
	})
	b := s.tab(t)
	b.open("/outbox")
	b.shows("No event waits, and no topic is paused.")
	b.mark()
	b.until(`!document.getElementById("lost").hidden`)
	s.pending("order.placed", "p1")
	b.shows("order.placed")
	b.until(`document.getElementById("lost").hidden`)
	assert.True(t, b.marked(), "it is the same page")
}

// A page that was made before a change shows it, though it hears of it only when its stream opens.
func TestAChangeBeforeTheStreamInABrowser(t *testing.T) {
	t.Parallel()
	s := open(t, everything)
	b := s.tab(t)
	b.do(chromedp.Func(func(ctx context.Context, tab *chromedp.Target) error {
		_, err := cdp.Call(ctx, tab, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: `
			const Stream = window.EventSource;
			window.EventSource = class extends EventTarget { // opens when the test says so
				constructor(url) {
					super();
					window.openStream = () => { for (const type of ["changed", "beat", "error"]) (this.stream ??= new Stream(url)).addEventListener(type, (e) => this.dispatchEvent(new MessageEvent(type, { data: e.data }))); };
				}
			};`})
		return err
	}))
	b.open("/outbox")
	b.shows("No event waits, and no topic is paused.")
	b.mark()
	s.pending("order.placed", "p1")
	require.Eventually(t, func() bool { return strings.Contains(s.get(http.StatusOK, "/outbox"), "order.placed") }, wait, pause)
	value[chromedp.Void](b, `openStream()`)
	b.shows("order.placed")
	assert.True(t, b.marked())
}

// A form that somebody fills in stays as it is.
func TestFormsStayInABrowser(t *testing.T) {
	t.Parallel()
	s := open(t, everything)
	s.fail()
	b, other := s.tab(t), s.tab(t)
	b.open("/do/discard?consumer=shop/book")
	b.fill("note", "half a sen")
	other.open("/dead")
	other.shows("2 match")
	s.exec(`update {schema}.claim_failed set state = 'dead' where consumer = 2`)
	other.shows("no user 7")
	other.shows("oops")
	assert.Equal(t, "half a sen", value[string](b, `document.getElementById("note").value`))
}

// A replay of the archive begins at its list, asks how many, and shows how far it is in each session, without another page.
func TestTheArchiveInTwoSessions(t *testing.T) {
	t.Parallel()
	s := open(t, everything)
	s.archived("parcel.packed", 900)
	ada, other := s.tab(t), s.tab(t)
	ada.open("/outbox")
	ada.press("Archive")
	ada.press("parcel.packed")
	ada.press("Replay 900 …")
	ada.fill("note", "a new consumer")
	ada.fill("rate", "4")
	ada.fill("to", "again")
	ada.press("Replay 900 events")
	const done = `Number(document.querySelector(".big").textContent.split(" ")[0].replace(/,/g, ""))`
	ada.until(done + ` > 0`)
	ada.mark()
	other.open("/")
	other.press("Replay 1 of the archive")
	other.until(done + ` > 0`)
	for _, b := range []*tab{ada, other} {
		before := value[float64](b, done)
		b.until(done + " > " + number(before))
	}
	other.press("Stop …")
	other.press("Stop the replay")
	for _, b := range []*tab{ada, other} {
		b.until(`document.querySelector(".headline .pill")?.textContent === "stopped"`)
	}
	assert.True(t, ada.marked(), "its progress is shown without another page")
	other.press("Continue …")
	other.fill("rate", "")
	other.press("Continue the replay")
	for _, b := range []*tab{ada, other} {
		b.until(`document.querySelector(".big")?.textContent === "900 of 900" && document.querySelector(".headline .pill").textContent === "done"`)
		assert.Empty(t, b.wrong())
	}
	assert.True(t, ada.marked())
	assert.Equal(t, 900, s.count(`select count(distinct event_id) from {schema}.outbox where topic = 'again'`))
}

// A replay of 10,000 dead letters shows how far it is in the sessions of two people, and each one stops and continues it. The page names who did what.
func TestAReplayInTwoSessions(t *testing.T) {
	t.Parallel()
	s := open(t, everything, named)
	s.many(10_000)
	ada, grace := s.tab(t), s.as("grace").tab(t)
	ada.open("/dead?topic=t")
	ada.press("Replay 2,000+ …")
	ada.fill("note", "deployed the fix")
	ada.fill("rate", "50")
	ada.fill("failed", "")
	ada.fill("typed", "2,000")
	ada.press("Replay 2,000+ events")
	const done = `Number(document.querySelector(".big").textContent.split(" ")[0].replace(/,/g, ""))`
	ada.until(done + ` > 0`)
	ada.mark()
	grace.open("/")
	grace.shows("by ada")
	grace.press("Replay 1")
	grace.until(done + ` > 0`)
	grace.mark()
	for _, b := range []*tab{ada, grace} {
		before := value[float64](b, done)
		b.until(done + " > " + number(before))
		assert.Less(t, value[float64](b, done), 10_000.0)
		assert.True(t, b.marked(), "its progress is shown without another page")
	}

	grace.press("Change the pace …")
	grace.fill("rate", "60")
	grace.press("Change the pace")
	for _, b := range []*tab{ada, grace} {
		b.shows("at most 60 per second")
	}
	assert.True(t, ada.marked())
	grace.press("Stop …")
	grace.press("Stop the replay")
	grace.until(`document.querySelector(".headline .pill")?.textContent === "stopped"`)
	ada.until(`document.querySelector(".headline .pill")?.textContent === "stopped"`)
	ada.shows("stopped by grace")
	assert.True(t, ada.marked())

	grace.press("Continue …")
	grace.fill("rate", "")
	grace.fill("failed", "")
	grace.press("Continue the replay")
	for _, b := range []*tab{ada, grace} {
		b.until(`document.querySelector(".big")?.textContent === "10,000 of 10,000" && document.querySelector(".headline .pill").textContent === "done"`)
		assert.Empty(t, b.wrong())
	}
	assert.True(t, ada.marked())
	assert.Equal(t, 10_000, s.count(`select count(*) from {schema}.claim_failed where topic = 't' and replayed`))
	assert.Equal(t, 1, s.count(`select count(*) from {schema}.claim_replay where actor = 'ada'`))
	assert.Equal(t, 2, s.count(`select count(distinct actor) from {schema}.claim_audit where actor in ('ada', 'grace')`))
}
