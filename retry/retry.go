// Package retry defines how often and when a failed event is retried, by its topic and its error. A relay uses a Policy as
// outbox.RelayConfig.Retry, and a claim uses one as claim.Config.Retry.
package retry

import (
	"errors"
	"fmt"
	"path"
	"strings"
	"time"
)

// Policy is a list of rules. The first rule that matches an event's topic and error decides. The configuration that contains the
// policy decides the rest. A Policy must not be changed while it is in use.
type Policy []Rule

// Rule defines what happens to failed events.
type Rule struct {
	// Topic is the topic of the events, or a pattern such as "labour.*", where "*" stands for any text without a slash: see
	// path.Match. Default: any topic.
	Topic string

	// Error reports whether the rule is for this error: errors.Is and errors.As look into it. It is called by several goroutines at
	// once, and must return quickly. Default: any error.
	Error func(err error) bool

	// ErrorText is a part of the text of the errors that the rule is for. Default: any error.
	ErrorText string `yaml:"error"`

	// Dead makes the event dead at once: an operator decides about it. Default: false.
	Dead bool

	// Ignore settles the event as done, without effect: what its handler wrote is undone, and it is not retried. Only a claim can
	// ignore. Default: false.
	Ignore bool

	// MaxAttempts is how often the event may fail before it is dead. Default: the configuration's.
	MaxAttempts int

	// Backoff is the wait after the first failure. Each further failure doubles it, up to MaxBackoff. Default: the configuration's.
	Backoff, MaxBackoff time.Duration
}

// For returns the first matching rule, with zero fields replaced by those of defaults. If no rule matches, it returns defaults.
func (p Policy) For(topic string, err error, defaults Rule) Rule {
	r, ok := p.Find(topic, err)
	if !ok {
		return defaults
	}
	if r.MaxAttempts == 0 {
		r.MaxAttempts = defaults.MaxAttempts
	}
	if r.Backoff == 0 {
		r.Backoff = defaults.Backoff
	}
	if r.MaxBackoff == 0 {
		r.MaxBackoff = max(r.Backoff, defaults.MaxBackoff)
	}
	return r
}

// Find returns the first matching rule unchanged, and whether there is one.
func (p Policy) Find(topic string, err error) (Rule, bool) {
	for _, r := range p {
		if r.fits(topic, err) {
			return r, true
		}
	}
	return Rule{}, false
}

func (r Rule) fits(topic string, err error) bool {
	if r.Topic != "" {
		if ok, wrong := path.Match(r.Topic, topic); !ok || wrong != nil {
			return false
		}
	}
	return (r.Error == nil || r.Error(err)) && strings.Contains(err.Error(), r.ErrorText)
}

// Wait returns the wait after this number of failures, 1 or more.
func (r Rule) Wait(failures int) time.Duration {
	wait := r.Backoff
	for ; failures > 1 && wait < r.MaxBackoff; failures-- {
		wait *= 2
	}
	return min(wait, r.MaxBackoff)
}

// RefuseIgnore reports the rules with Ignore, for a policy that does not support it. field is the policy's name in the errors.
func (p Policy) RefuseIgnore(field string) error {
	var errs []error
	for i, r := range p {
		if r.Ignore {
			errs = append(errs, fmt.Errorf("%s[%d].Ignore is true: want it for a claim alone; here Dead leaves the decision to an operator", field, i))
		}
	}
	return errors.Join(errs...)
}

// Validate reports every error of the policy. field is the policy's name in the errors.
func (p Policy) Validate(field string) error {
	var errs []error
	for i, r := range p {
		wrong := func(name, format string, args ...any) {
			errs = append(errs, fmt.Errorf("%s[%d].%s is %s", field, i, name, fmt.Sprintf(format, args...)))
		}
		if _, err := path.Match(r.Topic, ""); err != nil {
			wrong("Topic", "%q: want a topic, or a pattern such as \"labour.*\"", r.Topic)
		}
		if r.MaxAttempts < 0 || r.MaxAttempts > 1000 {
			wrong("MaxAttempts", "%d: want 1 to 1000, or 0 for the default", r.MaxAttempts)
		}
		if r.Ignore && (r.Dead || r.MaxAttempts != 0 || r.Backoff != 0 || r.MaxBackoff != 0) {
			wrong("Ignore", "true, beside dead, attempts or a backoff: want one of them, because an event that is ignored is done")
		}
		if r.Dead && (r.MaxAttempts != 0 || r.Backoff != 0 || r.MaxBackoff != 0) {
			wrong("Dead", "true, beside attempts or a backoff: want one of them, because an event that is dead is not retried")
		}
		if r.Backoff != 0 && r.Backoff < time.Millisecond {
			wrong("Backoff", "%s: want 1ms or more, or 0 for the default", r.Backoff)
		}
		if r.MaxBackoff != 0 && r.MaxBackoff < max(r.Backoff, time.Millisecond) {
			wrong("MaxBackoff", "%s: want Backoff or more, or 0 for the default", r.MaxBackoff)
		}
		if r.MaxBackoff > 24*time.Hour || r.Backoff > 24*time.Hour {
			wrong("MaxBackoff", "%s: want 24h or less", max(r.MaxBackoff, r.Backoff))
		}
	}
	return errors.Join(errs...)
}
