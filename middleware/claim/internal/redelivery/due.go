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
	// maxInHand is the maximum number of events of the table that a subscription has in flight.
	maxInHand = 10
	// pollInterval is the time between two polls of the table if nothing in this process signals that an event is due. While polls
	// find nothing, it doubles, up to maxPolls intervals. The limit is waitPolls intervals while events wait, or while there are
	// dead letters, which an operator may replay.
	pollInterval        = time.Second
	waitPolls, maxPolls = 6, 10
	// orphanedAfter is how long an event is due before a subscription to another topic of its consumer takes it. A subscription to
	// the event's own topic would take it within seconds.
	orphanedAfter = 5 * time.Minute
	// minPause is the shortest time between two polls.
	minPause = 10 * time.Millisecond
	// unstickPolls is the number of intervals between two checks for stuck keys.
	unstickPolls = 60
	// leaseTime is how long an event of the table is leased. If this process is killed before the handler starts, another process
	// takes the event after that time. From the handler's start on, its transaction locks the event's row.
	leaseTime = 10 * time.Second
	// leaseSlack is how long after its handler's timeout a subscription gives up an event of the table.
	leaseSlack = 30 * time.Second
)

// inFlight is the set of events of the table that a subscription has delivered and that are not settled. It is safe for concurrent
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

// all never returns nil, which would be null in SQL.
func (f *inFlight) all() []int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.AppendSeq(make([]int64, 0, len(f.rows)), maps.Keys(f.rows))
}

// bringBack delivers due events of the table, until the subscription stops and its deliveries are settled.
func (s *subscription) bringBack(ctx context.Context) {
	defer s.of.nudges.remove(s.consumer, s.nudge)
	var (
		inHand  sync.WaitGroup
		slots   = make(chan struct{}, maxInHand)
		failing bool
		lookAt  time.Time // when to check for stuck keys
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
			lookAt = time.Now().Add(unstickPolls * s.poll)
		}
		wait, err := s.deliverDue(ctx, slots, &inHand, unstick, &seen)
		if err != nil && !failing {
			s.of.cfg.Logger.WarnContext(ctx, "look for failed events that are due", "consumer", s.consumer, "error", err)
		}
		failing = err != nil
		pause.Reset(wait)
	}
}

// looks is what a subscription remembers of its polls.
type looks struct {
	inVain int       // polls in a row that found nothing
	none   bool      // no event waited
	due    time.Time // no event was due before
}

// deliverDue delivers due events while there are slots, and returns the wait until the next poll.
func (s *subscription) deliverDue(ctx context.Context, slots chan struct{}, inHand *sync.WaitGroup, unstick bool, seen *looks) (time.Duration, error) {
	if unstick {
		if err := s.of.cfg.Store.Unstick(ctx, s.consumer); err != nil {
			return s.poll, err
		}
	}
	room := s.of.cfg.Room(s.consumer, cap(slots)-len(slots))
	if room == 0 {
		return s.poll, nil // the end of each event nudges, and so does the end of a pause
	}
	orphaned := s.of.Orphaned
	if s.of.nudges.count(s.consumer) > 1 { // several subscriptions: it is unknown which one a renamed topic's events belong to
		orphaned = 0
	}
	take := room
	if seen.none || time.Now().Before(seen.due) {
		take = 0 // ask first, with one statement
	}
	held := s.acquire(take) // before the lease, which would expire while its event waited
	if held == 0 && take > 0 {
		return s.poll, nil // the subscription has stopped
	}
	due, o, err := s.of.cfg.Store.Lease(ctx, s.consumer, s.topic, held, s.of.Lease, orphaned, s.inFlight.all())
	s.release(held - len(due))
	if err != nil {
		return s.poll, err
	}
	for i, l := range due {
		slots <- struct{}{}
		if !s.deliver(ctx, l, slots, inHand) {
			for _, rest := range due[i:] {
				s.giveBack(ctx, rest, 0)
			}
			break
		}
	}
	switch {
	case held > 0 && len(due) == held, take == 0 && o.Next == 0: // there may be more
		*seen = looks{}
		return minPause, nil
	case len(due) > 0:
		*seen = looks{}
		return min(max(o.Next, minPause), s.poll), nil
	}
	return seen.rest(o, s.poll), nil
}

// rest returns the wait after a poll that found nothing. A due event that was not taken is behind another event of its key, in
// flight, or of another topic.
func (l *looks) rest(o store.Outlook, poll time.Duration) time.Duration {
	most := maxPolls * poll
	if o.Dead || o.Next >= 0 {
		most = waitPolls * poll
	}
	wait := min(poll<<min(l.inVain, 4), most)
	l.inVain++
	l.none = o.Next < 0
	if o.Next > 0 {
		l.due = time.Now().Add(o.Next)
		wait = min(wait, max(o.Next, minPause))
	}
	return wait
}

// deliver passes an event to the router with one of the caller's slots, and waits for its end in the background. It returns false if
// the subscription has stopped.
func (s *subscription) deliver(ctx context.Context, l store.Leased, slots chan struct{}, inHand *sync.WaitGroup) bool {
	delivery := &tableDelivery{attempt: l.Attempts + 1}
	ctx, cancel := context.WithTimeout(ctx, s.of.cfg.Timeout(s.consumer)+leaseSlack)
	h, err := inbox.DecodeHeaders(l.Headers)
	if err != nil { // after an operator's edit; retried until another edit repairs it
		defer cancel()
		s.of.cfg.Logger.WarnContext(ctx, "a failed event cannot be retried now", "event_id", l.Key.EventID, "consumer", s.consumer, "error", err)
		s.release(1)
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
	if !s.offer(msg) {
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
		s.release(1)
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

// nudges wakes a consumer's subscriptions in this process. It is safe for concurrent use.
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

// count returns the number of the consumer's subscriptions in this process.
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

// Wake nudges the consumer's subscriptions, because an event may be due.
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
	default: // a nudge is pending already
	}
}
