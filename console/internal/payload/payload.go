// Package payload reads what only somebody who asks for it may see: payloads, the responses of effects, and the bodies of answers.
package payload

import (
	"context"

	"github.com/millrace-go/millrace/console/internal/guard"
	"github.com/millrace-go/millrace/console/internal/mask"
	"github.com/millrace-go/millrace/middleware/deadletter"
	"github.com/millrace-go/millrace/middleware/effect"
	"github.com/millrace-go/millrace/middleware/idempotencykey"
	"github.com/millrace-go/millrace/pgtx"
)

// maxEdited is the largest payload that a form edits, in bytes. A form may need up to three bytes for each.
const maxEdited = guard.MaxForm / 4

// Source reads from a database. Only if Asked is set, its results have the payloads, and must not be kept: they may be large.
type Source struct {
	DB     pgtx.DB
	Schema string
	Mask   mask.Mask
	Asked  bool // by a form
}

// body returns a payload for somebody who may see it.
func (s Source) body(payload []byte, size int) mask.Body {
	b := s.Mask.Body(payload, size, true)
	if !s.Asked {
		b.Text = ""
	}
	return b
}

// Failure is an event that a consumer failed to handle.
type Failure struct {
	deadletter.Event
	Body mask.Body
	Text string // of the payload, for the form that edits it
	Why  string // why no form can edit it; "" if one can
}

// Failures returns the failures of an event, one for each consumer.
func (s Source) Failures(ctx context.Context, id string) (all []Failure, err error) {
	found, err := deadletter.Show(ctx, s.DB, s.Schema, id, "")
	for _, e := range found {
		f := Failure{Event: e, Body: s.body(e.Payload, e.Bytes)}
		f.Text, f.Why = s.Mask.Form(e.Payload, e.Bytes, maxEdited)
		if !s.Asked {
			f.Payload, f.Text = nil, ""
		}
		all = append(all, f)
	}
	return all, err
}

// Effect is an effect without its response, which Body has.
type Effect struct {
	effect.Entry
	Body mask.Body
}

// Effect returns the effect with this key; the zero Effect if there is none.
func (s Source) Effect(ctx context.Context, key string) (e Effect, err error) {
	found, err := effect.List(ctx, s.DB, s.Schema, effect.Listing{State: "all", Key: key})
	if len(found) > 0 {
		e.Entry = found[len(found)-1]
		e.Body, e.Response = s.body(e.Response, len(e.Response)), nil
	}
	return e, err
}

// Answers are the stored answers for a key without their bodies. Body is that of the only one.
type Answers struct {
	Entries []idempotencykey.Entry
	Body    mask.Body
}

// Answers returns the newest answers for a key, or the answer with an ID.
func (s Source) Answers(ctx context.Context, key string) (a Answers, err error) {
	a.Entries, err = idempotencykey.ShowNewest(ctx, s.DB, s.Schema, key)
	if len(a.Entries) == 1 {
		a.Body = s.body(a.Entries[0].Body, a.Entries[0].Bytes)
	}
	for i := range a.Entries {
		a.Entries[i].Body = nil
	}
	return a, err
}
