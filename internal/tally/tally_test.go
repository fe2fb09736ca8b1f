package tally_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"

	"github.com/millrace-go/millrace/internal/tally"
)

type amount int

func (a amount) Plus(other amount) amount { return a + other }

// Whatever is added and taken, and put back when it could not be written: the sums are those of what was added. At most so many names are
// told apart, and one that is used in each turn keeps its place.
func TestSums(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		most := rapid.IntRange(1, 3).Draw(t, "most")
		counted := tally.Tally[amount]{Most: most}
		added, written := 0, 0
		for range rapid.IntRange(1, 20).Draw(t, "turns") {
			counted.Add("always", 1)
			added++
			for _, name := range rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c", "d"}), 0, 6).Draw(t, "names") {
				counted.Add(name, 1)
				added++
			}
			taken := counted.Take()
			assert.LessOrEqual(t, len(taken), most+1)
			assert.Positive(t, taken["always"])
			lost := rapid.Bool().Draw(t, "lost")
			for name, n := range taken {
				assert.NotZero(t, n, name)
				if lost {
					counted.Add(name, n)
				} else {
					written += int(n)
				}
			}
		}
		for _, n := range counted.Take() {
			written += int(n)
		}
		assert.Equal(t, added, written)
		assert.Empty(t, counted.Take())
	})
}

func TestAllNames(t *testing.T) {
	t.Parallel()
	var counted tally.Tally[amount]
	assert.Empty(t, counted.Take())
	var adding sync.WaitGroup
	for i := range 8 {
		adding.Go(func() {
			for n := range 1000 {
				counted.Add(fmt.Sprint(n%100, i%2), 1)
			}
		})
	}
	adding.Wait()
	taken := counted.Take()
	assert.Len(t, taken, 200)
	for name, n := range taken {
		assert.Equal(t, amount(40), n, name)
	}
}
