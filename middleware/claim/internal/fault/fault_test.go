package fault

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/middleware/claim/internal/store"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/retry"
)

type later time.Duration

func (l later) Error() string             { return "later" }
func (l later) RetryAfter() time.Duration { return time.Duration(l) }

func TestWhoseFaultAFailureIs(t *testing.T) {
	oops := errors.New("oops")
	code := func(code string) error {
		return fmt.Errorf("update: %w", &pgconn.PgError{Code: code, SeverityUnlocalized: "ERROR"})
	}
	outage := Fault{}
	for name, c := range map[string]struct {
		ran, stopping, panicked bool
		err                     error
		want                    Fault
	}{
		"the handler's error":            {ran: true, err: oops, want: Fault{Reason: ReasonError, Counted: true}},
		"permanent":                      {ran: true, err: fmt.Errorf("parse: %w", Permanent(oops)), want: Fault{Reason: ReasonPermanent, Counted: true, Hopeless: true}},
		"a panic":                        {ran: true, panicked: true, err: oops, want: Fault{Reason: ReasonPanic, Counted: true}},
		"a panic with a permanent error": {ran: true, panicked: true, err: Permanent(oops), want: Fault{Reason: ReasonPermanent, Counted: true, Hopeless: true}},
		"the deadline":                   {ran: true, err: &lateError{nil}, want: Fault{Reason: ReasonDeadline, Counted: true}},
		"its connection came too late":   {ran: true, err: starvedError{&lateError{oops}}, want: outage},
		"the deadline in a statement":    {ran: true, err: &lateError{lostError{oops}}, want: Fault{Reason: ReasonDeadline, Counted: true}},
		"a timeout of its own":           {ran: true, err: context.DeadlineExceeded, want: Fault{Reason: ReasonError, Counted: true}},
		"it asked for another time":      {ran: true, err: fmt.Errorf("pay: %w", later(7)), want: Fault{Reason: ReasonRetry, After: 7}},
		"for one in the past":            {ran: true, err: later(-7), want: Fault{Reason: ReasonRetry}},
		"cancelled by the shutdown":      {ran: true, stopping: true, err: context.Canceled, want: outage},
		"cancelled by itself":            {ran: true, err: context.Canceled, want: Fault{Reason: ReasonError, Counted: true}},
		"an error while stopping":        {ran: true, stopping: true, err: oops, want: Fault{Reason: ReasonError, Counted: true}},
		"a constraint":                   {ran: true, err: code("23505"), want: Fault{Reason: ReasonError, Counted: true}},
		"a statement timeout":            {ran: true, err: code("57014"), want: Fault{Reason: ReasonError, Counted: true}},
		"a serialization failure":        {ran: true, err: code("40001"), want: outage},
		"a deadlock":                     {ran: true, err: code("40P01"), want: outage},
		"the server shuts down":          {ran: true, err: code("57P01"), want: outage},
		"a full disk":                    {ran: true, err: code("53100"), want: outage},
		"a failover":                     {ran: true, err: code("25006"), want: outage},
		"the connection was lost":        {ran: true, err: lostError{Permanent(oops)}, want: outage},
		"at the commit":                  {ran: true, err: fmt.Errorf("commit: %w", pgtx.ErrOutcomeUnknown), want: outage},
		"the claim was not got":          {err: oops, want: outage},
		"too old":                        {err: fmt.Errorf("claim: %w", store.ErrTooOld), want: Fault{Reason: ReasonWindow, Hopeless: true}},
		"too old, says the handler":      {ran: true, err: store.ErrTooOld, want: Fault{Reason: ReasonError, Counted: true}},
		"from the future":                {err: store.ErrClock, want: Fault{Reason: ReasonClock, Counted: true}},
		"malformed":                      {err: Malformed{oops}, want: Fault{Reason: ReasonMalformed, Hopeless: true}},
	} {
		assert.Equal(t, c.want, Of(Failure{Err: c.err, Ran: c.ran, Stopping: c.stopping, Panicked: c.panicked}), name)
	}
}

