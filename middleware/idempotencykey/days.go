package idempotencykey

import (
	"strings"
	"sync/atomic"
	"time"
)

// clock estimates the server's clock from its answers to earlier requests. The zero value is the process's clock.
type clock struct{ ahead atomic.Int64 }

func (c *clock) now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

// set corrects the clock, and reports whether it had the wrong day.
func (c *clock) set(server, assumed time.Time) (wrong bool) {
	if dayOf(server).Equal(dayOf(assumed)) {
		return false
	}
	c.ahead.Store(int64(time.Until(server)))
	return true
}

func dayOf(t time.Time) time.Time { return t.UTC().Truncate(24 * time.Hour) }

// findAt returns the statement that looks for an answer in the retained days up to the day of now. Its text changes each day. The time
// of day does not matter, because only the day is the server's.
func (k *Keys) findAt(now time.Time) string {
	var days []string
	before := int((k.cfg.Retention + 24*time.Hour - 1) / (24 * time.Hour))
	for day := dayOf(now).AddDate(0, 0, -before); !day.After(now); day = day.AddDate(0, 0, 1) {
		days = append(days, day.Format(time.DateOnly))
	}
	return strings.Replace(k.find, "{}", "{"+strings.Join(days, ",")+"}", 1)
}
