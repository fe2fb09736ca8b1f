package stage

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/internal/role"
)

func TestMain(m *testing.M) {
	if role.Name() != "" {
		os.Exit(role.Play(func(context.Context, string, <-chan string) error { return errors.New("the address is in use") }))
	}
	devtest.Main(m)
}

func TestAPartThatEndsByItselfSaysWhy(t *testing.T) {
	t.Parallel()
	c := NewProcesses(t.Context(), io.Discard, func(string, int) any { return "" })
	defer c.Close()
	c.Start("consumer", 1)
	require.ErrorContains(t, c.Await(t.Context(), "a line", 1), "consumer: the process ended 20 times by itself, at last with: exit status 2: consumer: the address is in use")
}

// Names that differ in their last digits only were all chosen, or none, when the hash was FNV: a share of 5 % was none.
func TestChosenIsAShare(t *testing.T) {
	t.Parallel()
	for _, share := range []float64{0, 0.05, 0.3, 1} {
		n := 0
		for i := range 2000 {
			if name := fmt.Sprintf("otherpayment-%d", i); Chosen(name, share) {
				n++
				assert.True(t, Chosen(name, share), "the same each time")
			}
		}
		assert.InDelta(t, share*2000, n, 60, "share %v", share)
	}
}

// A service with keys, or one that makes something new of each request: the clients can tell.
func TestClientsTellWhatTheyWereAnswered(t *testing.T) {
	t.Parallel()
	for _, keys := range []bool{true, false} {
		t.Run(fmt.Sprintf("keys=%t", keys), func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			made, bodies := 0, map[string]string{}
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				mu.Lock()
				defer mu.Unlock()
				key := r.Header.Get("Idempotency-Key")
				if first, ok := bodies[key]; ok && keys && first != string(body) {
					w.WriteHeader(http.StatusUnprocessableEntity)
					return
				}
				bodies[key] = string(body)
				made++
				w.WriteHeader(http.StatusCreated)
				if keys {
					_ = json.NewEncoder(w).Encode(key)
				} else {
					_ = json.NewEncoder(w).Encode(made)
				}
			}))
			defer server.Close()
			c := NewClients([]string{strings.TrimPrefix(server.URL, "http://")}, "/", 200, 200*time.Millisecond, func(i int) (string, any, any) {
				return fmt.Sprint(i), i, -i - 1
			})
			require.NoError(t, c.Act(t.Context()))
			assert.Len(t, c.Answers, 200)
			assert.Equal(t, keys, c.Differing == 0)
			assert.Equal(t, keys, c.Accepted == 0)
			assert.Equal(t, keys, c.Refused > 0)
		})
	}
}

// A service that answers a key's reuse with what makes no sense: the client repeats it for ever, and the verdict was good.
func TestClientsTellWhoWaits(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if body, _ := io.ReadAll(r.Body); string(body) == `"other"` {
			w.WriteHeader(http.StatusTeapot)
			cancel()
			return
		}
		w.WriteHeader(http.StatusCreated)
	}))
	defer server.Close()
	c := NewClients([]string{strings.TrimPrefix(server.URL, "http://")}, "/", 200, 200*time.Millisecond, func(i int) (string, any, any) {
		return fmt.Sprint(i), "first", "other"
	})
	require.ErrorIs(t, c.Act(ctx), context.Canceled)
	assert.Positive(t, c.Waiting)
}

func TestUntrueAnswers(t *testing.T) {
	t.Parallel()
	c := Clients{Answers: map[string]string{"made": `{"id":"1"}`, "another's": `{"id":"1"}`, "nobody's": `{"id":"2"}`, "nothing": ``}}
	assert.Equal(t, 3, c.Untrue(map[string]string{"1": "made"}))
}

// A bad verdict, or Ctrl-C, hid that something could not be removed.
func TestExitStatus(t *testing.T) {
	t.Parallel()
	interrupted, interrupt := context.WithCancelCause(t.Context())
	signal := errors.New("interrupt")
	interrupt(signal)
	oops := errors.New("oops")
	for name, c := range map[string]struct {
		ctx  context.Context
		err  error
		code int
		says string
	}{
		"good":                     {code: OK},
		"help":                     {err: flag.ErrHelp, code: OK},
		"bad":                      {err: ErrVerdict, code: Verdict},
		"bad, and something left":  {err: errors.Join(ErrVerdict, Left(nil, oops)), code: Trouble, says: "may be left: "},
		"interrupted":              {ctx: interrupted, err: fmt.Errorf("look: %w", context.Canceled), code: Trouble, says: "everything that was started is gone"},
		"interrupted at the start": {ctx: interrupted, err: fmt.Errorf("start: %w", signal), code: Trouble, says: "everything that was started is gone"},
		"interrupted, and left":    {ctx: interrupted, err: errors.Join(context.Canceled, Left(oops)), code: Trouble, says: "may be left: "},
		"could not run":            {err: errors.Join(oops, Left(nil)), code: Trouble, says: "play: oops"},
	} {
		if c.ctx == nil {
			c.ctx = t.Context()
		}
		var stderr bytes.Buffer
		play := func(context.Context, []string, io.Writer, io.Writer) error { return c.err }
		assert.Equal(t, c.code, Command{Name: "play", Play: play}.Run(c.ctx, nil, io.Discard, &stderr), name)
		assert.Contains(t, stderr.String(), c.says, name)
	}
}

// A service that hangs is no trouble of the example's: what its clients lack is for the verdict. What Act or State cannot do is.
func TestWatchEnds(t *testing.T) {
	t.Parallel()
	oops := errors.New("oops")
	hang := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	for name, c := range map[string]struct {
		act   func(context.Context) error
		state error
		want  error
		says  string
	}{
		"clients wait":      {act: hang, says: "nothing has moved for 15s, and clients wait"},
		"something is lost": {says: "nothing has moved for 1m10s"},
		"clients fail":      {act: func(context.Context) error { return oops }, want: oops},
		"nobody can look":   {act: hang, state: oops, want: oops},
	} {
		synctest.Test(t, func(t *testing.T) {
			var out bytes.Buffer
			cast := NewGoroutines(t.Context(), nil)
			cast.stage = &Stage{Out: &out}
			err := cast.Watch(t.Context(), Watching{Act: c.act, State: func(context.Context) (string, bool, error) { return "1 of 2", false, c.state }})
			require.ErrorIs(t, err, c.want, name)
			assert.Contains(t, out.String(), c.says, name)
			cast.Close()
		})
	}
}

// A kill waits until it would hurt, but not for ever, and for nothing when nothing is left to be hurt.
func TestKillsWaitForTheirMoment(t *testing.T) {
	t.Parallel()
	hurts := false
	w := Watching{Moment: func() bool { return hurts }}
	assert.False(t, w.due(time.Second, true, false))
	assert.True(t, w.due(time.Second, false, true))
	assert.True(t, w.due(tarry+time.Second, false, false))
	hurts = true
	assert.True(t, w.due(time.Second, true, false))
	assert.False(t, w.due(time.Second, false, false), "nothing has moved")
	assert.False(t, w.due(-time.Second, true, true))
	assert.True(t, Watching{}.due(time.Second, true, false))
}

func TestLines(t *testing.T) {
	t.Parallel()
	var got []string
	l := lines{each: func(s string) { got = append(got, s) }}
	for _, part := range []string{"on", "e\ntwo\nth", "ree\n", "cut off"} {
		n, err := l.Write([]byte(part))
		require.NoError(t, err)
		assert.Equal(t, len(part), n)
	}
	assert.Equal(t, []string{"one", "two", "three"}, got)
}
