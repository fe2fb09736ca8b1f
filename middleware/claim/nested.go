package claim

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/middleware/claim/internal/store"
)

// ErrNestedClaim means that a handler which runs under a claim claims the same message for the same consumer again: the
// middleware is on the router and on a handler, it was added twice, or an OnHandle hook stands behind it. The handler
// never runs, so nothing is recorded as processed: the event fails as with any other error, and with PostgreSQL behind
// the store it becomes a dead letter after Config.MaxAttempts. Remove one of the two claims, then replay the dead letters.
var ErrNestedClaim = errors.New("a claim inside a claim of the same consumer: remove one of the two, " +
	"which are the middleware (on the router and on a handler, or twice) or the middleware and an OnHandle hook")

// running is a claim whose handler runs, as the handler's context carries it.
type running struct {
	claim  *Claim
	msg    *message.Message
	key    Key
	ctx    context.Context // the handler's
	outer  *running
	nested atomic.Bool  // the same claim was asked for inside of it
	calls  atomic.Int32 // of the handler, where Claim.Handler counts them
	skip   atomic.Bool  // middleware has left the handler out on purpose
	over   atomic.Bool  // the handler has returned; a context may outlive it
}

type runningKey struct{}

// claims that run, by their messages: middleware may give a message another context.
var runs sync.Map // runOf → *running

type runOf struct {
	msg      *message.Message
	consumer string
	record   [16]byte
}

func (r *running) of() runOf { return runOf{r.msg, r.key.Consumer, store.Key(r.key).Record().Bytes} }

// runningIn returns the innermost claim whose handler runs with ctx, nil if there is none.
func runningIn(ctx context.Context) *running {
	r, _ := ctx.Value(runningKey{}).(*running)
	for r != nil && r.over.Load() {
		r = r.outer
	}
	return r
}

// run calls fn with a context that carries the claim. It returns ErrNestedClaim when the claim was asked for again, also
// where something inside has swallowed that error.
func (r *running) run(ctx context.Context, fn func(ctx context.Context) error) error {
	r.outer = runningIn(ctx)
	r.ctx = context.WithValue(ctx, runningKey{}, r)
	defer r.over.Store(true)
	if _, taken := runs.LoadOrStore(r.of(), r); !taken {
		defer runs.Delete(r.of())
	}
	if message.HandlerNameFromCtx(ctx) != "" {
		routed := [2]string{r.key.Consumer, r.key.EventID}
		r.claim.routed.Store(routed, nil)
		defer r.claim.routed.Delete(routed)
	}
	before := poisonOf(r.msg)
	err := r.handled(fn(r.ctx), before)
	if r.nested.Load() && !errors.Is(err, ErrNestedClaim) {
		err = errors.Join(err, ErrNestedClaim)
	}
	return err
}

// refuseNested returns an error when a claim of the same consumer and event runs around this one; ctx is the message's, as
// it came. The message may be a copy.
func (c *Claim) refuseNested(ctx context.Context, key Key, msg *message.Message) error {
	around := claimAround(ctx, key, msg)
	if around != nil {
		around.nested.Store(true)
	} else if _, routed := c.routed.Load([2]string{key.Consumer, key.EventID}); !routed || message.HandlerNameFromCtx(ctx) != "" {
		return nil
	} // else it did not come through a router, and what runs did: it is a copy without a context, or somebody's own call
	if _, logged := c.nested.LoadOrStore(key.Consumer, nil); !logged {
		c.cfg.Logger.ErrorContext(ctx, "handler does not run", "consumer", key.Consumer, "event_id", key.EventID, "error", ErrNestedClaim)
	}
	return fmt.Errorf("claim event %q for consumer %q: %w", key.EventID, key.Consumer, ErrNestedClaim)
}

// claimAround finds the claim of the same consumer and event that runs around this one, nil if there is none. A transport
// that hands contexts on makes another message of each delivery, to whose context the router adds: that one is contended,
// and not nested.
func claimAround(ctx context.Context, key Key, msg *message.Message) *running {
	if r, ok := runs.Load((&running{msg: msg, key: key}).of()); ok {
		return r.(*running)
	}
	for r := runningIn(ctx); r != nil; r = r.outer {
		same := r.key.Consumer == key.Consumer && (r.key.EventID == key.EventID || store.Key(r.key).Record() == store.Key(key).Record())
		if same && !r.over.Load() && (r.msg == msg || r.ctx == ctx) {
			return r
		}
	}
	return nil
}
