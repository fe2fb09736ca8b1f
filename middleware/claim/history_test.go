package claim_test

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/internal/history"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/pgtx"
)

var errRejects = errors.New("the handler fails")

// recorded is a client of a store, whose operations go to a history.
type recorded struct {
	*fixture
	h      *history.History
	client int
	store  claim.Store
}

// do processes the event. After its first write the handler calls within.
func (c recorded) do(ctx context.Context, id string, within func() error) error {
	enter := c.h.Call(c.client, id)
	var leave *history.Call
	err := c.store.Do(ctx, claim.Key{Consumer: "labour/notify", EventID: id}, func(ctx context.Context) error {
		if leave != nil { // the attempt before was rolled back with those of other events
			leave.Since(enter).Return("rollback", "")
			enter, leave = c.h.Call(c.client, id), nil
		}
		if err := c.effect(ctx, id); err != nil {
			return err
		}
		enter.Return("enter", "")
		leave = c.h.Call(c.client, id)
		return within()
	})
	switch {
	case leave == nil && errors.Is(err, claim.ErrCompleted):
		enter.Return("completed", "")
	case leave == nil && errors.Is(err, claim.ErrContended):
		enter.Return("contended", "")
	case leave == nil:
		enter.Lose("never", "")
	case err == nil:
		leave.Return("commit", "")
	case errors.Is(err, pgtx.ErrOutcomeUnknown),
		c.mode.Group > 0 && !errors.Is(err, errRejects), // a group in doubt has claimed the event again alone, in vain
		c.mode.Deferred && !errors.Is(err, errRejects):  // the flush failed behind the commit
		c.h.Call(c.client, id).Since(enter).Lose("lost", "")
		if errors.Is(err, claim.ErrCompleted) {
			c.h.Call(c.client, id).Since(enter).Return("completed", "")
		}
		leave.Lose("unknown", "")
	default:
		leave.Since(enter).Lose("rollback", "")
	}
	return err
}

// read counts the handler's writes.
func (c recorded) read(ctx context.Context, id string) int {
	read := c.h.Call(c.client, id)
	var n int
	err := c.pool.QueryRow(ctx, `select count(*) from `+c.schema+`.effect where event_id = $1`, id).Scan(&n)
	if assert.NoError(c.t, err) {
		read.Return("read", strconv.Itoa(n))
	}
	return n
}

// Four processes get each event four times, lose connections and patience, and count what they did. There is an order in which
// they took turns.
func TestClaimsHaveAHistory(t *testing.T) {
	perMode(t, func(t *testing.T, f *fixture) {
		const clients, events, deliveries = 4, 12, 4
		h := history.New()
		var all [clients]recorded
		for i := range all {
			pool := devtest.PoolOn(t, f.pool.Config().ConnString(), history.Named(f.schema))
			c, err := claim.New(claim.NewPostgresStore(pool, claim.Schema(f.schema)), f.inMode(claim.Config{}))
			require.NoError(t, err)
			all[i] = recorded{f, h, i + 1, claim.AsStore(c)}
		}
		for range events {
			id := uuid.Must(uuid.NewV7()).String()
			var group sync.WaitGroup
			for _, c := range all {
				faults := history.Attack(t, f.pool, f.schema, c.client)
				group.Go(func() {
					for range deliveries {
						ctx, cancel := faults.Before(t.Context())
						_ = c.do(ctx, id, func() error {
							if faults.One(4) {
								return errRejects
							}
							return nil
						})
						cancel()
						c.read(t.Context(), id)
					}
				})
			}
			group.Wait()
			// A connection that was lost keeps its claim until the server notices.
			require.Eventually(t, func() bool {
				err := all[0].do(t.Context(), id, func() error { return nil })
				return err == nil || errors.Is(err, claim.ErrCompleted)
			}, time.Minute, 10*time.Millisecond)
			require.Equal(t, 1, all[1].read(t.Context(), id))
		}
		t.Logf("%d operations", len(h.Operations()))
		history.Check(t, h, history.Claim)
	})
}

// The same look at a store that holds nothing between its check and its record.
func TestHistoryShowsTwoHolders(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.exec(`create table ` + f.schema + `.done (id text primary key)`)
	h, id := history.New(), uuid.Must(uuid.NewV7()).String()
	var both, group sync.WaitGroup
	both.Add(2)
	for client := range 2 {
		c := recorded{f, h, client + 1, checkThenAct{f.store, f.pool, f.schema + ".done"}}
		group.Go(func() {
			assert.NoError(t, c.do(t.Context(), id, func() error {
				both.Done()
				both.Wait()
				return nil
			}))
		})
	}
	group.Wait()
	wrong, _ := history.Unordered(h.Operations(), history.Claim)
	assert.Equal(t, []string{id}, wrong)
}
