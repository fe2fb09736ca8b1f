package effect_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/effect"
)

func TestMain(m *testing.M) {
	if os.Getenv(childSchema) != "" {
		if err := child(); err != nil {
			fmt.Fprintln(os.Stderr, "child:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	devtest.Main(m)
}

// fixture is a ledger in a schema of its own.
type fixture struct {
	t      testing.TB
	pool   *pgxpool.Pool
	schema string
	ledger *effect.Ledger
}

func newFixture(t testing.TB) *fixture {
	f := &fixture{t: t, pool: devtest.Pool(t), schema: devtest.Schema(t)}
	require.NoError(t, effect.Migrate(t.Context(), f.pool, f.schema))
	f.ledger = f.open(f.pool, effect.Config{})
	return f
}

// quick are times that a test need not wait for.
var quick = effect.Config{CallTimeout: time.Minute, Settle: time.Millisecond, RetryAfter: 50 * time.Millisecond}

func (f *fixture) open(pool *pgxpool.Pool, cfg effect.Config) *effect.Ledger {
	for field, value := range map[*time.Duration]time.Duration{
		&cfg.CallTimeout: quick.CallTimeout, &cfg.Settle: quick.Settle, &cfg.RetryAfter: quick.RetryAfter,
	} {
		if *field == 0 {
			*field = value
		}
	}
	cfg.Schema, cfg.Logger = f.schema, slog.New(slog.DiscardHandler)
	if cfg.Service == "" {
		cfg.Service = "labour"
	}
	l, err := effect.New(pool, cfg)
	require.NoError(f.t, err)
	f.t.Cleanup(l.Close)
	return l
}

func (f *fixture) exec(sql string, args ...any) {
	_, err := f.pool.Exec(context.Background(), sql, args...)
	require.NoError(f.t, err)
}

func (f *fixture) ctx() context.Context { return effect.With(f.t.Context(), f.ledger) }

// entries returns the ledger's rows in that state.
func (f *fixture) entries(state string) []effect.Entry {
	found, err := effect.List(context.Background(), f.pool, f.schema, effect.Listing{State: state})
	require.NoError(f.t, err)
	return found
}

// retryAfter is what the claim asks an error for.
func retryAfter(err error) (time.Duration, bool) {
	var waits interface{ RetryAfter() time.Duration }
	if !errors.As(err, &waits) {
		return 0, false
	}
	return waits.RetryAfter(), true
}

// provider sends text messages.
type provider struct {
	*httptest.Server
	honours bool        // a repeated idempotency key sends nothing
	arrived chan string // the idempotency key of each call of /hold, which does not answer
	mu      sync.Mutex
	sent    []string          // the key of each text message
	numbers map[string]string // the message's number by key
}

func newProvider(t testing.TB, honours bool) *provider {
	p := &provider{honours: honours, arrived: make(chan string, 100), numbers: map[string]string{}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /sms", func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		defer p.mu.Unlock()
		key := r.Header.Get("Idempotency-Key")
		if p.numbers[key] == "" || !p.honours {
			p.sent = append(p.sent, key)
			p.numbers[key] = fmt.Sprintf("SM%d", len(p.sent))
		}
		fmt.Fprint(w, p.numbers[key])
	})
	mux.HandleFunc("GET /sms", func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		defer p.mu.Unlock()
		fmt.Fprint(w, p.numbers[r.Header.Get("Idempotency-Key")])
	})
	mux.HandleFunc("GET /hold", func(_ http.ResponseWriter, r *http.Request) {
		p.arrived <- r.Header.Get("Idempotency-Key")
		<-r.Context().Done()
	})
	p.Server = httptest.NewServer(mux)
	t.Cleanup(p.Close)
	return p
}

func (p *provider) texts() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.sent)
}

// client is the provider as a service sees it.
type client struct{ url string }

func (c client) do(ctx context.Context, method, path, key string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, method, c.url+path, nil)
	if err != nil {
		return "", err
	}
	r.Header.Set("Idempotency-Key", key)
	r.Close = true
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	return string(body), err
}

// send returns the number of the text message.
func (c client) send(ctx context.Context, key string) (string, error) {
	return c.do(ctx, http.MethodPost, "/sms", key)
}

// reconcile asks the provider for it.
func (c client) reconcile(ctx context.Context, i effect.Intent) (effect.Outcome, error) {
	number, err := c.do(ctx, http.MethodGet, "/sms", i.IdempotencyKey)
	switch {
	case err != nil:
		return effect.Unknown(), err
	case number == "":
		return effect.WasNotDone(), nil
	}
	return effect.WasDone(number), nil
}
