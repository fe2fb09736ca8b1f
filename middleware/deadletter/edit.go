package deadletter

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/middleware/internal/inbox"
	"github.com/millrace-go/millrace/pgtx"
)

// Change is what Edit changes in an event. Zero fields change nothing.
type Change struct {
	Payload []byte // nil: unchanged
	Former  string // SHA-256 in hex of the payload that Payload was made from: Edit fails if the event has another one. "" allows any
	Set     map[string]string
	Unset   []string
}

// ErrNoSuchEvent means that no event can be edited: it was handled or discarded, it has never failed, or a process is
// handling it now.
var ErrNoSuchEvent = errors.New("no such event is dead, retrying or blocked, or it is being handled at this moment")

// ErrPayloadChanged means that the event's payload is not the one that Change.Former names. Repeat the change with
// the payload that Show returns.
var ErrPayloadChanged = errors.New("the payload was changed meanwhile")

// Edit changes an event's payload and metadata. Its ID and state stay. consumer may be "" if the event failed for only one
// consumer. The audit records the SHA-256 of the former and of the new payload.
func Edit(ctx context.Context, db pgtx.DB, schema, eventID, consumer string, change Change, by By) error {
	if err := by.Validate(); err != nil {
		return fmt.Errorf("edit failed event: %w", err)
	}
	s := Selection{EventIDs: []string{eventID}, Consumer: consumer, States: []string{"dead", "blocked", "retrying"}}
	return administer(ctx, db, schema, "edit failed event", func(ctx context.Context, tx pgx.Tx, schema string) error {
		var ids []int64
		var consumers []string
		err := s.each(ctx, tx, schema, math.MaxInt64, func(f selected) { ids, consumers = append(ids, f.id), append(consumers, f.name) })
		switch {
		case err != nil:
			return err
		case len(ids) > 1:
			return fmt.Errorf("event %q failed for the consumers %q: name one of them", eventID, consumers)
		}
		rows, err := tx.Query(ctx, query("lock", schema), ids, s.States)
		if err != nil {
			return err
		}
		if locked, err := pgx.CollectRows(rows, pgx.RowTo[int64]); err != nil {
			return err
		} else if len(locked) == 0 {
			return ErrNoSuchEvent
		}
		rows, err = tx.Query(ctx, query("show", schema), ids, true)
		if err != nil {
			return err
		}
		f, err := pgx.CollectExactlyOneRow(rows, scanFailed)
		if err != nil {
			return err
		}
		detail, carried, err := change.apply(&f)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, query("audit", schema), ids, by.Actor, "edit", by.Note, detail); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, query("edit", schema), ids[0], carried, f.Payload)
		return err
	}, pgtx.Isolation(pgx.ReadCommitted))
}

// apply changes the event. It returns the detail for the audit, and the encoded headers.
func (c Change) apply(f *Event) (detail, carried []byte, err error) {
	known := map[string]any{}
	if c.Payload != nil {
		former := SHA256(f.Payload)
		if c.Former != "" && c.Former != former {
			return nil, nil, ErrPayloadChanged
		}
		known["payload_sha256"], known["new_payload_sha256"] = former, SHA256(c.Payload)
		f.Payload = c.Payload
	}
	if len(c.Set) > 0 {
		known["set"] = slices.Sorted(maps.Keys(c.Set))
		maps.Copy(f.Metadata, c.Set)
	}
	if len(c.Unset) > 0 {
		known["unset"] = c.Unset
		maps.DeleteFunc(f.Metadata, func(k, _ string) bool { return slices.Contains(c.Unset, k) })
	}
	if len(known) == 0 {
		return nil, nil, errors.New("nothing to change: want a payload, or metadata to set or unset")
	}
	if detail, err = json.Marshal(known); err != nil {
		return nil, nil, err
	}
	carried, err = inbox.EncodeHeaders(&message.Message{UUID: f.uuid, Metadata: f.Metadata}, f.Origin)
	return detail, carried, err
}

// SHA256 returns the hash of a payload in hex, as in Change.Former and in the audit.
func SHA256(payload []byte) string {
	sum := sha256.Sum256(payload)
	return hex.EncodeToString(sum[:])
}
