package outbox_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/outbox/internal/store"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
	"github.com/millrace-go/millrace/transport"
)

// publishSpread commits n events at once by one statement, spread over the keys in turn. The payload of each is its number
// within its key.
func (f *fixture) publishSpread(topic string, n int, keys []string) {
	hashes := make([]int64, len(keys))
	for i, k := range keys {
		hashes[i] = store.Hash(k, "")
	}
	_, err := f.pool.Exec(context.Background(), `insert into `+f.schema+`.outbox (shard, seq, event_id, topic, key, headers, payload)
		select s, `+f.schema+`.outbox_next(s), gen_random_uuid()::text, $1, key, '{}', convert_to(n::text, 'UTF8')
		from (
			select n, key, `+f.schema+`.outbox_shard_of(hash) as s
			from generate_series(0, $2::int / cardinality($3::text[]) - 1) n, unnest($3::text[], $4::bigint[]) as k (key, hash)
			order by n
		) as events`, topic, n, keys, hashes)
	require.NoError(f.t, err)
	_, err = f.pool.Exec(context.Background(), `select pg_notify($1, '')`, f.schema+"_outbox")
	require.NoError(f.t, err)
}

func keysOf(prefix string, n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprint(prefix, i)
	}
	return keys
}

func numbersTo(n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = strconv.Itoa(i)
	}
	return list
}

// ailing is a broker on which the topic "ill" is ill until it is cured.
type ailing struct {
	batchRecorder
	cured chan struct{}
	cure  func()
	slow  bool // its batches take until then; otherwise they fail
	tried atomic.Bool
}

func newAiling(slow bool) *ailing {
	p := &ailing{batchRecorder: batchRecorder{newRecorder()}, cured: make(chan struct{}), slow: slow}
	p.cure = sync.OnceFunc(func() { close(p.cured) })
	return p
}

func (p *ailing) PublishBatch(ctx context.Context, topic string, msgs []*message.Message) []error {
	if topic != "ill" {
		return p.batchRecorder.PublishBatch(ctx, topic, msgs)
	}
	p.tried.Store(true)
	if p.slow {
		<-p.cured
	}
	select {
	case <-p.cured:
		return p.batchRecorder.PublishBatch(ctx, topic, msgs)
	default:
	}
	errs := make([]error, len(msgs))
	for i := range errs {
		errs[i] = fmt.Errorf("%w: permission denied", transport.ErrUnavailable)
	}
	return errs
}

const illKeys, healthyKeys = 8, 200

// testIllTopic has two relays of default sizes publish rounds of a healthy topic's events, one of them beside an ill topic
// with far more events than a shard holds of one topic. The healthy topic keeps at least that share of its throughput.
func testIllTopic(t *testing.T, slow bool, prepare func(*fixture, *ailing)) {
	free, beside := newAiling(slow), newAiling(slow)
	without, with := newFixture(t), newFixture(t)
	prepare(with, beside)
	illEvents, healthyEvents := devtest.Storm(60_000, 32_000), devtest.Storm(20_000, 8000)
	ill := keysOf("ill ", illKeys)
	with.publishSpread("ill", illEvents, ill)
	without.run(without.newRelay(free, outbox.RelayConfig{}))
	with.run(with.newRelay(beside, outbox.RelayConfig{}))
	t.Cleanup(beside.cure) // before the relays are stopped
	eventually(t, "the ill topic is tried", beside.tried.Load)
	// An event of a key of the ill topic waits behind the others of its key: so they do stand.
	with.publishAll(topic, ill[0], "behind the ill ones")

	healthy := keysOf("healthy ", healthyKeys)
	round := func(f *fixture, p *ailing) time.Duration {
		before, began := p.count(), time.Now()
		f.publishSpread(topic, healthyEvents, healthy)
		require.Eventually(t, func() bool { return p.count() == before+healthyEvents }, time.Minute, time.Millisecond,
			"a healthy topic's events are published")
		took := time.Since(began)
		eventually(t, "their rows are deleted", func() bool { return f.rowsOf(topic) <= 1 })
		return took
	}
	var alone, together []time.Duration
	ratio := 0.0
	for len(alone) < 3 || ratio < leastShare && len(alone) < 15 { // a busy machine disturbs single rounds
		alone, together = append(alone, round(without, free)), append(together, round(with, beside))
		ratio = float64(median(alone)) / float64(median(together))
	}
	t.Logf("throughput beside the ill topic: %.2f of what it is without (%v, %v)", ratio, together, alone)
	assert.GreaterOrEqual(t, ratio, leastShare)
	assert.Empty(t, beside.of(ill[0]), "nothing of a key of the ill topic is published")

	beside.cure()
	require.Eventually(t, func() bool { return with.rows() == 0 }, 2*time.Minute, 20*time.Millisecond, "the backlog drains")
	want := numbersTo(illEvents / illKeys)
	assert.Equal(t, append(slices.Clone(want), "behind the ill ones"), beside.of(ill[0]))
	for _, k := range ill[1:] {
		assert.Equal(t, want, beside.of(k), "in order, each once")
	}
}

func (f *fixture) rowsOf(topic string) (n int) {
	require.NoError(f.t, f.pool.QueryRow(context.Background(), `select count(*) from `+f.schema+`.outbox where topic = $1`, topic).Scan(&n))
	return n
}

func median(list []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(list))
	return sorted[len(sorted)/2]
}

// leastShare is the throughput beside an ill topic to that without it on a busy machine. One that stood would leave none.
const leastShare = 0.5

// Beside a topic whose right is revoked, 920 of 2,000 events of a healthy topic never came.
func TestDeadTopicStopsNoOther(t *testing.T) {
	t.Parallel()
	testIllTopic(t, false, func(*fixture, *ailing) {})
}

// Beside a topic whose batches took 20 s, 37,592 of 59,500 events of a healthy topic never came.
func TestSlowTopicStopsNoOther(t *testing.T) {
	t.Parallel()
	testIllTopic(t, true, func(*fixture, *ailing) {})
}

// A topic that waits for an operator stops no other, and is published in order when it is resumed.
func TestPausedTopicStopsNoOther(t *testing.T) {
	t.Parallel()
	testIllTopic(t, false, func(f *fixture, p *ailing) {
		require.NoError(t, outboxadmin.PauseTopic(t.Context(), f.pool, f.schema, "ill", outboxadmin.By{Actor: "ada"}))
		p.cure()
		p.tried.Store(true) // it never is
		p.cure = sync.OnceFunc(func() {
			require.NoError(t, outboxadmin.ResumeTopic(context.Background(), f.pool, f.schema, "ill", outboxadmin.By{Actor: "ada"}))
		})
	})
}
