package outbox_test

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/outbox/internal/store"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
	"github.com/millrace-go/millrace/pgtx"
)

var (
	stormFor  = flag.Duration("storm", 0, "how long TestStorm lasts; 0: 40 s where MILLRACE_TEST_STORMS is set, else 10 s")
	stormSeed = flag.Uint64("storm-seed", 0, "the seed of TestStorm's faults; 0: another one each time")
)

// storm is a schedule of faults, with what they strike: two relay processes, the database, the broker, and writers.
type storm struct {
	*fixture
	source   outbox.Source
	broker   *deliveries
	relays   [2]*supervised
	long     bool
	bursting sync.Mutex

	account *account
	read    int            // deliveries that were counted
	repeats map[string]int // by key, since they were judged
	changes map[int16]int  // of a shard's lease
	unused  map[int16]int  // repeats that the last round allowed, and that may still come
}

var stormTopics = []string{"zero", "one", "two"}

// topicOf is the topic of a key's n-th event: most often the same.
func topicOf(key, n int) string {
	if n%8 == 0 {
		key++
	}
	return stormTopics[key%len(stormTopics)]
}

func newStorm(t *testing.T, source outbox.Source, long bool, files ...string) *storm {
	var f *fixture
	if source == outbox.WAL {
		f = logged(t)
	} else {
		f = newFixture(t)
	}
	f.pool = devtest.PoolOn(t, f.pool.Config().ConnString(), func(cfg *pgxpool.Config) { cfg.MaxConns = 12 })
	f.aggregateTables()
	// A lease that a relay takes, and that nobody has given back before.
	_, err := f.pool.Exec(t.Context(), `create table `+f.schema+`.takeover (shard smallint);
		create function `+f.schema+`.note_takeover() returns trigger language plpgsql as $$ begin
			insert into `+f.schema+`.takeover values (new.shard); return new; end $$;
		create trigger note after update on `+f.schema+`.outbox_shard for each row
			when (old.relay_id is not null and new.relay_id is not null and (old.relay_id <> new.relay_id or old.expires_at <= now()))
			execute function `+f.schema+`.note_takeover()`)
	require.NoError(t, err)
	s := &storm{
		fixture: f, source: source, broker: newDeliveries(t), long: long,
		account: newAccount(), repeats: map[string]int{}, changes: map[int16]int{}, unused: map[int16]int{},
	}
	s.broker.dsn = f.pool.Config().ConnString()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for i := range s.relays {
		r := &supervised{trouble: trouble(t.TempDir())}
		for _, name := range files {
			require.NoError(t, r.trouble.begin(name))
		}
		s.relays[i] = r
		running.Go(func() { s.supervise(ctx, r) })
	}
	t.Cleanup(func() { cancel(); running.Wait() })
	return s
}

// supervised is a relay process that is started again when it has ended.
type supervised struct {
	trouble trouble
	mu      sync.Mutex
	process *os.Process
}

func (s *storm) supervise(ctx context.Context, r *supervised) {
	option := troubledBy + string(r.trouble)
	if s.source == outbox.WAL {
		option = fromWAL + option
	}
	for ctx.Err() == nil {
		cmd := s.broker.relay(s.schema, option)
		r.mu.Lock()
		r.process = cmd.Process
		r.mu.Unlock()
		stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait() // whatever it says, another one follows
		stop()
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(rand.IntN(1500)) * time.Millisecond):
		}
	}
}

// signal sends the process that there is now a signal, and later ones to the same.
func (r *supervised) signal(first syscall.Signal) (next func(syscall.Signal)) {
	r.mu.Lock()
	process := r.process
	r.mu.Unlock()
	next = func(s syscall.Signal) {
		if process != nil {
			_ = process.Signal(s) // it may have ended
		}
	}
	next(first)
	return next
}

// fault is something that strikes a relay or what it works with. It returns when it is over.
type fault struct {
	name   string
	unseen bool // it may end leases in a way that the table of leases does not show
	strike func(s *storm, r *supervised, random *rand.Rand) error
}

// between waits for a time between the two.
func between(random *rand.Rand, least, most time.Duration) {
	<-time.After(least + time.Duration(random.Int64N(int64(most-least))))
}

