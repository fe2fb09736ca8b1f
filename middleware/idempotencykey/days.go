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

// findAt returns the statement that looks for an answer in the retained days up to now. Its text changes each day.
func (k *Keys) findAt(now time.Time) string {
	var days []string
	for day := dayOf(now.Add(-k.cfg.Retention)); !day.After(now); day = day.AddDate(0, 0, 1) {
		days = append(days, day.Format(time.DateOnly))
	}
	return strings.Replace(k.find, "{}", "{"+strings.Join(days, ",")+"}", 1)
}
