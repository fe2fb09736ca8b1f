package console_test

import (
	"bufio"
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/console"
	"github.com/millrace-go/millrace/console/internal/figures"
)

// 50 open pages cost the database no more statements than one: the figures are read once in figures.Fresh at most, however many ask.
func TestOpenPagesShareTheirStatements(t *testing.T) {
	t.Parallel()
	const figuresBegin = "select now()"
	var mu sync.Mutex
	var statements []string
	s := open(t, console.Look, func(c *console.Config) {
		c.Authorize = func(*http.Request) (console.Rights, string) { return console.Look, "" } // nobody's streams are limited
		cfg := c.Databases[0].Pool.Config()
		cfg.ConnConfig.Tracer = queryTracer(func(ctx context.Context, sql string) context.Context {
			mu.Lock()
			defer mu.Unlock()
			statements = append(statements, sql)
			return ctx
		})
		pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
		require.NoError(t, err)
		t.Cleanup(pool.Close)
		c.Databases[0].Pool = pool
	})
	asked := func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(statements)
	}
	looking, leave := context.WithCancel(t.Context())
	var streams sync.WaitGroup
	var told sync.Map // the last version that each stream has told
	stream := func(i int) {
		streams.Go(func() {
			r, err := http.NewRequestWithContext(looking, http.MethodGet, s.server.URL+s.base+"/live", nil)
			if !assert.NoError(t, err) {
				return
			}
			answer, err := http.DefaultTransport.RoundTrip(r)
			if !assert.NoError(t, err) {
				return
			}
			defer answer.Body.Close()
			for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
				if version, found := strings.CutPrefix(lines.Text(), "data: "); found {
					told.Store(i, version)
				}
			}
		})
	}
	// all waits until so many streams have told the same version, which is not the one before.
	all := func(streams int, before any) (version any) {
		require.Eventually(t, func() bool {
			n := 0
			told.Range(func(_, v any) bool {
				if n++; n == 1 {
					version = v
				}
				return version == v
			})
			return n == streams && version != before
		}, wait, pause)
		return version
	}

	began := time.Now()
	stream(0)
	all(1, nil)
	require.Eventually(t, func() bool { return strings.Count(strings.Join(asked(), "\n"), figuresBegin) > 1 }, wait, pause)
	once := 1 + slices.Index(asked()[1:], figuresBegin) // the first time costs the most
	require.Equal(t, figuresBegin, asked()[0])
	for i := range 49 {
		stream(1 + i)
	}
	version := all(50, nil)
	for _, event := range []string{"p1", "p2", "p3"} {
		s.pending("order.placed", event)
		version = all(50, version)
	}
	cost, most := len(asked()), once*(int(time.Since(began)/figures.Fresh)+1)
	leave()
	streams.Wait()
	assert.LessOrEqual(t, cost, most, "the first reading of the figures cost %d", once)
	assert.Greater(t, cost, 3*once/2, "they were read again")
}
