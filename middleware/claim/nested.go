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

// ErrNestedClaim means that a handler runs under a claim, and the same consumer claims the same message again inside. Either
// the middleware is on the router and on a handler, or it was added twice, or there is an OnHandle hook inside it. The handler
// does not run and no record is written: the event fails as with any other error. With PostgreSQL behind the store it
// becomes a dead letter after Config.MaxAttempts. Remove one of the two claims, then replay the dead letters.
var ErrNestedClaim = errors.New("a claim inside a claim of the same consumer: remove one of the two, " +
	"which are the middleware (on the router and on a handler, or twice) or the middleware and an OnHandle hook")

// running is a claim whose handler is running. The handler's context carries it. It is for one run of the handler.
type running struct {
	claim  *Claim
	msg    *message.Message
	key    Key
	ctx    context.Context // the handler's context
	outer  *running
	nested atomic.Bool  // the same claim was requested inside it
	calls  atomic.Int32 // number of calls of the handler, if Claim.Handler counts them
	skip   atomic.Bool  // middleware has called Skip
	over   atomic.Bool  // the handler has returned; its context may be used after that
}

type runningKey struct{}

// runs holds the running claims by their messages, because middleware may give a message another context.
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

// run calls fn with a context that carries the claim. It returns ErrNestedClaim if the claim was requested again inside, even if
// code inside has swallowed that error.
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

// refuseNested returns an error if a claim of the same consumer and event is running around this one. ctx is the message's
// context before Claim changed it. The message may be a copy.
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

// claimAround returns the claim of the same consumer and event that is running around this one, nil if there is none. A transport
// that passes contexts on makes another message of each delivery, and the router adds values to its context. Such a message is
// another delivery, so it is contended and not nested.
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
