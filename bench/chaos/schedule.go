package chaos

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// Every is how long after one fault the next begins, on average. They overlap.
const Every = 2700 * time.Millisecond

// fault is one line of the schedule.
type fault struct {
	At    time.Duration `json:"at"`
	Kind  string        `json:"kind"`
	Lasts time.Duration `json:"lasts"` // 0: it is over at once
	Pick  int           `json:"pick"`  // which of several it befalls
}

func (f fault) String() string {
	text := fmt.Sprintf("%8.1fs  %-20s #%d", f.At.Seconds(), f.Kind, f.Pick)
	if f.Lasts > 0 {
		text += fmt.Sprintf(" for %.1fs", f.Lasts.Seconds())
	}
	return text
}

// newSchedule deals the kinds, so that each comes about as often as the others, and at least once.
func newSchedule(seed int64, duration time.Duration, kinds []kind) (faults []fault) {
	random := rand.New(rand.NewPCG(uint64(seed), 0))
	n := max(len(kinds), int(duration/Every))
	step := duration / time.Duration(n)
	var deck []kind
	for i := range n {
		if len(deck) == 0 {
			deck = slices.Clone(kinds)
			random.Shuffle(len(deck), func(a, b int) { deck[a], deck[b] = deck[b], deck[a] })
		}
		k := deck[0]
		deck = deck[1:]
		f := fault{Kind: k.name, Pick: random.IntN(1000)}
		f.At = time.Duration(i)*step + time.Duration(random.Float64()*float64(step))
		f.Lasts = k.least + time.Duration(random.Float64()*float64(k.most-k.least))
		f.At, f.Lasts = f.At.Round(100*time.Millisecond), f.Lasts.Round(100*time.Millisecond)
		faults = append(faults, f)
	}
	return faults
}
