package history

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// told is a history in words: "client op value" for each operation, one after the other; "|" stands between concurrent ones, and
// "..." behind one that is open.
func told(text string) (ops []Operation) {
	for i, moment := range strings.Split(text, ";") {
		for _, one := range strings.Split(moment, "|") {
			one, open := strings.CutSuffix(strings.TrimSpace(one), "...")
			words := strings.Fields(one)
			op := Operation{Client: int(words[0][0] - '0'), Key: "k", Name: words[1], Call: int64(10 * i), Return: int64(10*i + 1)}
			op.Name = strings.ReplaceAll(op.Name, "-", " ")
			if len(words) > 2 {
				op.Value = words[2]
			}
			if open {
				op.Return = Open
			}
			ops = append(ops, op)
		}
	}
	return ops
}

func allowed[S comparable](model Model[S]) func(string) bool {
	return func(text string) bool {
		wrong, undecided := Unordered(told(text), model)
		return len(wrong)+len(undecided) == 0
	}
}

// What each model allows, and what it finds.
func TestModels(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		allows       func(string) bool
		right, wrong []string
	}{
		"claim": {allowed(Claim), []string{
			"1 enter; 1 commit; 2 completed; 2 read 1",
			"1 enter; 1 rollback; 2 enter; 2 commit",
			"1 enter; 1 lost ... | 1 unknown ...; 2 read 0; 2 enter; 2 commit; 1 read 1",
			"1 enter; 1 lost ... | 1 unknown ...; 2 read 0; 2 read 1; 2 completed",
			"1 enter; 2 contended; 2 never ...; 1 commit | 2 completed",
		}, []string{
			"1 enter; 2 enter; 1 commit; 2 rollback",     // two at once
			"1 enter; 1 commit; 2 enter",                 // twice
			"1 enter; 1 rollback; 2 completed",           // lost
			"1 enter; 1 commit; 2 read 0",                // committed, and not seen
			"1 enter; 1 rollback; 2 read 1",              // rolled back, and seen
			"1 enter; 1 unknown ...; 2 read 1; 2 read 0", // seen, and gone
			"1 enter; 1 commit; 2 read 2",                // doubled
		}},
		"request": {allowed(Request), []string{
			"1 executed a/1; 2 replayed a/1; 2 reused b/; 1 read /1",
			"1 nothing; 2 running; 1 executed a/2; 1 read /2",
			"1 unknown a/1 ...; 2 read /; 2 replayed a/1",
			"1 unknown a/1 ...; 2 executed a/2; 2 read /2",
		}, []string{
			"1 executed a/1; 2 executed a/2",
			"1 executed a/1; 2 replayed a/2",
			"1 executed a/1; 2 replayed b/1",
			"1 reused b/; 1 executed a/1",
			"1 executed a/1; 2 read /",
			"1 nothing; 2 replayed a/1",
			"1 unknown a/1 ...; 2 executed a/2; 2 read /1",
		}},
		"lease": {allowed(Lease), []string{
			"1 take a; 1 take b; 1 expire a; 1 expire b; 2 take c",
			"1 take a; 1 release; 2 take b; 1 expire a; 2 take c",
			"1 take a; 2 take b | 1 expire a",
		}, []string{
			"1 take a; 2 take b; 1 expire a",
			"1 take a; 1 take b; 1 expire a; 2 take c; 1 expire b",
			"1 take a; 1 release; 2 take b; 1 take c; 2 expire b",
		}},
		"effect": {allowed(Effect), []string{
			"1 call a; 2 running; 1 done a; 2 response a",
			"1 call a; 1 not-done a; 2 call b; 2 done b; 1 response b",
			"1 call a; 1 unknown a ...; 2 running; 2 in-doubt",
			"1 call a; 1 unknown a ...; 2 response a",
			"1 never a ... | 1 withdrawn a ...; 2 running; 2 call b; 2 done b",
		}, []string{
			"1 call a; 2 call b; 1 done a",
			"1 call a; 1 done a; 2 call b",
			"1 call a; 1 doubt a; 2 call b",
			"1 call a; 1 done a; 2 in-doubt",
			"1 call a; 1 done a; 2 response b",
			"1 never a ...; 2 running; 2 call b",
			"1 call a; 1 unknown a ...; 2 call b",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, text := range c.right {
				assert.True(t, c.allows(text), text)
			}
			for _, text := range c.wrong {
				assert.False(t, c.allows(text), text)
			}
		})
	}
}

// failing keeps what a test says that fails.
type failing struct {
	testing.TB
	said []any
}

func (*failing) Helper()                        {}
func (f *failing) Errorf(_ string, args ...any) { f.said = args }

func TestHistoryIsKept(t *testing.T) {
	t.Parallel()
	h := New()
	first := h.Call(1, "k")
	second := h.Call(2, "k")
	second.Lose("never", "")
	first.Return("enter", "")
	h.Call(1, "k").Since(first).Return("commit", "")
	f := &failing{TB: t}
	Check(f, h, Claim)
	require.Empty(t, f.said)

	h.Call(3, "k").Return("enter", "")
	Check(f, h, Claim)
	require.Len(t, f.said, 6)
	path := f.said[4].(string)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.RemoveAll(filepath.Dir(path)))
	var kept []Operation
	require.NoError(t, json.Unmarshal(text, &kept))
	assert.Equal(t, h.Operations(), kept)
	assert.Equal(t, 2, h.Count("enter"))
}
