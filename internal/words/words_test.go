package words

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestCount(t *testing.T) {
	t.Parallel()
	assert.Equal(t, "0 events, 1 event, 2 dead letters", Count(0, "event")+", "+Count(int64(1), "event")+", "+Count(2, "dead letter"))
	assert.Equal(t, "2 processes, 2 entries, 2 relays, 2 keys", Count(2, "process")+", "+Count(2, "entry")+", "+Count(2, "relay")+", "+Count(2, "key"))
	assert.Equal(t, "is are", Pick(1, "is", "are")+" "+Pick(0, "is", "are"))
}

func TestDuration(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		-time.Second: "<1s", 0: "<1s", 999 * time.Millisecond: "<1s", 2870 * time.Millisecond: "2s", 119 * time.Second: "119s",
		2 * time.Minute: "2m", 5*time.Minute + 30*time.Second: "5m30s", 10*time.Minute + 59*time.Second: "10m", 119 * time.Minute: "119m",
		2 * time.Hour: "2h", 5*time.Hour + 10*time.Minute: "5h10m", 30 * time.Hour: "30h", 48 * time.Hour: "2d", 1000 * time.Hour: "41d",
	} {
		assert.Equal(t, want, Duration(d), d)
	}
}

func TestBytes(t *testing.T) {
	for n, want := range map[int64]string{0: "0 bytes", 1: "1 byte", 1023: "1023 bytes", 5 << 10: "5 kB", 7<<20 + 1: "7 MB", 3 << 29: "1.5 GB"} {
		assert.Equal(t, want, Bytes(n))
	}
}

func TestAbbreviate(t *testing.T) {
	t.Parallel()
	const a, b, c = "0198c0de-0000-7000-8000-0000000a3f2a", "0198c0de-0000-7000-8000-0000000b3f2a", "0198c0df-0000-7000-8000-000000003f2a"
	assert.Equal(t, []string{"0198c0de…3f2a", "order-1", "0198c0df…3f2a", ""}, Abbreviate([]string{a, "order-1", c, ""}))
	assert.Equal(t, []string{"0198c0de…a3f2a", "0198c0de…b3f2a", "0198c0de…a3f2a", "0198c0df…03f2a"}, Abbreviate([]string{a, b, a, c}))
	assert.Equal(t, []string{"malformed:…12ab", "malformed:12ab"}, Abbreviate([]string{"malformed:" + strings.Repeat("0", 60) + "12ab", "malformed:12ab"}))
}

func TestParseAbbreviation(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Abbreviation{
		"0198c0de…3f2a": {Start: "0198c0de", End: "3f2a"}, "0198C0DE..3F2A": {Start: "0198c0de", End: "3f2a"}, "0198c0de-...": {Start: "0198c0de-"},
		"…3f2a": {End: "3f2a"}, "malformed:…12ab": {Start: "malformed:", End: "12ab"}, "0198": {Start: "0198", Either: true}, "0198c0de-00": {Start: "0198c0de-00", Either: true},
	} {
		got, ok := ParseAbbreviation(text)
		assert.True(t, ok, text)
		assert.Equal(t, want, got, text)
	}
	for _, text := range []string{"", "e1", "order-1", "019", "…", "0198c0de-0000-7000-8000-000000003f2a", "0198c0de%", "…3f2a…"} {
		_, ok := ParseAbbreviation(text)
		assert.False(t, ok, text)
	}
}

func TestOneLine(t *testing.T) {
	t.Parallel()
	assert.Equal(t, `psql -c "select 1" \d`, OneLine(`psql -c "select 1" \d`), "what can be printed stays")
	assert.Equal(t, `a\nb\x1b\xff\u202e"é"`, OneLine("a\nb\x1b\xff\u202e\"é\""))
}
