package claim

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/millrace-go/millrace/retry"
)

// HandlerConfig configures one consumer. A zero field means the value in Config.
type HandlerConfig struct {
	// Retry has rules for this consumer's events. They come before those of Config.Retry. Default: none.
	Retry retry.Policy

	// Timeout bounds a run of the handler: see Config.HandlerTimeout. 1 ms or more. Default: the claim's.
	Timeout time.Duration

	// MaxPerKey is how many events of a key are handled at once: see Config.MaxPerKey. Default: the claim's.
	MaxPerKey int

	// Breaker pauses this consumer while something that its handler needs is out: see Config.Breaker. Default: for each field, that
	// of Config.Breaker.
	Breaker Breaker
}

// Validate reports everything that is wrong with h. field is the name of h in the errors.
func (h HandlerConfig) Validate(field string) error {
	errs := []error{h.Retry.Validate(field + ".Retry"), validatePerKey(field, h.MaxPerKey), h.Breaker.validate(field+".Breaker", -1)}
	if h.Timeout != 0 && h.Timeout < time.Millisecond {
		errs = append(errs, fmt.Errorf("%s.Timeout is %v: want 1ms or more, or 0 for that of other handlers", field, h.Timeout))
	}
	return errors.Join(errs...)
}

// of returns the configuration of a consumer, whose name is as in the store ("service/name").
func (c Config) of(consumer string) HandlerConfig {
	if len(c.Handlers) == 0 {
		return HandlerConfig{}
	}
	return c.Handlers[strings.TrimPrefix(consumer, c.Service+"/")]
}

// timeout is the time limit of the consumer's handler.
func (c Config) timeout(consumer string) time.Duration {
	return cmp.Or(c.of(consumer).Timeout, c.HandlerTimeout)
}

// longest is the longest time limit of any handler.
func (c Config) longest() time.Duration {
	d := c.HandlerTimeout
	for _, h := range c.Handlers {
		d = max(d, h.Timeout)
	}
	return d
}

func (c Config) validatePolicies() error {
	errs := []error{c.Retry.Validate("Config.Retry"), validatePerKey("Config", c.MaxPerKey)}
	for _, name := range slices.Sorted(maps.Keys(c.Handlers)) {
		field, of := fmt.Sprintf("Config.Handlers[%q]", name), c.Handlers[name]
		errs = append(errs, of.Validate(field))
		if b := of.Breaker; b.Failures == 0 && c.Breaker.Failures == 0 && (b.Pause != 0 || b.MaxPause != 0) {
			errs = append(errs, fmt.Errorf("%s.Breaker has a pause, but neither its Failures nor Config.Breaker.Failures is set: want 2 or more, such as 10", field))
		}
	}
	return errors.Join(errs...)
}

// hasPolicies reports whether there are retry rules. Only a store with PostgreSQL behind it can apply them.
func (c Config) hasPolicies() bool {
	return len(c.Retry) > 0 || slices.ContainsFunc(slices.Collect(maps.Values(c.Handlers)), func(h HandlerConfig) bool { return len(h.Retry) > 0 })
}
