package words

import (
	"errors"
	"strconv"
	"strings"
	"time"
)

// ParseAge parses a duration in Go's form, or a number of days: 90d.
func ParseAge(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if number, ok := strings.CutSuffix(text, "d"); ok {
		var n uint64
		n, err = strconv.ParseUint(number, 10, 16)
		d = time.Duration(n) * 24 * time.Hour
	}
	if err != nil || d <= 0 {
		return 0, errors.New("want an age such as 90d or 12h")
	}
	return d, nil
}

// ParseMoment parses a point in time, a day, or how long ago it was.
func ParseMoment(text string, now time.Time) (time.Time, error) {
	if ago, err := ParseAge(text); err == nil {
		return now.Add(-ago), nil
	}
	for _, layout := range []string{time.RFC3339, time.DateOnly} {
		if at, err := time.Parse(layout, text); err == nil {
			return at, nil
		}
	}
	return time.Time{}, errors.New("want a time such as 2026-01-31T14:00:00Z, a day such as 2026-01-31 (UTC), or an age such as 2d or 12h")
}
