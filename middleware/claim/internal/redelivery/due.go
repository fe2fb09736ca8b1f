package redelivery

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/middleware/claim/internal/fault"
	"github.com/millrace-go/millrace/middleware/claim/internal/store"
	"github.com/millrace-go/millrace/middleware/internal/inbox"
	"github.com/millrace-go/millrace/transport"
)

const (
	// maxInHand is how many events of the table one subscription has delivered and not settled.
	maxInHand = 10
	// pollInterval is how soon the table is looked at again when nothing in this process says that something is due. While it is in
	// vain the time doubles, up to so many intervals: fewer where events wait, or dead letters that an operator may send back.
	pollInterval        = time.Second
	waitPolls, maxPolls = 5, 10
	// orphanedAfter is for how long an event is due before the subscription to another topic of its consumer takes it. Those that
	// subscribe to its own look at the table every second.
	orphanedAfter = 5 * time.Minute
	// minPause keeps the polls apart.
	minPause = 10 * time.Millisecond
	// unstickEvery is how often the keys are looked over.
	unstickEvery = 30 * time.Second
	// leaseTime is how long an event of the table waits for the next process when this one is killed before the handler
	// begins. From then on the handler's transaction holds the event's row.
	leaseTime = 10 * time.Second
	// leaseSlack is how much longer than its handler's timeout a subscription keeps an event of the table.
	leaseSlack = 30 * time.Second
)

// inFlight are the events of the table that a subscription has delivered and that are not settled. It is safe for concurrent
// use.
type inFlight struct {
	mu   sync.Mutex
	rows map[int64]struct{}
}

func (f *inFlight) add(row int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.rows == nil {
		f.rows = map[int64]struct{}{}
	}
	f.rows[row] = struct{}{}
}

func (f *inFlight) remove(row int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.rows, row)
}

// all is never nil, which SQL would take for null.
func (f *inFlight) all() []int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.AppendSeq(make([]int64, 0, len(f.rows)), maps.Keys(f.rows))
}

// bringBack delivers events of the table that are due, until the subscription stops and what it has delivered is
// settled.
func (s *subscription) bringBack(ctx context.Context) {
	defer s.of.nudges.remove(s.consumer, s.nudge)
	var (
		inHand  sync.WaitGroup
		slots   = make(chan struct{}, maxInHand)
		failing bool
		lookAt  time.Time // when the keys are to be looked over
		seen    looks
		pause   = time.NewTimer(0)
	)
	defer inHand.Wait()
	defer pause.Stop()
	for {
		select {
		case <-pause.C:
		case <-s.nudge:
			seen = looks{}
		case <-s.stop:
			return
		}
		unstick := !time.Now().Before(lookAt)
		if unstick {
			lookAt = time.Now().Add(unstickEvery)
		}
		wait, err := s.deliverDue(ctx, slots, &inHand, unstick, &seen)
		if err != nil && !failing {
			s.of.cfg.Logger.WarnContext(ctx, "look for failed events that are due", "consumer", s.consumer, "error", err)
		}
		failing = err != nil
		pause.Reset(wait)
	}
}

// looks are what a subscription remembers of its looks at the table.
type looks struct {
	inVain int  // in a row
	none   bool // nothing waited
}

// deliverDue delivers what is due while there are slots, and returns in which time to look again.
func (s *subscription) deliverDue(ctx context.Context, slots chan struct{}, inHand *sync.WaitGroup, unstick bool, seen *looks) (time.Duration, error) {
	if unstick {
		if err := s.of.cfg.Store.Unstick(ctx, s.consumer); err != nil {
			return s.of.Poll, err
		}
	}
	room := s.of.cfg.Room(s.consumer, s.free(cap(slots)-len(slots)))
	if room == 0 {
		return s.of.Poll, nil // each that ends nudges, and the end of a pause does
	}
	orphaned := s.of.Orphaned
	if s.of.nudges.count(s.consumer) > 1 { // which one it belongs to now, nobody knows
		orphaned = 0
	}
	take := room
	if seen.none {
		take = 0 // ask first, which is one statement
	}
	expiry := time.Now().Add(s.of.Lease) // at the earliest
	due, o, err := s.of.cfg.Store.Lease(ctx, s.consumer, s.topic, take, s.of.Lease, orphaned, s.inFlight.all())
	if err != nil {
		return s.of.Poll, err
	}
	for i, l := range due {
		slots <- struct{}{}
		if !s.deliver(ctx, l, expiry, slots, inHand) {
			for _, rest := range due[i:] {
				s.giveBack(ctx, rest, 0)
			}
			break
		}
	}
	switch {
	case len(due) == room, take == 0 && o.Next == 0: // there may be more
		*seen = looks{}
		return minPause, nil
	case len(due) > 0:
		*seen = looks{}
		return min(max(o.Next, minPause), s.of.Poll), nil
	}
	return seen.rest(o, s.of.Poll), nil
}

