package outbox_test

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/outbox"
)

// accusations lets the database remember the keys of all events that are ever set aside, also of those that are published in
// the end.
func (f *fixture) accusations() (list func() []string) {
	_, err := f.pool.Exec(f.t.Context(), `create table `+f.schema+`.accusations (key text);
		create function `+f.schema+`.accuse() returns trigger language plpgsql as $$ begin
			insert into `+f.schema+`.accusations values (new.key); return new; end $$;
		create trigger accuse after insert on `+f.schema+`.outbox_failed for each row execute function `+f.schema+`.accuse()`)
	require.NoError(f.t, err)
	return func() (keys []string) {
		rows, err := f.pool.Query(context.Background(), `select key from `+f.schema+`.accusations`)
		require.NoError(f.t, err)
		keys, err = pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(f.t, err)
		return keys
	}
}

// Events were dead after "4 deaths" of relays that had been killed from outside. Whatever ends or stops relays, it is no
// event's fault: none is set aside, but one that ends each of them.
func TestFalseAccusationUnderKills(t *testing.T) {
	t.Parallel()
	devtest.Long(t)
	f, d := newFixture(t), newDeliveries(t)
	accused := f.accusations()
	stopFlow := f.flow()
	var kills atomic.Int64
	enough := int64(devtest.Storm(60, 12))
	var killing sync.WaitGroup
	for i := range 3 {
		killing.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 3))
			for kills.Add(1) <= enough {
				relay := d.relay(f.schema, "")
				<-time.After(time.Duration(200+random.IntN(1500)) * time.Millisecond)
				kill(relay)
			}
		})
	}
	killing.Wait()
	stopFlow()
	assert.Empty(t, accused())

	f.publish("killer", "kills its relay")
	f.publish("killer", "behind it")
	f.publishMany(topic, 200, func(i int) string { return "bystander " + strconv.Itoa(i) })
	f.relaysUntilDead(d)
	relay := d.relay(f.schema, "")
	defer kill(relay)
	eventually(t, "everything else is sent", func() bool { return f.rows() == 2 })
	assert.Equal(t, []string{"killer", "killer"}, accused(), "the event, and the one behind it")
	assert.Equal(t, []string{"kills its relay dead 4", "behind it blocked 0"}, f.failed("killer"))
}

// A relay that cannot have a connection, or whose connections are ended again and again, accuses no event.
func TestFalseAccusationUnderTrouble(t *testing.T) {
	t.Parallel()
	devtest.Long(t)
	for name, trouble := range map[string]func(t *testing.T, f *fixture, pool *pgxpool.Pool){
		"an exhausted pool": func(t *testing.T, f *fixture, pool *pgxpool.Pool) {
			for range 3 {
				var held []*pgxpool.Conn
				for range pool.Config().MaxConns {
					c, err := pool.Acquire(t.Context())
					require.NoError(t, err)
					held = append(held, c)
				}
				f.publishSpread(topic, 1000, keysOf("k", 50))
				<-time.After(2500 * time.Millisecond) // longer than a lease
				for _, c := range held {
					c.Release()
				}
			}
		},
		"terminated backends": func(t *testing.T, f *fixture, _ *pgxpool.Pool) {
			for range devtest.Storm(100, 20) {
				f.publishSpread(topic, 1000, keysOf("k", 50))
				_, err := f.pool.Exec(t.Context(), `select pg_terminate_backend(pid) from pg_stat_activity where application_name = $1`, f.schema)
				require.NoError(t, err)
				<-time.After(50 * time.Millisecond)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, broker := newFixture(t), newRecorder()
			accused := f.accusations()
			broker.refuseAll(func(p string) bool { return p == "poison" })
			pool := devtest.PoolOn(t, f.pool.Config().ConnString(), func(cfg *pgxpool.Config) {
				cfg.ConnConfig.RuntimeParams["application_name"] = f.schema // other tests' connections stay
			})
			for range 2 {
				relay := (&fixture{t: t, pool: pool, schema: f.schema}).newRelay(rejecting{batchRecorder{broker}}, outbox.RelayConfig{LeaseTTL: 2 * time.Second})
				f.run(relay)
			}
			eventually(t, "they have begun", func() bool { return assert.ObjectsAreEqual([]int{8, 8}, f.holders()) })
			trouble(t, f, pool)
			f.publish("poison", "poison")
			eventually(t, "the poison message is dead, everything else is published", func() bool {
				return assert.ObjectsAreEqual([]string{"poison dead 1"}, f.failed("poison")) && f.rows() == 1
			})
			assert.Equal(t, []string{"poison"}, accused())
		})
	}
}
