package effect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/millrace-go/millrace/retry"
)

// Option changes how an effect is called, or how its doubt is settled.
type Option func(*options)

type options struct {
	timeout    time.Duration
	idempotent bool
	honoured   time.Duration // how long the provider remembers a key; 0: for ever
	reconcile  func(context.Context, Intent) (Outcome, error)
	retries    bool
	policy     retry.Policy
	within     time.Duration // how long a pending call may take
	doubted    bool          // an earlier call was in doubt when this one began
}

// Idempotent says that the provider honours the idempotency key for ever. An effect in doubt is called again with the same key.
func Idempotent() Option { return func(o *options) { o.idempotent = true } }

// IdempotentFor is Idempotent for a provider that forgets a key some time after its first call (Stripe: 24 hours). After that time
// Reconcile is asked; without Reconcile the effect stays in doubt. keyLives must be positive.
func IdempotentFor(keyLives time.Duration) Option {
	return func(o *options) {
		o.idempotent, o.honoured = true, keyLives
		if keyLives <= 0 {
			o.honoured = -1
		}
	}
}

// Reconcile settles a doubt: ask asks the provider for the outcome of a call. It is called when the effect is in doubt and
// Config.Settle has passed since the call ended. Its context ends after Config.CallTimeout or Timeout. After an error or Unknown
// the effect stays in doubt, and a later delivery asks again. Several processes may ask at the same time; the first answer counts.
func Reconcile(ask func(ctx context.Context, i Intent) (Outcome, error)) Option {
	return func(o *options) { o.reconcile = ask }
}

// Retry repeats the call within Once, after a wait, if the call certainly had no effect (NotDone), and with Idempotent also if its
// outcome is unknown. Rule.Topic is matched against the effect's key. A rule with Dead is for errors that another call would not
// change. Defaults of the policy: 3 calls, a first wait of 200 ms, doubled up to 5 s. A wait beyond the context's deadline is not
// started: Once returns the last call's error, and the event is retried.
func Retry(policy retry.Policy) Option {
	return func(o *options) { o.retries, o.policy = true, policy }
}

var retryDefaults = retry.Rule{MaxAttempts: 3, Backoff: 200 * time.Millisecond, MaxBackoff: 5 * time.Second}

// again waits before the next call and reports whether there is one. failures is the number of failed calls.
func (o options) again(ctx context.Context, key string, err error, failures int) bool {
	if !o.retries || !isNotDone(err) && !(o.idempotent && errors.Is(err, ErrInDoubt)) {
		return false
	}
	rule := o.policy.For(key, err, retryDefaults)
	if rule.Dead || failures >= rule.MaxAttempts {
		return false
	}
	wait := rule.Wait(failures)
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= wait {
		return false
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(wait):
		return true
	}
}

// Timeout bounds one effect's call, instead of Config.CallTimeout. 1 ms or more.
func Timeout(d time.Duration) Option { return func(o *options) { o.timeout = d } }

func (o options) validate() error {
	var errs []error
	if o.timeout < time.Millisecond {
		errs = append(errs, fmt.Errorf("Timeout is %v: want 1ms or more", o.timeout))
	}
	if o.honoured < 0 {
		errs = append(errs, errors.New("IdempotentFor: want a positive duration"))
	}
	errs = append(errs, o.policy.Validate("Retry"), o.policy.RefuseIgnore("Retry"))
	return errors.Join(errs...)
}

// honours reports whether the provider makes one effect of this call and the earlier ones.
func (o options) honours(first, now time.Time) bool {
	return o.idempotent && (o.honoured == 0 || now.Add(o.timeout).Before(first.Add(o.honoured)))
}

// Intent is a call with an unknown outcome. The times are by the database server's clock.
type Intent struct {
	Key            string // as given to Once
	IdempotencyKey string
	Calls          int       // so far
	FirstCalledAt  time.Time // a little before the first call
	CalledAt       time.Time // a little before the last call
	Since          time.Time // when the last call ended, or its deadline
	Reason         string    // the last call's error, if it returned one
}

// Outcome is the outcome of an effect: WasDone, WasNotDone or Unknown.
type Outcome struct {
	state    string
	response []byte
	err      error
}

// WasDone says that the effect happened. The response is what the call would have returned, for Value. nil means that it is
// unknown, or that Once is used.
func WasDone(response any) Outcome {
	if response == nil {
		return Outcome{state: done}
	}
	encoded, err := json.Marshal(response)
	return Outcome{state: done, response: encoded, err: err}
}

// WasNotDone says that the effect did not happen and will not happen, so it may be called again. If the provider may still work on
// the earlier call, return Unknown: otherwise two effects can happen.
func WasNotDone() Outcome { return Outcome{state: notDone} }

// Unknown says that the provider does not know, at least not yet.
func Unknown() Outcome { return Outcome{} }

// maxKey is the maximum length of a key in bytes, because keys are indexed.
const maxKey = 512

func validateKey(key string) error {
	switch {
	case key == "":
		return errors.New("the key is empty: want what names the effect, such as \"parents-sms:\" and the event's ID")
	case len(key) > maxKey:
		return fmt.Errorf("the key has %d bytes: want at most %d; a hash of it would do", len(key), maxKey)
	case !utf8.ValidString(key) || strings.ContainsRune(key, 0):
		return errors.New("the key is no text that PostgreSQL can store: want valid UTF-8 without zero bytes")
	}
	return nil
}