// rest returns in which time to look again after a look in vain. What is due and was not taken is behind another of its key, in other
// hands, or of another topic.
func (l *looks) rest(o store.Outlook, poll time.Duration) time.Duration {
	most := maxPolls * poll
	if o.Dead || o.Next >= 0 {
		most = waitPolls * poll
	}
	wait := min(poll<<min(l.inVain, 4), most)
	l.inVain++
	l.none = o.Next < 0
	if o.Next > 0 {
		wait = min(wait, max(o.Next, minPause))
	}
	return wait
}

// deliver hands an event on, and watches over it. One that has waited for a slot until its lease expired is left to whoever leases it
// next. It reports false when the subscription has stopped.
func (s *subscription) deliver(ctx context.Context, l store.Leased, expiry time.Time, slots chan struct{}, inHand *sync.WaitGroup) bool {
	delivery := &tableDelivery{attempt: l.Attempts + 1}
	ctx, cancel := context.WithTimeout(ctx, s.of.cfg.Timeout(s.consumer)+leaseSlack)
	h, err := inbox.DecodeHeaders(l.Headers)
	if err != nil { // an operator's edit; it comes back until another one mends it
		defer cancel()
		s.of.cfg.Logger.WarnContext(ctx, "failed event cannot be brought back", "event_id", l.Key.EventID, "consumer", s.consumer, "error", err)
		<-slots
		return true
	}
	msg := message.NewMessage(h.UUID, l.Payload)
	msg.Metadata, delivery.origin = h.Metadata, h.Origin
	if l.Malformed {
		msg.UUID, delivery.unidentified = s.FindEventID(msg, h.Origin)
	}
	l.Key.Due = Due(msg)
	from := &Source{Consumer: s.consumer, Topic: s.topic, Event: &l.Event}
	msg.SetContext(With(transport.WithDelivery(ctx, delivery), from))
	if l.Former != "" && l.Former != s.topic {
		s.of.cfg.Logger.WarnContext(ctx, "failed event of a topic that nobody subscribes to is handled by the subscription to another topic of its consumer",
			"event_id", l.Key.EventID, "consumer", s.consumer, "former_topic", l.Former, "topic", s.topic)
	}
	acquired := s.acquire()
	if acquired && time.Now().After(expiry) {
		s.release()
		cancel()
		<-slots
		return true
	}
	if !acquired || !s.offer(msg) {
		cancel()
		<-slots
		return false
	}
	s.inFlight.add(l.Row)
	inHand.Go(func() {
		defer cancel()
		select {
		case <-msg.Acked():
			if !from.Claimed.Load() {
				s.of.cfg.Logger.ErrorContext(ctx, "failed event was acked and never came to its claim: it is kept, and retried again. Remove what drops it from the middleware outside of the claim, such as Watermill's Deduplicator",
					"event_id", l.Key.EventID, "consumer", s.consumer)
				s.giveBack(ctx, l, fault.OutageDelay)
			}
		case <-msg.Nacked():
			s.giveBack(ctx, l, delivery.delay())
		case <-ctx.Done():
		}
		s.release()
		s.inFlight.remove(l.Row)
		<-slots
		wake(s.nudge)
	})
	return true
}

func (s *subscription) giveBack(ctx context.Context, l store.Leased, delay time.Duration) {
	if err := s.of.cfg.Store.GiveBack(ctx, l, delay); err != nil {
		s.of.cfg.Logger.DebugContext(ctx, "give a failed event back: it waits for the end of its lease", "event_id", l.Key.EventID, "error", err)
	}
}

// nudges wakes the subscriptions of a consumer in this process. It is safe for concurrent use.
type nudges struct {
	mu    sync.Mutex
	chans map[string]map[chan struct{}]struct{}
}

func (n *nudges) add(consumer string, ch chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.chans == nil {
		n.chans = map[string]map[chan struct{}]struct{}{}
	}
	if n.chans[consumer] == nil {
		n.chans[consumer] = map[chan struct{}]struct{}{}
	}
	n.chans[consumer][ch] = struct{}{}
}

// count is how many subscriptions of the consumer there are in this process.
func (n *nudges) count(consumer string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.chans[consumer])
}

func (n *nudges) remove(consumer string, ch chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.chans[consumer], ch)
}

// Wake nudges the consumer's subscriptions: something that waits may be due.
func (r *Redelivery) Wake(consumer string) {
	r.nudges.mu.Lock()
	defer r.nudges.mu.Unlock()
	for ch := range r.nudges.chans[consumer] {
		wake(ch)
	}
}

func wake(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default: // it will look anyway
	}
}
