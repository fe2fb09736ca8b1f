package filter

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/millrace-go/millrace/internal/words"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
)

// ArchiveNames are the URL parameters that select archived events.
var ArchiveNames = []string{"topic", "key", "since", "until"}

// Archive is a selection of archived events, from a URL or a form.
type Archive struct {
	Topic, Key, Since, Until string // as the user entered them
	outboxadmin.ArchiveSelection
	Wrong string
}

// ArchiveFromQuery reads a selection. now is the database's time.
func ArchiveFromQuery(f url.Values, now time.Time) (a Archive) {
	get := func(name string) string {
		value := strings.TrimSpace(f.Get(name))
		if !Usable(value) {
			value, a.Wrong = "", "The "+name+" contains an invalid character, or it is too long."
		}
		return value
	}
	moment := func(name, text string) (at time.Time) {
		if text == "" {
			return at
		}
		at, err := words.ParseMoment(text, now)
		if err != nil {
			a.Wrong = fmt.Sprintf("%s is %q: %s.", name, text, err)
		}
		return at
	}
	a.Topic, a.Key, a.Since, a.Until = get("topic"), get("key"), get("since"), get("until")
	a.ArchiveSelection = outboxadmin.ArchiveSelection{Topic: a.Topic, Key: a.Key, Since: moment("since", a.Since), Until: moment("until", a.Until)}
	if s := a.ArchiveSelection; a.Wrong == "" && !s.Since.IsZero() && !s.Until.IsZero() && !s.Since.Before(s.Until) {
		a.Wrong = fmt.Sprintf("since is %q: want a time before until, which is %q.", a.Since, a.Until)
	}
	return a
}

// Query returns the selection as URL parameters.
func (a Archive) Query() url.Values {
	q := url.Values{}
	for i, value := range []string{a.Topic, a.Key, a.Since, a.Until} {
		if value != "" {
			q.Set(ArchiveNames[i], value)
		}
	}
	return q
}

// PositionText returns a position in the archive for a URL. Times are in microseconds, like PostgreSQL's.
func PositionText(p outboxadmin.ArchivePosition) string {
	return fmt.Sprintf("%d.%d.%d.%d", p.Published.UnixMicro(), p.Created.UnixMicro(), p.Seq, p.Shard)
}

// ParsePosition reads a position. "" is the start of the list, before the newest event.
func ParsePosition(text string) (p outboxadmin.ArchivePosition, ok bool) {
	if text == "" {
		return p, true
	}
	parts := strings.Split(text, ".")
	if len(parts) != 4 {
		return p, false
	}
	var n [4]int64
	for i, part := range parts {
		bits := 64
		if i == 3 {
			bits = 16
		}
		var err error
		if n[i], err = strconv.ParseInt(part, 10, bits); err != nil || n[i] < 0 || i < 2 && n[i] > maxMicros {
			return p, false
		}
	}
	return outboxadmin.ArchivePosition{Published: time.UnixMicro(n[0]), Created: time.UnixMicro(n[1]), Seq: n[2], Shard: int16(n[3])}, true
}

// maxMicros is a time in the year 9999, in microseconds. PostgreSQL accepts it.
const maxMicros = 253_370_764_800_000_000

// Usable reports whether a text from a URL can be an ID or a name. PostgreSQL refuses other texts.
func Usable(text string) bool {
	return len(text) <= 2000 && utf8.ValidString(text) && !strings.ContainsRune(text, 0)
}

// Flags returns the flags of the equivalent command, which replays to a topic at a rate; "" for the topic that an event had.
func (a Archive) Flags(to, rate string) (flags []string) {
	if a.Topic == "" && a.Key == "" {
		flags = []string{"--all"}
	}
	for _, flag := range [][2]string{{"--topic", a.Topic}, {"--key", a.Key}, {"--since", a.Since}, {"--until", a.Until}, {"--to", to}, {"--rate", rate}} {
		if flag[1] != "" {
			flags = append(flags, flag[0], flag[1])
		}
	}
	return flags
}
