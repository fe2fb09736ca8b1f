package claim

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/pgtx"
)

func postgres(s Store) *PostgresStore {
	for s != nil {
		if p, ok := s.(*PostgresStore); ok {
			return p
		}
		u, ok := s.(interface{ Unwrap() Store })
		if !ok {
			return nil
		}
		s = u.Unwrap()
	}
	return nil
}

func (s *PostgresStore) housekeep(context.Context) error { return nil }

func (c *Claim) bury(ctx context.Context, key Key, msg *message.Message, reason string, cause error) error {
	s := postgres(c.store)
	err := s.Do(ctx, key, func(ctx context.Context) error {
		tx, _ := pgtx.From(ctx)
		headers, err := json.Marshal(msg.Metadata)
		if err != nil {
			return err
		}
		consumer, err := s.consumer(ctx, key.Consumer)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, pgschema.Render(`insert into {schema}.claim_failed (consumer, record, event_id, key, state, reason, error, headers, payload)
			values ($1, $2, $3, $4, 'dead', $5, $6, $7, $8)`, s.schema), consumer, recordID(key), key.EventID, key.Order, reason, cause.Error(), headers, []byte(msg.Payload))
		return err
	})
	if errors.Is(err, ErrCompleted) {
		return nil
	}
	return err
}
