package effect

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
)

// life is an effect with its callers: any number of processes that begin, die, return late, or are stopped past their
// time, and somebody who settles doubts.
type life struct {
	r         *record
	o         options
	now       time.Time
	active    []caller
	happened  int       // effects, as the world sees them
	first     time.Time // when the last of them happened
	reported  int       // calls that came back and said so
	completed int       // outcomes that came later, and counted
	chance    *rand.Rand
}

type caller struct {
	token    uuid.UUID
	until    time.Time
	doubted  bool // an earlier call was in doubt
	happened bool
	pending  bool // the provider has it, and tells later
	over     bool // the provider has told what became of it
}

func (l *life) begin(t *testing.T) {
	token := uuid.New()
	what, next := begin(l.r, l.now, token, l.o, time.Second)
	if what == replay && l.r.State != done || what == stuck && !l.r.inDoubt(l.now) {
		t.Fatalf("verdict %d in state %s", what, l.r.State)
	}
	if what == call {
		doubted := l.r != nil && l.r.inDoubt(l.now)
		l.r, l.active = next, append(l.active, caller{token: token, until: next.Until, doubted: doubted})
	}
}

func (l *life) ends(i int) { l.active = append(l.active[:i:i], l.active[i+1:]...) }

func (l *life) finish(i int, state string) {
	l.record(i, state)
	l.ends(i)
}

func (l *life) record(i int, state string) {
	o := l.o
	o.doubted = l.active[i].doubted
	if next, _ := l.r.finish(l.active[i].token, state, l.now, nil, "", o); next != nil {
		l.r = next
	}
}

// takesEffect has the provider do what the call asks for, unless it has done that for another one and honours the key. Then it gets no
// call after its deadline: nobody keeps a promise against a process that is stopped for longer than keys live.
func (l *life) takesEffect(i int) {
	if l.o.idempotent && !l.now.Before(l.active[i].until) {
		return
	}
	l.active[i].happened = true
	if l.happened == 0 || !l.o.idempotent || l.now.Sub(l.first) >= l.o.honoured {
		l.happened, l.first = l.happened+1, l.now
	}
}

// complete has the provider tell what became of a call that is pending; it may tell it again, also when another call is under way.
func (l *life) complete(i int) {
	outcome := WasNotDone()
	if l.active[i].happened {
		outcome = WasDone(nil)
	}
	next, err := l.r.complete(outcome, l.now)
	if next != nil {
		l.r, l.completed = next, l.completed+1
	}
	l.active[i].over = true
	if errors.Is(err, ErrRunning) || l.chance.IntN(2) == 0 {
		return
	}
	l.ends(i)
}

// lives are many, the same at each run.
func lives(o options) func(yield func(*life) bool) {
	o.timeout, o.within = 30*time.Second, 20*time.Second
	return func(yield func(*life) bool) {
		for seed := range uint64(3000) {
			if !yield(&life{now: start, o: o, chance: rand.New(rand.NewPCG(seed, 0))}) {
				return
			}
		}
	}
}

// live lets a hundred things happen in any order; settle is how a doubt ends, and check what holds after each.
func (l *life) live(t *testing.T, settle, check func()) {
	for range 100 {
		i := -1
		if len(l.active) > 0 {
			i = l.chance.IntN(len(l.active))
		}
		switch what := [...]string{"begin", "wait", "settle", "take effect", "return", "vanish", "postpone"}[l.chance.IntN(7)]; {
		case what == "begin":
			l.begin(t)
		case what == "wait":
			l.now = l.now.Add([...]time.Duration{time.Second, 31 * time.Second}[l.chance.IntN(2)])
		case what == "settle":
			if l.r != nil && l.r.inDoubt(l.now) {
				settle()
			}
		case i < 0: // nobody calls
		case what == "take effect" && !l.active[i].happened && !l.active[i].over:
			l.takesEffect(i)
		case what == "return" && l.active[i].pending:
			l.complete(i)
		case l.active[i].pending: // which the provider does not forget
		case what == "postpone":
			l.record(i, pending)
			l.active[i].pending = true
		case what == "return" && l.active[i].happened:
			l.reported++
			l.finish(i, done)
		case what == "return":
			l.finish(i, notDone)
		case what == "vanish" && l.chance.IntN(2) == 0:
			l.finish(i, doubt)
		case what == "vanish":
			l.ends(i)
		}
		check()
	}
}

// Whatever happens in whatever order: while doubts are settled truthfully, there is one effect at most. Also where the provider honours
// keys for a while: a call that was not done once said nothing of the one before it, whose effect had happened, and once the key was
// forgotten another call repeated it.
func TestOneEffectWhenDoubtsAreSettledTruthfully(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]options{"no keys": {}, "keys": {idempotent: true, honoured: 100 * time.Second}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			repeated, completed := false, 0
			for l := range lives(o) {
				l.live(t, func() {
					if l.happened > 0 {
						l.r.settle(done, nil, "somebody", l.now)
					} else if len(l.active) == 0 { // nobody can say so before
						l.r.settle(notDone, nil, "somebody", l.now)
					}
				}, func() {
					completed += l.completed
					repeated = repeated || l.happened > 0 && l.r.Calls > 1
					if l.happened > 1 {
						t.Fatalf("%d effects", l.happened)
					}
				})
			}
			assert.True(t, repeated, "no call was repeated: the test cannot fail")
			assert.Positive(t, completed)
		})
	}
}

// When somebody settles doubts wrongly there may be more, and those that come to light are reported.
func TestConflictsAreReported(t *testing.T) {
	t.Parallel()
	most := 0
	for l := range lives(options{}) {
		l.live(t, func() { l.r.settle(notDone, nil, "somebody", l.now) }, func() {
			most = max(most, l.reported)
			if l.reported > 1 && l.r.Conflicts == 0 {
				t.Fatalf("%d calls succeeded, and no conflict is known", l.reported)
			}
		})
	}
	assert.Greater(t, most, 1, "nothing has happened twice: the test cannot fail")
}