func TestVerdict(t *testing.T) {
	cfg := Policy{MaxAttempts: 3, Backoff: func(attempt int) time.Duration { return time.Duration(attempt) * time.Minute }}
	verdict := func(state, reason string, attempts int, delay time.Duration) store.Verdict {
		return store.Verdict{State: state, Reason: reason, Attempts: attempts, Delay: delay}
	}
	failed := Fault{Reason: ReasonError, Counted: true}
	for name, c := range map[string]struct {
		fault    Fault
		attempts int // before
		back     bool
		want     store.Verdict
	}{
		"the first attempt, the broker keeps it":   {failed, 0, false, verdict(store.StateNacked, ReasonError, 1, time.Minute)},
		"the first attempt, the table keeps it":    {failed, 0, true, verdict(store.StateRetrying, ReasonError, 1, time.Minute)},
		"the last but one":                         {failed, 1, true, verdict(store.StateRetrying, ReasonError, 2, 2*time.Minute)},
		"the last":                                 {failed, 2, true, verdict(store.StateDead, ReasonAttempts, 3, 0)},
		"the last, from the broker":                {failed, 2, false, verdict(store.StateDead, ReasonAttempts, 3, 0)},
		"one more, after a replay":                 {failed, 3, true, verdict(store.StateDead, ReasonAttempts, 4, 0)},
		"permanent":                                {Fault{Reason: ReasonPermanent, Counted: true, Hopeless: true}, 0, true, verdict(store.StateDead, ReasonPermanent, 1, 0)},
		"outside of the window, which ran nothing": {Fault{Reason: ReasonWindow, Hopeless: true}, 0, true, verdict(store.StateDead, ReasonWindow, 0, 0)},
		"from the future":                          {Fault{Reason: ReasonClock, Counted: true}, 0, false, verdict(store.StateNacked, ReasonClock, 1, time.Minute)},
		"from the future, with a table":            {Fault{Reason: ReasonClock, Counted: true}, 0, true, verdict(store.StateNacked, ReasonClock, 1, time.Minute)},
		"from the future too often":                {Fault{Reason: ReasonClock, Counted: true}, 2, true, verdict(store.StateDead, ReasonClock, 3, 0)},
		"at once is no time":                       {Fault{Reason: ReasonRetry}, 0, true, verdict(store.StateRetrying, ReasonRetry, 0, ContendedDelay)},
		"attempts and backoff of a rule":           {Fault{Reason: ReasonError, Counted: true, Rule: retry.Rule{MaxAttempts: 9, MaxBackoff: time.Second}}, 5, true, verdict(store.StateRetrying, ReasonError, 6, time.Second)},
		"the last of a rule":                       {Fault{Reason: ReasonError, Counted: true, Rule: retry.Rule{MaxAttempts: 2}}, 1, true, verdict(store.StateDead, ReasonAttempts, 2, 0)},
		"ignored":                                  {Fault{Reason: ReasonError, Counted: true, Ignored: true}, 2, true, verdict(store.StateIgnored, ReasonIgnored, 3, 0)},
		"the last, beside others that fail":        {Fault{Reason: ReasonError, Counted: true, Doubtful: true}, 2, true, verdict(store.StateRetrying, ReasonOutage, 2, 3*time.Minute)},
		"another, beside others that fail":         {Fault{Reason: ReasonError, Counted: true, Doubtful: true}, 0, true, verdict(store.StateRetrying, ReasonError, 1, time.Minute)},
		"another time is no attempt":               {Fault{Reason: ReasonRetry, After: time.Hour}, 2, true, verdict(store.StateRetrying, ReasonRetry, 2, time.Hour)},
	} {
		v := c.fault.Verdict(c.attempts, c.back, cfg)
		assert.Equal(t, c.want, v, name)
		assert.Equal(t, c.want.State != store.StateNacked, v.Acks(), name)
	}
}

// A rule's backoff doubles up to its longest, or a minute, less a random quarter.
func TestBackoffOfARule(t *testing.T) {
	cfg := Policy{Backoff: Backoff}
	for _, c := range []struct {
		rule     retry.Rule
		attempts int
		longest  time.Duration
	}{
		{retry.Rule{}, 3, 4 * time.Second},
		{retry.Rule{MaxBackoff: 2 * time.Second}, 5, 2 * time.Second},
		{retry.Rule{Backoff: 4 * time.Second}, 1, 4 * time.Second},
		{retry.Rule{Backoff: 4 * time.Second}, 2, 8 * time.Second},
		{retry.Rule{Backoff: 4 * time.Second}, 100, time.Minute},
		{retry.Rule{Backoff: time.Hour}, 100, time.Hour},
		{retry.Rule{Backoff: time.Second, MaxBackoff: time.Hour}, 100, time.Hour},
	} {
		d := cfg.Wait(c.rule, c.attempts)
		assert.LessOrEqual(t, d, c.longest, c)
		assert.GreaterOrEqual(t, d, c.longest*3/4-1, c)
	}
}

func TestDefaultBackoff(t *testing.T) {
	for attempt, longest := range map[int]time.Duration{0: time.Second, 1: time.Second, 2: 2 * time.Second, 6: 32 * time.Second, 7: time.Minute, 1 << 40: time.Minute} {
		for range 100 {
			d := Backoff(attempt)
			assert.LessOrEqual(t, d, longest)
			assert.Greater(t, d, longest*3/4-1)
		}
	}
	assert.NoError(t, Permanent(nil))
	assert.False(t, IsPermanent(errors.New("oops")))
}
