package main

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
)

// completed is the payload of labour.completed.
type completed struct {
	LabourID     int64  `json:"labour_id"`
	Mother       string `json:"mother"`
	Contractions int    `json:"contractions"`
}

// labour is the aggregate: everything that a decision needs to know.
type labour struct {
	id           int64
	mother       string
	done         bool
	contractions int
	open         int // contractions that have not ended
}

var (
	errCompleted   = errors.New("the labour is completed")
	errContraction = errors.New("a contraction has not ended")
)

// complete decides, and writes nothing.
func (l labour) complete() (completed, error) {
	switch {
	case l.done:
		return completed{}, errCompleted
	case l.open > 0:
		return completed{}, errContraction
	}
	return completed{LabourID: l.id, Mother: l.mother, Contractions: l.contractions}, nil
}

// completeLabour is what POST /labours/{id}/complete does, in the order that ways say. A retry finds the labour completed.
func (s *scene) completeLabour(ctx context.Context) error {
	var event *message.Message
	if s.ways.publish == beforeCommit { // the labour is not locked yet, and the decision is not final
		l, err := load(ctx, s.p.Pool, s.id)
		if err != nil {
			return err
		}
		if event, err = newEvent(ctx, l); err != nil {
			return err
		}
		if err := s.bus.Publish(s.topic(), event); err != nil {
			return err
		}
	}
	err := pgtx.Run(ctx, s.p.Pool, func(ctx context.Context, tx pgx.Tx) error {
		l, err := load(ctx, tx, s.id)
		if err != nil {
			return err
		}
		if event, err = newEvent(ctx, l); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `update labours set completed_at = now() where id = $1`, s.id); err != nil {
			return err
		}
		if s.ways.publish == inTransaction {
			if err := s.events.Publish(s.topic(), event); err != nil {
				return err
			}
		}
		return s.beforeCommit()
	})
	if err != nil || s.ways.publish != afterCommit {
		return err
	}
	event.SetContext(ctx)
	return s.bus.Publish(s.topic(), event)
}

// newEvent creates the event's ID, at the place where the event happens.
func newEvent(ctx context.Context, l labour) (*message.Message, error) {
	e, err := l.complete()
	if err != nil {
		return nil, err
	}
	payload, err := json.Marshal(e)
	if err != nil {
		return nil, err
	}
	msg := message.NewMessageWithContext(ctx, outbox.NewID(), payload)
	transport.SetKey(msg, strconv.FormatInt(l.id, 10))
	return msg, nil
}

// querier is a pool or a transaction.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func load(ctx context.Context, db querier, id int64) (labour, error) {
	l := labour{id: id}
	err := db.QueryRow(ctx, `select mother, completed_at is not null,
		(select count(*) from contractions where labour_id = id), (select count(*) from contractions where labour_id = id and ended_at is null)
		from labours where id = $1 for update`, id).Scan(&l.mother, &l.done, &l.contractions, &l.open)
	return l, err
}
