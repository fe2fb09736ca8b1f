package redisclaim_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/claim/claimtest"
	"github.com/millrace-go/millrace/middleware/claim/redisclaim"
)

// alone is the fixture of a store without a record, whose handlers count in memory.
func alone(t *testing.T, client redis.UniversalClient, cfg redisclaim.Config) claimtest.Fixture {
	effects, outputs := &tally{}, &tally{}
	cfg.Prefix, cfg.Publisher = devtest.Topic(t), outputs
	return claimtest.Fixture{
		Store: newStore(t, client, cfg), Effect: effects.add, Effects: effects.all, Outputs: outputs.all, Events: 2500,
	}
}

// inFront is the fixture of a store in front of a PostgreSQL record.
func inFront(t *testing.T, client redis.UniversalClient, cfg redisclaim.Config) claimtest.Fixture {
	// A connection for every claim that the suite holds at once.
	pool := devtest.PoolOn(t, devtest.Pool(t).Config().ConnString(), func(cfg *pgxpool.Config) { cfg.MaxConns = 40 })
	f := claimtest.Postgres(t, pool, devtest.Schema(t))
	cfg.Prefix, cfg.Record = devtest.Topic(t), f.Store
	f.Store, f.Events = newStore(t, client, cfg), 500
	return f
}

func TestStoreAloneConforms(t *testing.T) {
	t.Parallel()
	claimtest.Run(t, func(t *testing.T) claimtest.Fixture { return alone(t, devtest.Redis(t), redisclaim.Config{}) })
}

func TestStoreInFrontOfARecordConforms(t *testing.T) {
	t.Parallel()
	claimtest.Run(t, func(t *testing.T) claimtest.Fixture { return inFront(t, devtest.Redis(t), redisclaim.Config{}) })
}

// checkThenAct looks for the marker, runs the handler and sets the marker, with nothing that holds the event in between.
type checkThenAct struct {
	claim.Store
	client *redis.Client
	prefix string
}

func (s checkThenAct) Do(ctx context.Context, key claim.Key, fn func(ctx context.Context) error) error {
	err := s.client.Get(ctx, s.prefix+key.EventID).Err()
	if err == nil {
		return claim.ErrCompleted
	}
	if !errors.Is(err, redis.Nil) {
		return err
	}
	if err := fn(ctx); err != nil {
		return err
	}
	return s.client.Set(ctx, s.prefix+key.EventID, "done", 0).Err()
}

func TestCheckThenActDoubles(t *testing.T) {
	t.Parallel()
	claimtest.Doubles(t, func(t *testing.T) claimtest.Fixture {
		f := alone(t, devtest.Redis(t), redisclaim.Config{})
		f.Store, f.Events = checkThenAct{f.Store, devtest.Redis(t), devtest.Topic(t)}, 500
		return f
	})
}
