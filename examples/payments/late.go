package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/examples/internal/stage"
	"github.com/millrace-go/millrace/transport"
)

// state returns the progress.
type state func(ctx context.Context) (line string, all bool, err error)

// late counts the deliveries of events that are published again.
type late struct {
	counts *stage.Counts
	before int // deliveries
	want   int // one for each book
}

func (l late) came() int { return min(l.counts.Get("deliveries")-l.before, l.want) }

// after extends a state: everything is there only when these deliveries have come, which the tables do not show.
func (l late) after(s state) state {
	return func(ctx context.Context) (string, bool, error) {
		line, all, err := s(ctx)
		came := l.came()
		return fmt.Sprintf("%s, %d of %d late deliveries", line, came, l.want), all && came == l.want, err
	}
}

// playLate delivers a share of the events again, and waits until they have come or are lost.
func playLate(ctx context.Context, cast *stage.Cast, o options, s state) (late, error) {
	l := late{counts: &cast.Counts, before: cast.Counts.Get("deliveries")}
	again, err := deliverAgain(ctx, cast, o)
	if err != nil {
		return l, err
	}
	l.want = again * len(books)
	return l, cast.Watch(ctx, stage.Watching{State: l.after(s)})
}

// deliverAgain publishes a share of the events again after the window, like an operator who resets a consumer's offset. It returns how
// many.
func deliverAgain(ctx context.Context, cast *stage.Cast, o options) (int, error) {
	p, disconnect, err := cast.Main(ctx)
	if err != nil {
		return 0, err
	}
	defer disconnect()
	select { // wait for the end of the window
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-time.After(o.window + o.window/10):
	}
	publisher, err := p.Broker.Publisher()
	if err != nil {
		return 0, err
	}
	rows, err := p.Pool.Query(ctx, `select id, event_id, account, cents from payments order by id`)
	if err != nil {
		return 0, err
	}
	var (
		made  payment
		id    string
		again []*message.Message
	)
	if _, err := pgx.ForEachRow(rows, []any{&made.ID, &id, &made.Account, &made.Cents}, func() error {
		if !stage.Chosen("late"+id, 0.2) {
			return nil
		}
		payload, err := json.Marshal(made)
		msg := message.NewMessageWithContext(ctx, id, payload)
		transport.SetKey(msg, made.Account)
		again = append(again, msg)
		return err
	}); err != nil {
		return 0, err
	}
	return len(again), publisher.Publish(p.Topic(paymentMade), again...)
}
