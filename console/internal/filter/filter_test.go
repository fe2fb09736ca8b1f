package filter

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestParse(t *testing.T) {
	t.Parallel()
	f := Parse(`  State:retrying consumer:shop/book key:"a b" since:2d  0198c0de `)
	assert.NoError(t, f.Err())
	assert.Equal(t, `state:retrying consumer:shop/book key:"a b" since:2d event:0198c0de`, f.Text())
	assert.Equal(t, "Events that are retried of shop/book of key a b that failed since 2d with ID 0198c0de.", f.Sentence())
	now := time.Date(2026, 3, 3, 0, 0, 0, 0, time.UTC)
	s := f.Selection(now)
	assert.Equal(t, []string{"retrying", "nacked"}, s.States)
	assert.Equal(t, "a b", s.Key)
	assert.Equal(t, []string{"0198c0de"}, s.EventIDs)
	assert.Equal(t, now.Add(-48*time.Hour), s.Since)
	assert.Equal(t, f.Text(), FromQuery(f.Query()).Text(), "the URL says the same")
	assert.Equal(t, []string{"dead"}, Filter{}.Selection(now).States, "without a filter it is about dead letters")
}

func TestWhatIsWrong(t *testing.T) {
	t.Parallel()
	for text, problem := range map[string]string{
		"states:dead": "states: no such name: want state, consumer, topic, key, group, reason, since, until or event", "consumer:": "consumer: its value is missing",
		"state:nacked": "state: want dead, retrying, blocked or all", "since:yesterday": "since: want a time such as", "key:a key:b": "key: it was given before",
		"key:\x00": "key: its value contains an invalid character", strings.Repeat("x", maxText+1): "filter: it has 2001 bytes: want 2000 at most",
	} {
		assert.ErrorContains(t, Parse(text).Err(), problem, text)
	}
	long := url.Values{"topic": {"t"}, "key": {strings.Repeat("k", maxText+1)}}
	assert.ErrorContains(t, FromQuery(long).Err(), "key: its value has 2001 bytes: want 2000 at most", "a condition that is left out would select more")
	f := Parse("state:lost key:k")
	assert.Equal(t, url.Values{"key": {"k"}}, f.Query(), "what is wrong is left out")
	assert.NoError(t, f.Without(0).Err())
}

func TestChanges(t *testing.T) {
	t.Parallel()
	f := Parse("group:g1 key:k")
	assert.Equal(t, "key:k group:g2", f.With("group", "g2").Text())
	assert.Equal(t, "key:k", f.With("group", "").Text())
	flags, ids := Parse("consumer:c e1 e2").Flags()
	assert.Equal(t, []string{"--consumer", "c"}, flags)
	assert.Equal(t, []string{"e1", "e2"}, ids)
	flags, _ = Filter{}.Flags()
	assert.Equal(t, []string{"--all"}, flags)
}

// The text of a filter stands in a field. A key with quotes selected other keys when the field was sent.
func TestTextMeansTheSameFilter(t *testing.T) {
	t.Parallel()
	for _, key := range []string{`a"b c"d`, `"`, `""`, `a b`, `"a b"`, `\"`, "a:b", "\t\"x", "\u2003"} {
		f := FromQuery(url.Values{"key": {key}, "consumer": {"shop/book"}})
		assert.Equal(t, f.Query(), Parse(f.Text()).Query(), f.Text())
	}
	assert.Equal(t, "a b c", Parse(`key:a" b "c`).Get("key"))
	assert.Equal(t, `say "hello"`, Parse(`key:"say ""hello"""`).Get("key"))
}

// For any input the filter either reports a problem, or means the same as its URL.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{`state:dead key:"a b"`, `"`, `::`, "key:\u2003x", `'; drop table claim_failed; --`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p := Parse(text)
		if p.Err() == nil {
			assert.Equal(t, p.Selection(time.Unix(0, 0)), FromQuery(p.Query()).Selection(time.Unix(0, 0)))
			assert.Equal(t, p.Query(), Parse(p.Text()).Query())
		}
	})
}
