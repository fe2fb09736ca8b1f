package schedule

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func clockOf(t require.TestingT, expression, zone string) clock {
	c, err := Times{Expression: expression, TimeZone: zone}.clock()
	require.NoError(t, err)
	return c
}

func TestScheduleTimes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ expression, zone, after, want string }{
		"daily":                                  {"0 3 * * *", "", "2026-01-31T03:00:00Z", "2026-02-01T03:00:00Z 2026-02-02T03:00:00Z"},
		"seconds":                                {"*/20 * * * * *", "UTC", "2026-01-31T03:00:00.5Z", "2026-01-31T03:00:20Z 2026-01-31T03:00:40Z"},
		"a descriptor":                           {"@monthly", "", "2026-01-31T03:00:00Z", "2026-02-01T00:00:00Z 2026-03-01T00:00:00Z"},
		"workdays":                               {"0 9 * * mon-fri", "America/New_York", "2026-01-30T15:00:00Z", "2026-02-02T14:00:00Z 2026-02-03T14:00:00Z"},
		"either day":                             {"0 0 13 * fri", "", "2026-02-12T00:00:00Z", "2026-02-13T00:00:00Z 2026-02-20T00:00:00Z"},
		"a leap day":                             {"0 0 29 2 *", "", "2025-01-01T00:00:00Z", "2028-02-29T00:00:00Z"},
		"left out":                               {"30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", "2026-03-29T01:00:00Z 2026-03-30T00:30:00Z"},
		"twice":                                  {"30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", "2026-10-25T00:30:00Z 2026-10-26T01:30:00Z"},
		"between both":                           {"30 2 * * *", "Europe/Berlin", "2026-10-25T01:15:00Z", "2026-10-26T01:30:00Z"},
		"left out in a row":                      {"*/30 1-3 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", "2026-03-29T00:00:00Z 2026-03-29T00:30:00Z 2026-03-29T01:00:00Z 2026-03-29T01:30:00Z 2026-03-29T23:00:00Z"},
		"twice in a row":                         {"*/30 1-3 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", "2026-10-24T23:00:00Z 2026-10-24T23:30:00Z 2026-10-25T00:00:00Z 2026-10-25T00:30:00Z 2026-10-25T02:00:00Z"},
		"each hour, forward":                     {"0 * * * *", "Europe/Berlin", "2026-03-28T23:30:00Z", "2026-03-29T00:00:00Z 2026-03-29T01:00:00Z 2026-03-29T02:00:00Z"},
		"each hour, back":                        {"0 * * * *", "Europe/Berlin", "2026-10-24T23:30:00Z", "2026-10-25T00:00:00Z 2026-10-25T01:00:00Z 2026-10-25T02:00:00Z"},
		"each hour of a day without a midnight":  {"0 * * * fri", "Africa/Cairo", "2026-04-23T20:00:00Z", "2026-04-23T22:00:00Z 2026-04-23T23:00:00Z"},
		"each hour of a Sunday without one":      {"0 * * * sun", "Asia/Beirut", "2026-03-28T21:00:00Z", "2026-03-28T22:00:00Z 2026-03-28T23:00:00Z"},
		"each hour of a month without one":       {"0 * * oct *", "America/Asuncion", "2017-09-30T12:00:00Z", "2017-10-01T04:00:00Z 2017-10-01T05:00:00Z"},
		"each hour of a day with two midnights":  {"0 * * * fri", "Asia/Amman", "2021-10-28T12:00:00Z", "2021-10-28T21:00:00Z 2021-10-28T22:00:00Z 2021-10-28T23:00:00Z"},
		"each hour of a day that is shown again": {"0 * * * sat", "Asia/Beirut", "2026-10-24T20:30:00Z", "2026-10-24T21:00:00Z 2026-10-30T22:00:00Z"},
		"no midnight":                            {"@daily", "America/Sao_Paulo", "2018-11-03T12:00:00Z", "2018-11-04T03:00:00Z 2018-11-05T02:00:00Z"},
		"a day that never was":                   {"0 12 * * *", "Pacific/Apia", "2011-12-29T22:00:00Z", "2011-12-30T10:00:00Z 2011-12-30T22:00:00Z"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			at, err := time.Parse(time.RFC3339, c.after)
			require.NoError(t, err)
			var got string
			for len(got) < len(c.want) {
				at = clockOf(t, c.expression, c.zone).next(at)
				got += at.Format(time.RFC3339) + " "
			}
			assert.Equal(t, c.want+" ", got)
		})
	}
}

// drawClock returns the clock of an expression, without seconds, in a zone that changes its clocks at midnight, at another time, or never.
func drawClock(t *rapid.T) clock {
	return clockOf(t,
		rapid.SampledFrom([]string{
			"30 2 * * *", "0,30 0-4 * * *", "*/7 * * * *", "59 */2 * * sun", "0 0 1 */3 *", "15 1-2 25-31 mar,oct *", "0 * * * sun", "*/20 * * * fri", "0 * 24-31 * fri", "0 * * oct *",
		}).Draw(t, "expression"),
		rapid.SampledFrom([]string{
			"UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Sao_Paulo", "Pacific/Apia", "Asia/Kathmandu",
			"Africa/Cairo", "Asia/Beirut", "Asia/Amman", "America/Asuncion", "America/Havana",
		}).Draw(t, "zone"))
}