var faults = []fault{
	{name: "kill", strike: func(_ *storm, r *supervised, _ *rand.Rand) error {
		r.signal(syscall.SIGKILL)
		return nil
	}},
	heldUpDeletes,
	{name: "restart", strike: func(_ *storm, r *supervised, _ *rand.Rand) error {
		r.signal(syscall.SIGTERM)
		return nil
	}},
	{name: "stop beyond the leases", strike: func(_ *storm, r *supervised, random *rand.Rand) error {
		next := r.signal(syscall.SIGSTOP)
		between(random, 1500*time.Millisecond, 4*time.Second)
		next(syscall.SIGCONT)
		return nil
	}},
	{name: "terminated backends", unseen: true, strike: func(s *storm, _ *supervised, random *rand.Rand) error {
		for range 5 + random.IntN(20) {
			if _, err := s.pool.Exec(context.Background(), `select pg_terminate_backend(pid) from pg_stat_activity where application_name = $1`, s.schema); err != nil {
				return err
			}
			between(random, 10*time.Millisecond, 200*time.Millisecond)
		}
		return nil
	}},
	{name: "exhausted pool", strike: func(s *storm, r *supervised, random *rand.Rand) error {
		least := 3 * time.Second
		if s.long {
			least = 20 * time.Second
		}
		return r.during(exhausted, random, least, least+time.Second)
	}},
	{name: "wedged publisher", unseen: true, strike: func(_ *storm, r *supervised, random *rand.Rand) error {
		return r.during(wedged, random, 3*time.Second, 8*time.Second) // a shard is given back after 4 s
	}},
	{name: "forbidden topic", strike: func(s *storm, _ *supervised, random *rand.Rand) error {
		name := forbidden + stormTopics[random.IntN(len(stormTopics))]
		for _, r := range s.relays {
			if err := r.trouble.begin(name); err != nil {
				return err
			}
		}
		between(random, time.Second, 6*time.Second)
		for _, r := range s.relays {
			if err := r.trouble.end(name); err != nil {
				return err
			}
		}
		return nil
	}},
	{name: "VACUUM FULL", strike: func(s *storm, _ *supervised, _ *rand.Rand) error {
		_, err := s.pool.Exec(context.Background(), `vacuum full `+s.schema+`.outbox`)
		return err
	}},
	{name: "change of shards", strike: func(s *storm, _ *supervised, random *rand.Rand) error {
		ctx, cancel := context.WithTimeout(context.Background(), longEnough)
		defer cancel()
		return outboxadmin.ChangeShards(ctx, s.pool, s.schema, 1+random.IntN(40), nil)
	}},
}

func (r *supervised) during(name string, random *rand.Rand, least, most time.Duration) error {
	if err := r.trouble.begin(name); err != nil {
		return err
	}
	between(random, least, most)
	return r.trouble.end(name)
}

// heldUpDeletes kills a relay when it has published as much as it may without a delete.
var heldUpDeletes = fault{name: "kill while deletes wait", strike: func(s *storm, r *supervised, _ *rand.Rand) error {
	return s.killHeldUp(r, func() { s.broker.rest(time.Second, 20*time.Second) })
}}

// killHeldUp commits a burst that no relay may delete, and kills the relay when published returns.
func (s *storm) killHeldUp(r *supervised, published func()) error {
	ctx := context.Background()
	lock, err := s.pool.Begin(ctx)
	if err != nil {
		return err
	}
	locked := make(chan error, 1)
	err = s.burst(burstOfEach, func() {
		go func() {
			_, err := lock.Exec(ctx, `lock table `+s.schema+`.outbox in share mode`)
			locked <- err
		}()
		assert.Eventually(s.t, func() bool {
			var queued bool
			err := s.pool.QueryRow(ctx, `select exists (select from pg_locks where relation = '`+s.schema+`.outbox'::regclass and mode = 'ShareLock')`).Scan(&queued)
			return assert.NoError(s.t, err) && queued
		}, longEnough, 5*time.Millisecond, "deletes queue behind the lock")
	})
	if err != nil {
		return err
	}
	if err := <-locked; err != nil {
		return err
	}
	published()
	r.signal(syscall.SIGKILL)
	return lock.Rollback(ctx)
}

// burstOfEach is how many events of each key are committed while deletes wait.
const burstOfEach = 60

