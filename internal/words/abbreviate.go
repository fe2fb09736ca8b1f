package words

import (
	"regexp"
	"slices"
	"strings"
)

var whole = regexp.MustCompile(`^([0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|malformed:[0-9a-f]{64})$`)

// malformed begins the IDs of events without an ID; a hash follows.
const malformed = "malformed:"

// Abbreviate shortens IDs that are UUIDs, as in "0198c0de…3f2a". A UUIDv7 begins with its time, which events of the same minute share,
// and ends with random digits. The end is as long as needed to distinguish all of them. IDs of events without an ID become
// "malformed:…3f2a". Other IDs are not shortened.
func Abbreviate(ids []string) []string {
	all := slices.Clone(ids)
	slices.Sort(all)
	all = slices.Compact(all)
	short := func(id string, end int) string {
		start := 8
		if strings.HasPrefix(id, malformed) {
			start = len(malformed)
		}
		return id[:start] + "…" + id[len(id)-end:]
	}
	end := 4
	for ; end < 12; end++ {
		seen := map[string]bool{}
		clash := false
		for _, id := range all {
			if whole.MatchString(id) {
				clash = clash || seen[short(id, end)]
				seen[short(id, end)] = true
			}
		}
		if !clash {
			break
		}
	}
	shortened := make([]string, len(ids))
	for i, id := range ids {
		if shortened[i] = id; whole.MatchString(id) {
			shortened[i] = short(id, end)
		}
	}
	return shortened
}

var part = regexp.MustCompile(`^[0-9a-f-]*$`)

// Abbreviation is a part of an ID that identifies it.
type Abbreviation struct {
	Start, End string // the beginning and the end of the ID
	Either     bool   // Start may also be the end, and End is ""
}

// ParseAbbreviation parses what Abbreviate prints. It also accepts two or three full stops for "…", and only the beginning or the end of
// a UUID. ok is false for whole IDs, and for text that could be another system's ID.
func ParseAbbreviation(text string) (a Abbreviation, ok bool) {
	text = strings.ToLower(text)
	for _, dots := range []string{"…", "...", ".."} {
		if start, end, found := strings.Cut(text, dots); found {
			a = Abbreviation{Start: start, End: end}
			break
		}
	}
	if a == (Abbreviation{}) {
		a = Abbreviation{Start: text, Either: true}
	}
	start := strings.TrimPrefix(a.Start, malformed)
	digits := len(strings.ReplaceAll(start+a.End, "-", ""))
	return a, part.MatchString(start) && part.MatchString(a.End) && digits >= 4 && digits < 32
}
