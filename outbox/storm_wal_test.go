package outbox_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
)

// slotReader returns the server's process that reads the slot, and the relay process that has started it. Both are 0 if nobody reads the slot.
func (f *fixture) slotReader() (backend, relay int, err error) {
	err = f.pool.QueryRow(context.Background(), `select a.pid, split_part(name, ':', 2)::int
		from pg_replication_slots s join pg_stat_replication a on a.pid = s.active_pid
		join `+f.schema+`.outbox_relay on application_name = 'millrace-relay-' || relay_id and expires_at > now()
		where slot_name = $1 and state = 'streaming'`, f.slot()).Scan(&backend, &relay)
	if errors.Is(err, pgx.ErrNoRows) {
		err = nil
	}
	return backend, relay, err
}

// dropSlot drops the slot of a relay process that reads it. It returns the process, and how often that one had told before then that it reads rows.
func (f *fixture) dropSlot(broker *deliveries) (relay, told int, err error) {
	ctx := context.Background()
	for began := time.Now(); time.Since(began) < longEnough; <-time.After(5 * time.Millisecond) {
		backend, relay, err := f.slotReader()
		if err != nil {
			return 0, 0, err
		}
		if backend == 0 {
			continue
		}
		told := broker.fallbacks(relay)
		if _, err := f.pool.Exec(ctx, `select pg_terminate_backend($1, 20000)`, backend); err != nil {
			return 0, 0, err
		}
		if _, err = f.pool.Exec(ctx, `select pg_drop_replication_slot($1)`, f.slot()); err == nil { // else a relay reads it again
			return relay, told, nil
		}
	}
	return 0, 0, errors.New("no relay reads the WAL")
}

// droppedSlot takes the slot from the relay that reads it. The relay tells that it reads rows, unless it ends or leaves the WAL to the other one.
var droppedSlot = fault{name: "dropped slot", strike: func(s *storm, _ *supervised, _ *rand.Rand) error {
	reader, told, err := s.dropSlot(s.broker)
	if err != nil {
		return err
	}
	assert.Eventually(s.t, func() bool {
		_, relay, err := s.slotReader()
		return s.broker.fallbacks(reader) > told || assert.NoError(s.t, err) && relay != 0 && relay != reader
	}, longEnough, 20*time.Millisecond, "the relay tells that it reads rows")
	return nil
}}