// burst commits n events of each key at once. Before that it calls ready.
func (s *storm) burst(n int, ready func()) error {
	s.bursting.Lock()
	defer s.bursting.Unlock()
	for {
		err := pgx.BeginFunc(context.Background(), s.pool, func(tx pgx.Tx) error {
			ctx := pgtx.With(context.Background(), tx)
			rows, err := tx.Query(ctx, `update `+s.schema+`.aggregate set n = n + $1 returning id, n`, n)
			if err != nil {
				return err
			}
			highest := map[int]int{}
			var key, last int
			if _, err := pgx.ForEachRow(rows, []any{&key, &last}, func() error { highest[key] = last; return nil }); err != nil {
				return err
			}
			for i := n - 1; i >= 0; i-- {
				byTopic := map[string][]*message.Message{}
				for key, last := range highest {
					t := topicOf(key, last-i)
					byTopic[t] = append(byTopic[t], newMessage(ctx, strconv.Itoa(key), strconv.Itoa(last-i)))
				}
				for t, msgs := range byTopic {
					if err := s.publisher.Publish(t, msgs...); err != nil {
						return err
					}
				}
			}
			ready()
			return nil
		})
		if !refused(err) { // else the number of shards is being changed
			return err
		}
		<-time.After(100 * time.Millisecond)
	}
}

// publishOne is what the writers do, slower.
func (s *storm) publishOne(ctx context.Context, tx pgx.Tx, key, payload string) error {
	if _, err := tx.Exec(ctx, `select pg_sleep(0.02)`); err != nil {
		return err
	}
	t := topic
	if n, err := strconv.Atoi(payload); err == nil {
		k, err := strconv.Atoi(key)
		if err != nil {
			return err
		}
		t = topicOf(k, n)
	}
	err := s.publisher.Publish(t, newMessage(pgtx.With(ctx, tx), key, payload))
	if refused(err) {
		return errOops
	}
	return err
}

// catchUp counts what was delivered since the last time.
func (s *storm) catchUp() {
	for _, one := range s.broker.since(s.read) {
		s.read++
		if s.account.add(s.t, one) {
			s.repeats[one.key]++
		}
	}
}

// settle waits until an event of each key that is written now has come: what was in flight before has come by then too.
func (s *storm) settle() bool {
	if !assert.NoError(s.t, s.burst(1, func() {})) {
		return false
	}
	want := s.written()
	return assert.Eventually(s.t, func() bool {
		s.catchUp()
		for key, n := range want {
			if s.account.highest[key] < n {
				return false
			}
		}
		return true
	}, longEnough, 20*time.Millisecond, "after the faults, everything is published")
}

// written is how many events of each key were committed.
func (s *storm) written() map[string]int {
	rows, err := s.pool.Query(context.Background(), `select id::text, n from `+s.schema+`.aggregate`)
	require.NoError(s.t, err)
	want := map[string]int{}
	var key string
	var n int
	_, err = pgx.ForEachRow(rows, []any{&key, &n}, func() error { want[key] = n; return nil })
	require.NoError(s.t, err)
	return want
}

// strike lets the faults happen at once and judges what came of them. It returns the highest number of repeats in a shard,
// and what is wrong with it.
func (s *storm) strike(chosen []fault, random *rand.Rand) (most int, wrong []string) {
	before := s.shards()
	var striking sync.WaitGroup
	unseen := 0
	for i, f := range chosen {
		if f.unseen {
			unseen++
		}
		r, random := s.relays[(i+random.IntN(2))%len(s.relays)], rand.New(rand.NewPCG(random.Uint64(), 1))
		striking.Go(func() { assert.NoError(s.t, f.strike(s, r, random), f.name) })
	}
	striking.Wait()
	if !s.settle() {
		return 0, []string{"events are stuck"}
	}
	shards := s.shards()
	of := func(shard int16) int16 { return shard }
	if shards != before { // which shard a key had is not known
		of = func(int16) int16 { return 0 }
	}
	repeats, allowed := map[int16]int{}, map[int16]int{}
	for key, n := range s.repeats {
		repeats[of(int16(store.Hash(key, "")%int64(shards)))] += n
	}
	clear(s.repeats)
	for shard, n := range s.takeovers() {
		allowed[of(shard)] += maxInFlight * (n - s.changes[shard])
		s.changes[shard] = n
	}
	for shard := range int16(max(shards, before)) {
		allowed[of(shard)] += maxInFlight * unseen
	}
	late := map[int16]int{}
	for shard, n := range s.unused {
		late[of(shard)] += n
	}
	for shard, n := range repeats {
		most = max(most, n)
		if n > allowed[shard]+late[shard] {
			wrong = append(wrong, fmt.Sprintf("%d events of shard %d were repeated, and its leases' ends allow %d", n, shard, allowed[shard]+late[shard]))
		}
	}
	s.unused = map[int16]int{}
	for shard, n := range allowed {
		s.unused[shard] = max(min(n, n+late[shard]-repeats[shard]), 0)
	}
	return most, wrong
}

