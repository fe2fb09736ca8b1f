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

// Option changes how one effect is called, and how a doubt is settled.
type Option func(*options)

type options struct {
	timeout    time.Duration
	idempotent bool
	honoured   time.Duration // for how long the provider remembers a key; 0: for ever
	reconcile  func(context.Context, Intent) (Outcome, error)
	retries    bool
	policy     retry.Policy
	within     time.Duration // of a call that is pending
}

// Idempotent says that the provider honours the idempotency key for ever: when in doubt, call again with the same one.
func Idempotent() Option { return func(o *options) { o.idempotent = true } }

// IdempotentFor is Idempotent for a provider that forgets its keys after some time since the first call (Stripe: 24 hours).
// After that Reconcile is asked, if it is there, or the effect stays in doubt. It must be positive.
func IdempotentFor(keyLives time.Duration) Option {
	return func(o *options) {
		o.idempotent, o.honoured = true, keyLives
		if keyLives <= 0 {
			o.honoured = -1
		}
	}
}

// Reconcile has ask find out what became of a call, at the provider: it is called when the effect is in doubt, not before
// Config.Settle has gone by since the call ended, and with a context that ends after Config.CallTimeout. An error, and
// Unknown, leave the effect in doubt, and it is asked again at a later delivery. Several may be asked at once, in
// different processes; the first answer counts.
func Reconcile(ask func(ctx context.Context, i Intent) (Outcome, error)) Option {
	return func(o *options) { o.reconcile = ask }
}

// Retry calls again within Once, after a wait, when a call certainly had no effect (NotDone), and with Idempotent also when its
// outcome is unknown. Rule.Topic is matched against the effect's key, and a rule with Dead is for errors that no further call
// would change. What the policy does not say: 3 calls, the first wait 200 ms, doubled up to 5 s. A wait that the context's
// deadline would cut short is not begun: Once returns the error of the last call, and the event's retries follow.
func Retry(policy retry.Policy) Option {
	return func(o *options) { o.retries, o.policy = true, policy }
}

var retryDefaults = retry.Rule{MaxAttempts: 3, Backoff: 200 * time.Millisecond, MaxBackoff: 5 * time.Second}

// again waits for the next call after so many have failed, and reports whether there is to be one.
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

// Timeout bounds one effect's call, in the place of Config.CallTimeout. 1 ms or more.
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

// honours reports whether the provider makes one effect of a repeated call.
func (o options) honours(first, now time.Time) bool {
	return o.idempotent && (o.honoured == 0 || now.Add(o.timeout).Before(first.Add(o.honoured)))
}

// Intent is a call whose outcome is unknown. Times are the database server's.
type Intent struct {
	Key            string // as the call was given it
	IdempotencyKey string
	Calls          int       // so far
	FirstCalledAt  time.Time // a little before the first call
	CalledAt       time.Time // a little before the last call
	Since          time.Time // when the last call ended, or its time was up
	Reason         string    // what the last call returned, if it returned
}

// Outcome is what became of an effect: WasDone, WasNotDone or Unknown.
type Outcome struct {
	state    string
	response []byte
	err      error
}

// WasDone says that the effect happened. The response is what the call would have returned, for Value; nil: not known, or
// for Once.
func WasDone(response any) Outcome {
	if response == nil {
		return Outcome{state: done}
	}
	encoded, err := json.Marshal(response)
	return Outcome{state: done, response: encoded, err: err}
}

// WasNotDone says that the effect did not happen and will not, so that it may be called again. A provider that still works
// on the earlier call makes two effects of that: say Unknown until it cannot.
func WasNotDone() Outcome { return Outcome{state: notDone} }

// Unknown says that the provider cannot tell, at least not yet.
func Unknown() Outcome { return Outcome{} }

// maxKey is the length of a key in bytes: it stands in an index.
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
