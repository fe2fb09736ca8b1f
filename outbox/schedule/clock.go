package schedule

import (
	"time"

	"github.com/robfig/cron/v3"
)

// clock knows the times of an expression in a zone. It reads no time by itself.
type clock struct {
	spec *cron.SpecSchedule // reads times in their own zone
	zone *time.Location
}

// clock is that of times which are valid and have an expression.
func (t Times) clock() (clock, error) {
	spec, err := parse(t.Expression)
	if err != nil {
		return clock{}, err
	}
	zone, err := zoneOf(t.TimeZone)
	return clock{spec, zone}, err
}

// next is the first time after t.
func (c clock) next(t time.Time) time.Time {
	if c.spec.Hour&star != 0 {
		return c.elapsed(t)
	}
	// The parser would leave out what the clocks leave out, and return twice what they show twice. So it counts in clock time.
	shown := c.shown(t)
	for {
		if shown = c.spec.Next(shown); shown.IsZero() {
			return shown
		}
		if at := c.first(shown); at.After(t) {
			return at
		}
	}
}

// elapsed is next where each hour that passes counts. Between two changes of the clocks it counts with a fixed offset, because the
// parser would leave out a day that has no midnight, and the first of two midnights.
func (c clock) elapsed(t time.Time) time.Time {
	for since := t.In(c.zone); ; {
		_, offset := since.Zone()
		_, end := since.ZoneBounds()
		at := c.spec.Next(t.In(time.FixedZone("", offset)))
		if end.IsZero() || at.Before(end) {
			return at.UTC()
		}
		since, t = end, end.Add(-time.Second)
	}
}

// shown is what clocks in the zone show, as a time in UTC.
func (c clock) shown(t time.Time) time.Time {
	t = t.In(c.zone)
	return time.Date(t.Year(), t.Month(), t.Day(), t.Hour(), t.Minute(), t.Second(), 0, time.UTC)
}

// first is when clocks in the zone show this for the first time; if they leave it out, when they are put forward. A later
// clock time never has an earlier one.
func (c clock) first(shown time.Time) time.Time {
	t := time.Date(shown.Year(), shown.Month(), shown.Day(), shown.Hour(), shown.Minute(), shown.Second(), 0, c.zone)
	start, end := t.ZoneBounds()
	switch is := c.shown(t); {
	case is.After(shown):
		return start.UTC()
	case is.Before(shown):
		return end.UTC()
	case start.IsZero():
		return t.UTC()
	}
	_, seconds := start.Add(-time.Second).Zone()
	if before := shown.Add(-time.Duration(seconds) * time.Second); before.Before(start) {
		return before
	}
	return t.UTC()
}

// latest returns the last times after after, up to now, the oldest first: most of them, or fewer. left is the first one that it
// leaves out; zero if there is none. It looks back from now, because an outage may have missed millions of times.
func (c clock) latest(after, now time.Time, most int) (times []time.Time, left time.Time) {
	for window := time.Minute; ; window *= 2 {
		from := now.Add(-window)
		whole := !from.After(after)
		if whole {
			from = after
		}
		times = times[:0]
		for at := c.next(from); !at.IsZero() && !at.After(now); at = c.next(at) {
			times = append(times, at)
		}
		if len(times) > most {
			return times[len(times)-most:], c.next(after)
		}
		if whole {
			return times, time.Time{}
		}
	}
}
