package pubsub

import (
	"context"
	"log/slog"
	"net/http"
	"path"
	"slices"
	"sync"
	"time"

	"cloud.google.com/go/pubsub/v2"

	"github.com/millrace-go/millrace/transport/pubsub/internal/receive"
)

// pushWaiting is how many requests of a subscription wait while all of its handlers are busy; more are refused at once.
const pushWaiting = 100

// pushes is what a transport has for push subscriptions. It is safe for concurrent use.
type pushes struct {
	auth     *authenticator
	observer *pushObserver
	room     pushRoom

	mu      sync.Mutex
	targets map[string]*pushTarget // by subscription ID; one stays when nobody is subscribed any more
}

func newPushes(ctx context.Context, config Config, log *slog.Logger) (*pushes, error) {
	auth, err := newAuthenticator(ctx, http.DefaultTransport)
	if err != nil {
		return nil, err
	}
	observer, err := newPushObserver(config, log)
	if err != nil {
		return nil, err
	}
	return &pushes{auth: auth, observer: observer, room: newPushRoom(config.MaxPushBytes), targets: map[string]*pushTarget{}}, nil
}

// pushTarget is what the calls of Subscribe for one push subscription share.
type pushTarget struct {
	lanes lanes

	mu       sync.Mutex
	requests int // held
	intakes  []*pushIntake
	gone     chan struct{} // closed when the last intake ends
	next     int
}

// pushIntake is the intake of one call of Subscribe.
type pushIntake struct {
	*receive.Subscription
	ordered     bool
	ackDeadline time.Duration
	messages    context.Context // the parent of the messages' contexts
	target      *pushTarget
	delivering  sync.WaitGroup // requests whose answer has not gone; Add only under target.mu while among its intakes
}

// push is the intake by HTTP requests, which Transport.PushHandler gets. It returns when each has its answer, and closes
// ready when it takes them.
func (t *Transport) push(ctx, messages context.Context, s *receive.Subscription, config receive.Config, ready chan<- struct{}) {
	target := t.pushes.target(path.Base(config.Name), true)
	p := &pushIntake{Subscription: s, ordered: config.Ordered, ackDeadline: config.AckDeadline, messages: messages, target: target}
	target.add(p)
	close(ready)
	<-ctx.Done()
	target.remove(p)
	p.delivering.Wait()
}

// target returns nil for a subscription that was never subscribed to here, unless it is to be made.
func (p *pushes) target(id string, create bool) *pushTarget {
	p.mu.Lock()
	defer p.mu.Unlock()
	target := p.targets[id]
	if target == nil && create {
		target = &pushTarget{lanes: lanes{taken: map[string]chan struct{}{}}}
		p.targets[id] = target
	}
	return target
}

func (t *pushTarget) add(p *pushIntake) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.intakes) == 0 {
		t.gone = make(chan struct{})
	}
	t.intakes = append(t.intakes, p)
}

func (t *pushTarget) remove(p *pushIntake) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.intakes = slices.DeleteFunc(t.intakes, func(other *pushIntake) bool { return other == p })
	if len(t.intakes) == 0 {
		close(t.gone)
	}
}

// admit lets a request wait for a handler, until leave is called. There is nobody to wait for after gone is closed.
func (t *pushTarget) admit() (gone <-chan struct{}, refused *answer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	most := pushWaiting
	for _, p := range t.intakes {
		most += p.Slots()
	}
	switch {
	case len(t.intakes) == 0:
		a := closingAnswer
		return nil, &a
	case t.requests >= most:
		a := busyAnswer
		return nil, &a
	}
	t.requests++
	return t.gone, nil
}

func (t *pushTarget) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.requests--
}