// takeovers is how often each shard's lease was taken from a relay that had not given it back.
func (s *storm) takeovers() map[int16]int {
	rows, err := s.pool.Query(context.Background(), `select shard, count(*) from `+s.schema+`.takeover group by shard`)
	require.NoError(s.t, err)
	count := map[int16]int{}
	var shard int16
	var n int
	_, err = pgx.ForEachRow(rows, []any{&shard, &n}, func() error { count[shard] = n; return nil })
	require.NoError(s.t, err)
	return count
}

// Two relay processes in a storm of faults, one to three at a time: nothing committed is lost, nothing else is sent, no event is
// overtaken by a later one of its key, none is accused, and after each round everything gets on. The repeats are those that
// the ends of leases allow: MaxInFlight for each. A relay that loses the slot tells that it reads rows. For ten minutes:
//
//	go test ./outbox -run 'TestStorm$' -count=1 -timeout 20m -storm 10m
func TestStorm(t *testing.T) {
	t.Parallel()
	for _, source := range []outbox.Source{outbox.Table, outbox.WAL} {
		t.Run(source.String(), func(t *testing.T) {
			t.Parallel()
			testStorm(t, source)
		})
	}
}

func testStorm(t *testing.T, source outbox.Source) {
	lasts := *stormFor
	if lasts == 0 {
		lasts = time.Duration(devtest.Storm(40, 10)) * time.Second
	}
	seed := *stormSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("the same faults again: go test ./outbox -run 'TestStorm$/^%v$' -count=1 -timeout 20m -storm %v -storm-seed %d", source, lasts, seed)
	s := newStorm(t, source, lasts > time.Minute)
	accused := s.accusations()
	random := rand.New(rand.NewPCG(seed, 1))
	ctx, cancel := context.WithCancel(context.Background())
	var writing sync.WaitGroup
	writing.Go(func() { s.write(ctx, s.publishOne) })
	stop := sync.OnceFunc(func() { cancel(); writing.Wait() })
	defer stop()

	struck := map[string]int{}
	all := faults
	var deck []fault
	if source == outbox.WAL {
		all, deck = append(slices.Clone(faults), droppedSlot), []fault{droppedSlot}
	}
	for began := time.Now(); time.Since(began) < lasts && !t.Failed(); {
		var chosen []fault
		for range 1 + random.IntN(3) {
			if len(deck) == 0 {
				deck = slices.Clone(all)
				random.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
			}
			if !slices.ContainsFunc(chosen, func(f fault) bool { return f.name == deck[0].name }) {
				chosen, deck = append(chosen, deck[0]), deck[1:]
			}
		}
		var names []string
		for _, f := range chosen {
			names = append(names, f.name)
			struck[f.name]++
		}
		at := time.Since(began)
		most, wrong := s.strike(chosen, random)
		t.Logf("%5.0f s: %s: %.1f s, at most %d repeats in a shard", at.Seconds(), strings.Join(names, " and "), (time.Since(began) - at).Seconds(), most)
		assert.Empty(t, wrong)
	}
	stop()
	require.Eventually(t, func() bool { return s.rows() == 0 }, longEnough, 50*time.Millisecond, "the outbox is drained")
	s.catchUp()
	var lost, phantoms int
	for key, n := range s.written() {
		lost += n
		phantoms += max(s.account.highest[key]-n, 0)
	}
	lost -= s.account.published
	for _, name := range slices.Sorted(maps.Keys(struck)) {
		t.Logf("%d x %s", struck[name], name)
	}
	t.Logf("%d events, %d repeats", s.account.published, s.account.repeated)
	assert.Zero(t, lost)
	assert.Zero(t, phantoms)
	assert.Zero(t, s.account.inversions, "overtaken events")
	assert.Empty(t, accused())
}
