package push

import (
	"context"
	"path"
	"slices"
	"sync"
	"time"

	"cloud.google.com/go/pubsub/v2"

	"github.com/millrace-go/millrace/transport/pubsub/internal/receive"
)

// maxWaiting is how many requests of a subscription may wait while all of its handlers are busy. Further requests are refused at once.
const maxWaiting = 100

// target is the state that the calls of Subscribe for one push subscription share.
type target struct {
	lanes lanes

	mu       sync.Mutex
	requests int // being held
	intakes  []*intake
	gone     chan struct{} // closed when the last intake ends
	next     int
}

// intake receives the push requests for one call of Subscribe.
type intake struct {
	*receive.Subscription
	config     receive.Config
	messages   context.Context // the parent of the messages' contexts
	target     *target
	delivering sync.WaitGroup // requests without an answer; Add only under target.mu while the intake is in target.intakes
}

// Take receives messages by HTTP requests. It closes ready when it accepts requests, and returns when each has its answer.
func (s *Server) Take(ctx, messages context.Context, subscription *receive.Subscription, ready chan<- struct{}) {
	config := subscription.Config()
	target := s.target(path.Base(config.Name), true)
	p := &intake{Subscription: subscription, config: config, messages: messages, target: target}
	target.add(p)
	close(ready)
	<-ctx.Done()
	target.remove(p)
	p.delivering.Wait()
}

// target returns the target of a subscription. If there is none, it creates it, or returns nil if create is false.
func (s *Server) target(id string, create bool) *target {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.targets[id]
	if t == nil && create {
		t = &target{lanes: lanes{taken: map[string]chan struct{}{}}}
		s.targets[id] = t
	}
	return t
}

func (t *target) add(p *intake) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.intakes) == 0 {
		t.gone = make(chan struct{})
	}
	t.intakes = append(t.intakes, p)
}

func (t *target) remove(p *intake) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.intakes = slices.DeleteFunc(t.intakes, func(other *intake) bool { return other == p })
	if len(t.intakes) == 0 {
		close(t.gone)
	}
}

// admit lets a request wait for a handler, until leave is called. When gone is closed, no handler is left to wait for.
func (t *target) admit() (gone <-chan struct{}, refused *answer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	most := maxWaiting
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

func (t *target) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.requests--
}

// choose returns the next intake with a free handler. The caller must call its delivering.Done. It returns nil if no intake is left, or
// only closing ones.
func (t *target) choose() *intake {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.next++
	var chosen *intake
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

// serve passes the message to a handler and waits for its end. The request came at received.
//
// Pub/Sub redelivers a message when its request outlives the ack deadline, which nothing extends. So a handler gets a message only while
// a quarter of the deadline remains. A retry that the handler wants sooner happens in place: to Pub/Sub every nack is a failure, which
// counts against the message and slows down the whole subscription.
func (p *intake) serve(request context.Context, m *pubsub.Message, received time.Time) answer {
	latest := latestDelivery(received, p.config.AckDeadline)
	waiting, cancel := context.WithDeadline(request, latest)
	defer cancel()
	// Pub/Sub sends one message of a key at a time, but sends another when it assumes that the previous one is lost.
	if key := m.OrderingKey; p.config.Ordered && key != "" {
		if !p.target.lanes.enter(key, waiting.Done(), p.Closing()) {
			return p.turnedAway()
		}
		defer p.target.lanes.leave(key)
	}
	// The handler's work does not end with the request. If the request ends first, the redelivery finds out whether the work is done.
	ctx := pushContext{p.messages, context.WithoutCancel(request)}
	if waiting.Err() != nil { // after a slow body; a select with two ready cases chooses at random
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

// latestDelivery is the latest time at which a handler may get the message of a push request that came at received.
func latestDelivery(received time.Time, ackDeadline time.Duration) time.Time {
	return received.Add(ackDeadline / 4 * 3)
}

// turnedAway returns the answer for a message that no handler has seen.
func (p *intake) turnedAway() answer {
	if p.closing() {
		return closingAnswer
	}
	return busyAnswer
}

func (p *intake) closing() bool {
	select {
	case <-p.Closing():
		return true
	default:
		return false
	}
}

// pushContext ends with the messages' context and has the values of both: an HTTP server's middleware may have put its span into the
// request's.
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

// lanes admits one message at a time for each key.
type lanes struct {
	mu    sync.Mutex
	taken map[string]chan struct{} // closed when the key is free again
}

// enter waits until the key is free. It returns false if one of the channels is closed first.
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