// Around a change of the clocks, the times are those that somebody finds who watches the clocks each minute.
func TestScheduleTimesAreWhatClocksShow(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := drawClock(t)
		from := time.Unix(rapid.Int64Range(1_000_000_000, 2_000_000_000).Draw(t, "from"), 0)
		if _, change := from.In(c.zone).ZoneBounds(); !change.IsZero() {
			from = change.Add(-time.Duration(rapid.IntRange(0, 36*60).Draw(t, "minutes before the change")) * time.Minute)
		}
		from = from.UTC().Truncate(time.Minute)
		until := from.Add(72 * time.Hour)
		var want, got []time.Time
		latest := c.shown(from.Add(-3 * time.Hour)) // that the clocks have shown
		for at := from.Add(-3 * time.Hour); !at.After(until); at = at.Add(time.Minute) {
			shown := c.shown(at)
			due := c.spec.Hour&star != 0 && fits(c, shown)
			for ; c.spec.Hour&star == 0 && latest.Before(shown); due = due || fits(c, latest) {
				latest = latest.Add(time.Minute)
			}
			if due && at.After(from) {
				want = append(want, at.UTC())
			}
		}
		for at := c.next(from); !at.After(until); at = c.next(at) {
			got = append(got, at)
		}
		require.Equal(t, want, got, "after %v", from)
	})
}

// fits tells whether the clock's expression has a minute that clocks show.
func fits(c clock, shown time.Time) bool {
	has := func(field uint64, value int) bool { return field&(1<<value) != 0 }
	day, weekday := has(c.spec.Dom, shown.Day()), has(c.spec.Dow, int(shown.Weekday()))
	either := (c.spec.Dom|c.spec.Dow)&star == 0 && (day || weekday)
	return has(c.spec.Minute, shown.Minute()) && has(c.spec.Hour, shown.Hour()) && has(c.spec.Month, int(shown.Month())) && (day && weekday || either)
}

// Whatever the zone does to its clocks, times rise, no other time lies between one and the next, and what was missed is found
// the same from behind.
func TestScheduleTimesRise(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := drawClock(t)
		from := time.Unix(rapid.Int64Range(1_000_000_000, 2_000_000_000).Draw(t, "from"), 0)
		var all []time.Time
		for at := from; len(all) < 50; {
			next := c.next(at)
			require.True(t, next.After(at), "%v after %v", next, at)
			between := at.Add(time.Duration(rapid.Int64Range(0, int64(next.Sub(at))-1).Draw(t, "between")))
			require.Equal(t, next, c.next(between), "after %v", between)
			all, at = append(all, next), next
		}
		n, most := rapid.IntRange(0, len(all)-1).Draw(t, "missed"), rapid.IntRange(1, 60).Draw(t, "most")
		got, left := c.latest(from, all[n].Add(-time.Nanosecond), most)
		require.True(t, slices.Equal(all[max(0, n-most):n], got), "%v of %v", got, all[:n])
		if n > most {
			require.Equal(t, all[0], left)
		} else {
			require.Zero(t, left)
		}
	})
}

// A process that was gone for years finds the latest times at once.
func TestScheduleLongOutage(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
	times, left := clockOf(t, everySecond, "").latest(time.Date(1990, 1, 1, 0, 0, 0, 0, time.UTC), now, 2)
	assert.Equal(t, []time.Time{now.Add(-time.Second), now}, times)
	assert.Equal(t, time.Date(1990, 1, 1, 0, 0, 1, 0, time.UTC), left)
}

func TestScheduleMistakes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		times Times
		want  string
	}{
		{Times{Expression: "61 * * * *"}, `Times.Expression is "61 * * * *": want "minute hour day-of-month month day-of-week", such as "30 3 * * mon-fri": end of range (61) above maximum (59)`},
		{Times{Expression: "0 3 * *"}, `found 4`},
		{Times{Expression: "@every 5m"}, `an interval, such as "*/10 * * * *"`},
		{Times{Expression: "@reboot"}, `unrecognized descriptor`},
		{Times{Expression: "TZ=UTC"}, `and the zone in TimeZone`},
		{Times{Expression: "CRON_TZ=UTC 0 3 * * *"}, `and the zone in TimeZone`},
		{Times{Expression: "0 0 30 2 *"}, `no month has such a day`},
		{Times{Expression: ", 3 * * *"}, `a field names nothing`},
		{Times{}, `Times.Expression is empty: want "minute`},
		{Times{Expression: newYear, TimeZone: "Berlin"}, `Times.TimeZone is "Berlin": want a name of the IANA database`},
		{Times{Expression: newYear, TimeZone: "Local"}, `Times.TimeZone is "Local": want a zone that is the same for each process`},
		{Times{Expression: newYear, Missed: 7}, `Times.Missed is Missed(7): want`},
		{Times{Expression: newYear, Missed: CatchUp, MaxMissed: 1001}, `Times.MaxMissed is 1001: want 1 to 1000`},
		{Times{Expression: newYear, MaxMissed: 5}, `Times.MaxMissed is 5: want 0, or Times.Missed to be CatchUp`},
	} {
		assert.ErrorContains(t, report(c.times).Validate(), c.want)
	}
	_, err := New(nil, nil, Config{Schema: "A"}, report(Times{Expression: newYear}), report(Times{Expression: newYear}), Event{})
	for _, want := range []string{
		"pool is nil: want", "publisher is nil: want", "Config.Service is empty: want", `Config.Schema is "A": want`,
		`schedule "report": Name is another schedule's: give each a name of its own`, `schedule "": Name is "": want 1 to 100 letters`, "Topic is empty: want", "Message is nil: want",
	} {
		assert.ErrorContains(t, err, want)
	}
}

// An event's ID is a stored format: it must never change.
func TestScheduleEventID(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 29, 3, 0, 0, 0, time.FixedZone("CEST", 2*60*60))
	assert.Equal(t, "billing/report@2026-03-29T01:00:00Z", eventID("billing", "report", at))
}
