package outbox_test

import (
	"math"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/outbox/internal/store"
)

// A relay that is killed repeats as many events of a shard as it may have in flight. The judge of the storm sees one that
// repeats more.
func TestStormAllowsNoMoreRepeats(t *testing.T) {
	t.Parallel()
	devtest.Long(t)
	for name, files := range map[string][]string{"as many as allowed": nil, "ten times as many": {"tenfold"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStorm(t, outbox.Table, false, files...)
			eventually(t, "the relays hold their shards", func() bool { return assert.ObjectsAreEqual([]int{8, 8}, s.holders()) })
			enough := maxInFlight / 2
			if files != nil {
				enough = maxInFlight
			}
			held := fault{name: heldUpDeletes.name, strike: func(s *storm, r *supervised, _ *rand.Rand) error {
				return s.killHeldUp(r, func() {
					assert.Eventually(t, func() bool { return s.least(enough) > enough }, longEnough, 20*time.Millisecond, "the relays publish what they may")
				})
			}}
			most, wrong := s.strike([]fault{held}, rand.New(rand.NewPCG(1, 1)))
			if files == nil {
				assert.Empty(t, wrong)
				assert.Greater(t, most, maxInFlight/2)
				return
			}
			assert.NotEmpty(t, wrong)
		})
	}
}

// least returns the lowest number of events that were published of a shard whose keys have more than n in a burst.
func (s *storm) least(n int) int {
	shards, keys, published := int64(s.shards()), map[int64]int{}, map[int64]int{}
	of := func(key string) int64 { return store.Hash(key, "") % shards }
	for key := range aggregates {
		keys[of(strconv.Itoa(key))]++
	}
	distinct := map[delivery]bool{}
	for _, one := range s.broker.all() {
		if !distinct[one] {
			distinct[one] = true
			published[of(one.key)]++
		}
	}
	least := math.MaxInt
	for shard, of := range keys {
		if of*burstOfEach > n {
			least = min(least, published[shard])
		}
	}
	return least
}
