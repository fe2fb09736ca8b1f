package console_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/console"
)

// counted writes what a process has counted for the consumer of that number, so many minutes ago.
func (s *site) counted(consumer, minutes, handled, duplicates, contended, failed int) {
	s.exec(`insert into {schema}.journal values (date_trunc('minute', now()) - $2 * interval '1 minute', $1, $2, $3, $4, $5, $6, $3 * 20, 250)`, consumer, minutes, handled, duplicates, contended, failed)
}

// row is what a table of the page says of a consumer.
func row(page, table, consumer string) string {
	_, rest, _ := strings.Cut(page, `id="`+table+`"`)
	rest, _, _ = strings.Cut(rest, "</table>")
	for _, one := range strings.Split(rest, "<tr>") {
		if strings.HasPrefix(text(one), consumer+" ") {
			return text(one)
		}
	}
	return ""
}

func TestConsumers(t *testing.T) {
	t.Parallel()
	s := open(t, console.Look)
	s.fail()
	s.exec(`insert into {schema}.consumer (name) values ('shop/mail'), ('shop/index'), ('shop/rest')`)
	s.exec(`update {schema}.claim_failed set first_at = now() - interval '3 hours' where event_id = 'e3'`)
	s.exec(`update {schema}.claim_key set full_since = now() - interval '1 minute' where key = 'k'`)
	s.exec(`insert into {schema}.claim_run (service, name, paused) values ('shop', 'host-a/1', '[{"consumer": "shop/mail", "seconds": 90, "left": 30, "error": "smtp: no answer"}]'),
		('shop', 'host-b/1', '[{"consumer": "shop/mail", "seconds": 80, "left": 10, "error": "smtp: refused"}]')`)
	for m := range 5 {
		s.counted(4, m, 3000, 7, 2, 0)
	}
	s.counted(4, 30, 100, 1, 0, 5)
	s.counted(3, 20, 9, 0, 0, 9)
	page := s.get(http.StatusOK, "/consumers")
	assert.Contains(t, text(page), "1 consumer is paused by its circuit breaker, 1 consumer fails, 1 key is full.")
	mail := row(page, "consumers-table", "shop/mail")
	assert.Regexp(t, `shop/mail paused 0 0 0 0 – smtp: refused paused for \d+s in host-b/1 and 1 other process; next try in \d+\.?\d* s`, mail)
	assert.Regexp(t, `shop/book key full – – 0 1 2 3h key k is full: the broker keeps the next events`, row(page, "consumers-table", "shop/book"))
	assert.Regexp(t, `shop/bill failing – – 1 0 0 .* oops .* ago`, row(page, "consumers-table", "shop/bill"))
	assert.Regexp(t, `shop/index flows (5\d|6[0-3])/s 0 0 0 –`, row(page, "consumers-table", "shop/index"))
	assert.Contains(t, row(page, "consumers-table", "shop/rest"), "shop/rest idle – –")
	at := func(name string) int { return strings.Index(page, ">"+name+"<") }
	assert.True(t, at("shop/mail") < at("shop/book") && at("shop/book") < at("shop/bill") && at("shop/bill") < at("shop/index") && at("shop/index") < at("shop/rest"), "trouble first")
	assert.Equal(t, "shop/index 15,100 36 10 5 20 ms 250 ms", row(page, "hour-table", "shop/index"))
	for _, link := range []string{"consumer=shop%2Fbook&amp;state=dead", "consumer=shop%2Fbook&amp;state=blocked", "consumer=shop%2Fbill&amp;state=retrying", "consumer=shop%2Fbook&amp;key=k&amp;state=all"} {
		assert.Contains(t, page, "/console/orders/dead?"+link)
		s.get(http.StatusOK, "/dead?"+strings.ReplaceAll(link, "&amp;", "&"))
	}
	assert.Equal(t, 2, strings.Count(page, `class="spark"`), "of those that counted")
	assert.NotContains(t, page, "ZgotmplZ")
}

// Where no process counts, rates are unknown and not 0.
func TestConsumersThatNobodyCounts(t *testing.T) {
	t.Parallel()
	s := open(t, console.Look)
	s.fail()
	page := text(s.get(http.StatusOK, "/consumers"))
	assert.Contains(t, page, "Handled – nothing was counted")
	assert.Contains(t, page, "Rates, duplicates and times are not known")
	assert.NotContains(t, page, "Outcomes of deliveries")
}

// The page has a bounded length, and says what it leaves out.
func TestManyConsumers(t *testing.T) {
	t.Parallel()
	s := open(t, console.Look)
	s.exec(`insert into {schema}.consumer (name) select 'shop/c' || n from generate_series(1, 300) n`)
	s.exec(`insert into {schema}.claim_failed (consumer, record, event_id, state, reason, error, handler, topic) values (299, gen_random_uuid(), 'e1', 'dead', 'attempts', 'oops', 'h', 't')`)
	page := s.get(http.StatusOK, "/consumers")
	assert.Contains(t, text(page), "Consumers 300, trouble first")
	assert.Contains(t, text(page), "100 more, with less trouble, are not shown.")
	assert.Equal(t, 200, strings.Count(page, `<th scope="row"`))
	assert.Contains(t, row(page, "consumers-table", "shop/c299"), "idle", "the one with trouble is shown")
}

// An open page shows what processes count meanwhile.
func TestConsumersAreLiveInABrowser(t *testing.T) {
	t.Parallel()
	s := open(t, everything)
	s.exec(`insert into {schema}.consumer (name) values ('shop/book')`)
	s.counted(1, 3, 30, 0, 0, 0)
	b := s.tab(t)
	b.open("/consumers")
	b.shows("shop/book")
	b.mark()
	s.counted(1, 1, 100_000, 4321, 0, 0)
	b.until(fmt.Sprintf(`document.getElementById("hour-table").textContent.includes(%q)`, "4,321"))
	assert.True(t, b.marked(), "it is the same page")
	assert.Empty(t, b.wrong())
}
