package schedule

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/millrace-go/millrace/internal/enum"
)

// Missed says what becomes of the times at which no process could fire a schedule.
type Missed int

const (
	// Skip fires only for the latest of them.
	Skip Missed = iota
	// CatchUp fires for each of them, the oldest first.
	CatchUp
)

func (m Missed) String() string {
	switch m {
	case Skip:
		return "Skip"
	case CatchUp:
		return "CatchUp"
	}
	return fmt.Sprintf("Missed(%d)", int(m))
}

// MarshalText writes the word that a configuration file has: skip or catch_up.
func (m Missed) MarshalText() ([]byte, error) { return enum.Text(m, Skip, CatchUp) }

// UnmarshalText reads it.
func (m *Missed) UnmarshalText(word []byte) error { return enum.Read(m, word, Skip, CatchUp) }

// Times says when a schedule fires.
type Times struct {
	// Expression is a cron expression. Its fields are minute, hour, day of the month, month and day of the week, as in
	// "30 3 * * mon-fri"; a sixth one before them is the second. If both the day of the month and the day of the week are restricted,
	// a day that fits one of them is enough. "@hourly", "@daily", "@weekly", "@monthly" and "@yearly" are expressions too. Default:
	// the one that the program has.
	Expression string

	// TimeZone is the time zone of the expression, such as "Europe/Berlin". Where clocks are put forward, a time that they leave
	// out is the moment of the change. Where they are put back, a time that they show twice is the first of both. If the hour of
	// the expression is "*", the schedule fires in each hour that passes, whatever the clocks show. Default: "UTC".
	TimeZone string

	// Missed says what becomes of times at which no process could fire: Skip or CatchUp. Default: Skip.
	Missed Missed

	// MaxMissed is for how many missed times CatchUp fires. Earlier ones are left out. 1 to 1,000. Default: 100.
	MaxMissed int
}

const (
	defaultMaxMissed = 100
	mostMissed       = 1000
)

// Validate reports everything that is wrong with the times, which are the field of that name. An expression that is empty is
// the program's.
func (t Times) Validate(field string) error {
	var errs []error
	if _, err := zoneOf(t.TimeZone); err != nil {
		errs = append(errs, fmt.Errorf("%s.TimeZone is %q: %w", field, t.TimeZone, err))
	}
	if t.Expression != "" {
		if _, err := parse(t.Expression); err != nil {
			errs = append(errs, fmt.Errorf("%s.Expression is %q: %w", field, t.Expression, err))
		}
	}
	if t.Missed != Skip && t.Missed != CatchUp {
		errs = append(errs, fmt.Errorf("%s.Missed is %s: want Skip or CatchUp", field, t.Missed))
	}
	switch {
	case t.MaxMissed < 0 || t.MaxMissed > mostMissed:
		errs = append(errs, fmt.Errorf("%s.MaxMissed is %d: want 1 to %d, or 0 for the default of %d", field, t.MaxMissed, mostMissed, defaultMaxMissed))
	case t.MaxMissed > 0 && t.Missed == Skip:
		errs = append(errs, fmt.Errorf("%[1]s.MaxMissed is %[2]d: want 0, or %[1]s.Missed to be CatchUp, because Skip fires once", field, t.MaxMissed))
	}
	return errors.Join(errs...)
}

// most is for how many missed times the schedule fires.
func (t Times) most() int {
	switch {
	case t.Missed == Skip:
		return 1
	case t.MaxMissed == 0:
		return defaultMaxMissed
	}
	return t.MaxMissed
}

func zoneOf(name string) (*time.Location, error) {
	if name == "Local" {
		return nil, errors.New("want a zone that is the same for each process, such as \"Europe/Berlin\" or \"UTC\"")
	}
	zone, err := time.LoadLocation(name) // "" is UTC
	if err != nil {
		return nil, fmt.Errorf("want a name of the IANA database that this machine has, such as \"Europe/Berlin\" (if the machine has no such database, import time/tzdata): %w", err)
	}
	return zone, nil
}

var parser = cron.NewParser(cron.SecondOptional | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor)

// wanted ends the errors of expressions.
const wanted = `want "minute hour day-of-month month day-of-week", such as "30 3 * * mon-fri"`

// star is the bit by which the parser marks a field that is "*".
const star = 1 << 63

func parse(expression string) (*cron.SpecSchedule, error) {
	if strings.HasPrefix(expression, "TZ=") || strings.HasPrefix(expression, "CRON_TZ=") {
		return nil, fmt.Errorf("%s, and the zone in TimeZone", wanted)
	}
	parsed, err := parser.Parse(expression)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", wanted, err)
	}
	spec, ok := parsed.(*cron.SpecSchedule)
	if !ok {
		return nil, fmt.Errorf(`%s; an interval, such as "*/10 * * * *", is counted from the hour, and the same for each process`, wanted)
	}
	for _, field := range []uint64{spec.Second, spec.Minute, spec.Hour, spec.Dom, spec.Month, spec.Dow} {
		if field&^star == 0 {
			return nil, fmt.Errorf("%s: a field names nothing", wanted)
		}
	}
	if spec.Next(time.Date(2001, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		return nil, fmt.Errorf("%s: no month has such a day", wanted)
	}
	return spec, nil
}