// choose returns an intake with a free handler, if there is one, in turn. The caller calls its delivering.Done. It is
// nil when nobody is subscribed, or only what closes.
func (t *pushTarget) choose() *pushIntake {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.next++
	var chosen *pushIntake
	for i := range t.intakes {
		p := t.intakes[(t.next+i)%len(t.intakes)]
		if p.closing() {
			continue
		}
		if free := p.Free(); free || chosen == nil {
			chosen = p
			if free {
				break
			}
		}
	}
	if chosen != nil {
		chosen.delivering.Add(1)
	}
	return chosen
}

// serve hands the message to a handler and waits for its end. request is the context of a request that came at received.
//
// Pub/Sub delivers a message again when its request outlives the ack deadline, which nothing extends. So a handler is
// given a message only while a quarter of the deadline remains. A retry that the handler wants sooner happens in place:
// to Pub/Sub any nack is a failure, which counts against the message, and for which it slows down the whole subscription.
func (p *pushIntake) serve(request context.Context, m *pubsub.Message, received time.Time) answer {
	latest := latestDelivery(received, p.ackDeadline)
	waiting, cancel := context.WithDeadline(request, latest)
	defer cancel()
	// Pub/Sub sends one message of a key at a time, but again when it takes the one before for lost.
	if key := m.OrderingKey; p.ordered && key != "" {
		if !p.target.lanes.enter(key, waiting.Done(), p.Closing()) {
			return p.turnedAway()
		}
		defer p.target.lanes.leave(key)
	}
	// The handler's work does not end with the request: it is done or not, and the redelivery finds out.
	ctx := pushContext{p.messages, context.WithoutCancel(request)}
	if waiting.Err() != nil { // a body that came slowly; of two ready cases a select takes any
		return p.turnedAway()
	}
	for {
		delivery := receive.NewDelivery(m, 0, waiting.Done())
		switch p.Deliver(ctx, m, delivery) {
		case receive.Acked:
			return ackedAnswer
		case receive.Undelivered:
			return p.turnedAway()
		case receive.Abandoned:
			return nackedAnswer
		case receive.Nacked:
		}
		a := nackedAnswer
		if cause := delivery.Rejected(); cause != nil {
			if p.DeadLetter(ctx, m, 0, cause) {
				return ackedAnswer
			}
			return a
		}
		if !delivery.Asked() {
			return a
		}
		a.retryAfter = delivery.Delay()
		if time.Now().Add(a.retryAfter).After(latest) || !p.Hold(ctx, a.retryAfter, waiting.Done()) || waiting.Err() != nil {
			return a
		}
		p.CountRetry(ctx)
	}
}

// latestDelivery is until when a handler may be given the message of a push request that came at received.
func latestDelivery(received time.Time, ackDeadline time.Duration) time.Time {
	return received.Add(ackDeadline / 4 * 3)
}

// turnedAway is for a message that no handler has seen.
func (p *pushIntake) turnedAway() answer {
	if p.closing() {
		return closingAnswer
	}
	return busyAnswer
}

func (p *pushIntake) closing() bool {
	select {
	case <-p.Closing():
		return true
	default:
		return false
	}
}

// pushContext ends with the first and has the values of both: who serves the request has put its span there.
type pushContext struct {
	context.Context
	request context.Context
}

// Value implements context.Context.
func (c pushContext) Value(key any) any {
	if v := c.request.Value(key); v != nil {
		return v
	}
	return c.Context.Value(key)
}

// lanes lets one at a time in, for each key.
type lanes struct {
	mu    sync.Mutex
	taken map[string]chan struct{} // closed when the key is free again
}

// enter waits until the key is free. It returns false when one of the channels ends the waiting.
func (l *lanes) enter(key string, giveUp, stop <-chan struct{}) bool {
	for {
		l.mu.Lock()
		free, busy := l.taken[key]
		if !busy {
			l.taken[key] = make(chan struct{})
			l.mu.Unlock()
			return true
		}
		l.mu.Unlock()
		select {
		case <-free:
		case <-giveUp:
			return false
		case <-stop:
			return false
		}
	}
}

func (l *lanes) leave(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.taken[key])
	delete(l.taken, key)
}
