package outbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/transport"
)

// publish sends the rows, wave by wave, and notes what was acknowledged and what failed.
func (w *worker) publish(ctx context.Context, rows []row) {
	ctx, cancel := context.WithTimeout(ctx, w.relay.cfg.PublishTimeout)
	defer cancel()
	stuck := map[string]bool{} // keys of which an event failed: none of their later ones is sent
	var notSent []row          // held back; usually for an event of the same batch that failed
	var failed failures
	for _, wave := range plan(rows) {
		results := make([][]error, len(wave))
		var sends sync.WaitGroup
		for i, group := range wave {
			wave[i].rows = group.without(stuck)
			results[i] = make([]error, len(wave[i].rows))
			sends.Go(func() { w.send(ctx, wave[i], results[i]) })
		}
		sends.Wait()
		for i, group := range wave {
			for j, e := range group.rows {
				err := results[i][j]
				switch {
				case err == nil:
					w.failing.clear(e)
					w.published = append(w.published, e)
					continue
				case errors.Is(err, transport.ErrNotSent):
					notSent = append(notSent, e)
				default:
					failed.add(&w.failing, e, err)
				}
				if e.key != "" {
					stuck[e.key] = true
				}
			}
		}
	}
	for _, e := range notSent { // for one of an earlier batch: without a wait it would be tried in a hot loop
		failed.add(&w.failing, e, transport.ErrNotSent)
	}
	failed.log(ctx, w.relay.cfg.Logger, w.shard)
}

// failures is what failed in one batch: in an outage that is every event, and one line tells it.
type failures struct {
	noted map[string]bool // keys, once each: an event that follows says nothing new
	first []any
}

func (f *failures) add(memory *failing, e row, err error) {
	_, slot := memory.slot(e)
	slot = strconv.FormatBool(e.key == "") + slot
	if f.noted[slot] {
		return
	}
	if f.noted == nil {
		f.noted = map[string]bool{}
	}
	f.noted[slot] = true
	wait, attempt := memory.note(e, time.Now())
	if f.first == nil {
		f.first = []any{"event_id", e.eventID, "topic", e.topic, "attempt", attempt, "retry_in", wait, "error", err}
	}
}

func (f *failures) log(ctx context.Context, logger *slog.Logger, shard int16) {
	if len(f.noted) > 0 {
		logger.WarnContext(ctx, "publish events", append([]any{"shard", shard, "failed_keys", len(f.noted)}, f.first...)...)
	}
}

// send publishes one topic's rows and puts the result of each in its place.
func (w *worker) send(ctx context.Context, g group, results []error) {
	msgs, at := make([]*message.Message, 0, len(g.rows)), make([]int, 0, len(g.rows))
	bad := map[string]bool{}
	for i, e := range g.rows {
		msg, err := e.message(ctx)
		switch {
		case e.key != "" && bad[e.key]:
			results[i] = transport.ErrNotSent
		case err != nil:
			results[i], bad[e.key] = err, true
		default:
			msgs, at = append(msgs, msg), append(at, i)
		}
	}
	if len(msgs) == 0 {
		return
	}
	for i, err := range w.relay.publishBatch(ctx, g.topic, msgs) {
		results[at[i]] = err
	}
}

// publishBatch sends the messages at once where the publisher can, else one by one.
func (r *Relay) publishBatch(ctx context.Context, topic string, msgs []*message.Message) []error {
	if b, ok := r.publisher.(transport.BatchPublisher); ok {
		if results := b.PublishBatch(ctx, topic, msgs); len(results) == len(msgs) {
			return results
		}
		return repeat(fmt.Errorf("publisher %T did not return one result per message", b), len(msgs))
	}
	results, failed := make([]error, len(msgs)), map[string]bool{}
	for i, m := range msgs {
		key := transport.Key(m)
		switch {
		case ctx.Err() != nil:
			results[i] = ctx.Err()
		case key != "" && failed[key]:
			results[i] = transport.ErrNotSent
		default:
			results[i] = r.publisher.Publish(topic, m)
			failed[key] = results[i] != nil
		}
	}
	return results
}

func repeat(err error, n int) []error {
	errs := make([]error, n)
	for i := range errs {
		errs[i] = err
	}
	return errs
}

func (e row) message(ctx context.Context) (*message.Message, error) {
	m := message.NewMessageWithContext(ctx, e.eventID, e.payload)
	if err := json.Unmarshal(e.headers, &m.Metadata); err != nil {
		return nil, fmt.Errorf("headers of event %s: %w", e.eventID, err)
	}
	transport.SetKey(m, e.key)
	return m, nil
}
