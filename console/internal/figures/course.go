package figures

import (
	"fmt"
	"strings"
	"time"
)

// Course is how many events passed in the minutes of the last hour: a consumer handled them, or a relay published them.
type Course struct {
	Now     time.Time // the server's, when it was read
	Minutes []Passed  // the oldest first; none where nobody counted
}

// Passed is how many events passed in a minute.
type Passed struct {
	At time.Time // its beginning
	N  int64
}

// lately is the number of minutes that a rate averages, with the current one.
const lately = 5

// recent returns the start of those minutes.
func recent(now time.Time) time.Time {
	return now.Truncate(time.Minute).Add(-(lately - 1) * time.Minute)
}

// PerSecond returns the average rate of the last minutes, in events per second. It returns 0 also if nobody counted.
func (c Course) PerSecond() float64 {
	n, from := int64(0), recent(c.Now)
	for _, m := range c.Minutes {
		if !m.At.Before(from) {
			n += m.N
		}
	}
	return float64(n) / max(c.Now.Sub(from).Seconds(), 1)
}

// Rate formats PerSecond, or the rate per minute if PerSecond is below one. It returns "–" if nobody counted.
func (c Course) Rate() string {
	perSecond := c.PerSecond()
	switch {
	case len(c.Minutes) == 0:
		return "–"
	case perSecond == 0:
		return "0"
	case perSecond >= 9.95:
		return fmt.Sprintf("%.0f/s", perSecond)
	case perSecond >= 1:
		return fmt.Sprintf("%.1f/s", perSecond)
	case perSecond*60 >= 9.95:
		return fmt.Sprintf("%.0f/min", perSecond*60)
	}
	return fmt.Sprintf("%.1f/min", perSecond*60)
}

// Spark is a line of what passed in each minute of the last hour.
type Spark struct {
	Line, Area string // paths in a box of 96 by 20
	X, Y       string // of the last point
	Most       int64  // in one minute
}

const sparkWidth, sparkHeight, sparkPoints = 96.0, 20.0, 60

// Spark draws the hour, or returns nil if nobody counted. It leaves out the current minute, which would always look like a drop.
func (c Course) Spark() *Spark {
	if len(c.Minutes) == 0 {
		return nil
	}
	var points [sparkPoints]int64
	last := c.Now.Truncate(time.Minute).Add(-time.Minute)
	s := &Spark{}
	for _, m := range c.Minutes {
		if i := sparkPoints - 1 - int(last.Sub(m.At)/time.Minute); i >= 0 && i < sparkPoints && !m.At.After(last) {
			points[i] += m.N
			s.Most = max(s.Most, points[i])
		}
	}
	var line strings.Builder
	for i, n := range points {
		s.X = fmt.Sprintf("%.1f", 1+float64(i)*(sparkWidth-4)/(sparkPoints-1))
		s.Y = fmt.Sprintf("%.1f", sparkHeight-2-float64(n)*(sparkHeight-4)/float64(max(s.Most, 1)))
		fmt.Fprintf(&line, "%c%s %s", "ML"[min(i, 1)], s.X, s.Y)
	}
	s.Line = line.String()
	s.Area = s.Line + fmt.Sprintf("L%s %.0fL1 %.0fZ", s.X, sparkHeight, sparkHeight)
	return s
}
