package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace-go/millrace/internal/enum"
	"github.com/millrace-go/millrace/outbox/internal/step"
	"github.com/millrace-go/millrace/outbox/internal/wal"
)

// Source says where a relay finds new events.
type Source int

const (
	// Table finds events by reading the outbox, after a wake-up and at each poll.
	Table Source = iota
	// WAL finds events in PostgreSQL's write-ahead log.
	WAL
)

func (s Source) String() string {
	switch s {
	case Table:
		return "Table"
	case WAL:
		return "WAL"
	}
	return fmt.Sprintf("Source(%d)", int(s))
}

// MarshalText returns the word used in configuration files: table or wal.
func (s Source) MarshalText() ([]byte, error) { return enum.Text(s, Table, WAL) }

// UnmarshalText parses the word that MarshalText returns.
func (s *Source) UnmarshalText(word []byte) error { return enum.Read(s, word, Table, WAL) }

// source answers the relay's reads.
type source interface {
	Read(ctx context.Context, requests []step.Request, askWriters bool) (step.Answer, error)
}

// errStruggles ends a relay that reads the WAL and publishes nothing.
var errStruggles = errors.New("this relay publishes nothing")

const (
	// leaveFor is how long such a relay leaves the WAL to others. A relay that stands by looks for it every second.
	leaveFor = 3 * time.Second
	// firstKeep and mostKeep bound how long it then keeps the WAL, although it publishes nothing: it may be the only relay, and other topics
	// may have events now and then.
	firstKeep, mostKeep = time.Minute, 10 * time.Minute
)

// forward forwards events until ctx ends. If it ends before that, it returns the reason.
func (r *Relay) forward(ctx context.Context) error {
	if r.wal == nil {
		return r.lead(ctx)
	}
	for {
		if !r.wal.AwaitTurn(ctx) {
			return nil
		}
		leading, end := context.WithCancelCause(ctx)
		reading := make(chan struct{})
		go func() {
			defer close(reading)
			if err := r.wal.Run(leading); err != nil {
				end(err)
			}
		}()
		began := time.Now()
		err := r.lead(leading)
		if time.Since(began) > 2*mostKeep {
			r.keep = 0
		}
		end(nil)
		<-reading
		switch {
		case errors.Is(err, errStruggles):
			r.keep = min(max(2*r.keep, firstKeep), mostKeep)
			r.keepUntil = time.Now().Add(leaveFor + r.keep)
			r.cfg.Logger.WarnContext(ctx, "nothing is published: leaving the WAL to another relay", "for", leaveFor)
			select {
			case <-ctx.Done():
			case <-time.After(leaveFor):
			}
		case !errors.Is(err, wal.ErrStandBy):
			return err
		}
	}
}

// lead forwards events of the shards that it gets, until ctx ends. Batches in flight then get DrainTimeout to finish.
func (r *Relay) lead(ctx context.Context) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	hard, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(r.cfg.DrainTimeout, cancel) })()
	l := newLoop(hard, end, r)
	l.run(ctx)
	for _, held := range l.leases {
		held.cancel()
		if held.once != nil {
			r.once.end(held.once)
		}
	}
	r.mu.Lock()
	r.shards, r.gapCount, r.topics = nil, 0, nil
	r.mu.Unlock()
	r.writeJournal(context.WithoutCancel(ctx))
	if err := r.store.Leave(hard); err != nil {
		r.cfg.Logger.WarnContext(ctx, "give the shards of the outbox back", "error", err)
	}
	return context.Cause(ctx)
}
