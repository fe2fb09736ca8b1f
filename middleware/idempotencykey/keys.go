// Package idempotencykey is net/http middleware for the Idempotency-Key header. Requests with the same key are executed once, and
// each repetition gets the answer to the first one. The package follows the IETF draft (draft-ietf-httpapi-idempotency-key-header)
// and Stripe's practice.
//
// The handler runs in a PostgreSQL transaction. pgtx.From(r.Context()) returns it, and pgtx.Run joins it. The handler's writes, the
// events that it publishes with that context and the stored answer commit together, and the answer is sent after the commit. A
// client that gets no answer repeats the request and learns the outcome.
//
//	answer of the handler            its writes    the answer
//	2xx, 3xx                         committed     stored
//	4xx                              rolled back   stored, except Config.NotStored: 401, 403 and 423
//	408, 425, 429, 5xx, panic        rolled back   not stored: the repeated request is executed
//
// Effects outside of that database, such as a call of a payment provider, are not covered: they are repeated if the process dies
// after them. Answers are kept for Config.Retention; a request that is repeated later is executed again. Key, method, path and
// answer are stored unencrypted.
//
// The middleware's own answers are application/problem+json (RFC 9457):
//
//	400  KeyMissing, KeyMalformed, BodyUnreadable
//	409  KeyInUse: the first request is still running; repeat it after Retry-After
//	413  BodyTooLarge
//	422  KeyReused: the key was used for another request before
//	500  Failed: nothing was changed
//	503  Unavailable: nothing was changed; OutcomeUnknown: repeat the request with the same key to learn the outcome
package idempotencykey

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"

	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/internal/service"
)

// maxTimeout is within the range of the server's settings, and no longer than any retention.
const maxTimeout = 24 * time.Hour

// Shared is the Config.Scope of a service whose callers are one party and may see each other's answers. A caller that knows a key
// gets the answer stored for it.
func Shared(*http.Request) (string, error) { return "shared", nil }

// Config configures Keys. Every field but Service and Scope has a default.
type Config struct {
	// Service is the name of the service. If a client sends a key to two services on one schema, these are two keys with separate
	// answers. After a renaming, the stored answers are not found. 1 to 100 letters, digits, ".", "_" and "-", starting with a
	// letter. Required.
	Service string

	// Scope returns the caller of a request. The same key of two callers is two keys, so no caller gets another's answer. Return
	// the ID of the authenticated account; authentication must run outside of the middleware. Only a hash of the scope is stored.
	// After an error or an empty scope, the request is refused with 500. Required; a service with one caller can use Shared.
	Scope func(r *http.Request) (string, error)

	// Methods are the methods that the middleware handles: POST, PATCH, PUT or DELETE. Other requests pass through. Default: POST
	// and PATCH.
	Methods []string

	// Optional lets requests without a key pass through, without a transaction of the middleware. Default: false, they are refused
	// with 400.
	Optional bool

	// Retention is the minimum time for which answers are kept. Whole UTC days are dropped, so some are kept up to a day longer.
	// Services on one schema share the days. The longest retention counts among those that have called Run. One that has stopped
	// counts for its own retention and a day. 24 h or more. Default: 24 h.
	Retention time.Duration

	// Timeout bounds the handler's run and its transaction, including the wait for a connection of the pool. The handler's context
	// ends at the timeout, but not when the client hangs up: the handler finishes, and the client gets the answer when it retries.
	// 1 ms to 24 h. Default: 30 s.
	Timeout time.Duration

	// MaxBody and MaxResponse bound the bodies of requests and responses, which are held in memory. A larger request is refused
	// with 413. A larger response is rolled back and becomes a 500. 1 B to 256 MiB. Default: 1 MiB.
	MaxBody, MaxResponse int64

	// OmitHeaders are response headers that are sent but not stored, in addition to the connection's headers and Set-Cookie.
	// Default: none.
	OmitHeaders []string

	// StoreCookies stores Set-Cookie, unencrypted, and sends it again with the stored answer. It is for clients that cannot
	// continue without the cookie. Default: false, only the first answer has it.
	StoreCookies bool

	// NotStored are the statuses from 400 to 499 whose answers are not stored, because they depend on the moment and not on the
	// request. A repeated request is executed. 408, 425 and 429 are never stored. Default: 401, 403 and 423.
	NotStored []int

	// Fingerprint returns what a repeated request must have in common with the first one, in addition to method, host (unless it is
	// an address), path and query. Use it for example if a client changes parts of the body at each repetition. body is r's body,
	// which has been read. Default: content type and body; of a multipart body the parts, because a repeated upload has a new
	// boundary.
	Fingerprint func(r *http.Request, body []byte) []byte

	// Problem writes the middleware's own answers. Retry-After is already set. Default: p as application/problem+json.
	Problem func(w http.ResponseWriter, r *http.Request, p Problem)

	// Schema is the schema of the table. Default: "millrace".
	Schema string

	// Logger logs requests that the middleware itself answers with 5xx. Default: slog.Default().
	Logger *slog.Logger

	// MeterProvider creates the counter. Default: OpenTelemetry's global one.
	MeterProvider metric.MeterProvider
}

// WithDefaults returns the configuration with every zero field set to its default.
func (c Config) WithDefaults() Config {
	if len(c.Methods) == 0 {
		c.Methods = []string{http.MethodPost, http.MethodPatch}
	}
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{{&c.Retention, 24 * time.Hour}, {&c.Timeout, 30 * time.Second}} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	for _, field := range []*int64{&c.MaxBody, &c.MaxResponse} {
		if *field == 0 {
			*field = 1 << 20
		}
	}
	if c.Problem == nil {
		c.Problem = writeProblem
	}
	if c.Schema == "" {
		c.Schema = pgschema.Default
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.MeterProvider == nil {
		c.MeterProvider = otel.GetMeterProvider()
	}
	if c.NotStored == nil {
		c.NotStored = []int{http.StatusUnauthorized, http.StatusForbidden, http.StatusLocked}
	}
	c.OmitHeaders = slices.Clone(c.OmitHeaders)
	for i, name := range c.OmitHeaders {
		c.OmitHeaders[i] = http.CanonicalHeaderKey(name)
	}
	return c
}

// Validate reports every error of the configuration. Call it after WithDefaults.
func (c Config) Validate() error {
	var errs []error
	refuse := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if err := service.Validate(c.Service); err != nil {
		refuse("Config.%w", err)
	}
	if c.Scope == nil {
		refuse("Config.Scope is nil: want a function that returns the authenticated account, or idempotencykey.Shared for a service with one caller")
	}
	for _, m := range c.Methods {
		switch m {
		case http.MethodPost, http.MethodPatch, http.MethodPut, http.MethodDelete:
		default:
			refuse("Config.Methods has %q: want POST, PATCH, PUT or DELETE; the others change nothing", m)
		}
	}
	for _, status := range c.NotStored {
		if status < 400 || status > 499 {
			refuse("Config.NotStored has %d: want statuses from 400 to 499", status)
		}
	}
	if c.Retention < minRetention {
		refuse("Config.Retention is %v: want %v or more, or 0 for the default", c.Retention, minRetention)
	}
	if c.Timeout < time.Millisecond || c.Timeout > maxTimeout {
		refuse("Config.Timeout is %v: want 1ms to %v, or 0 for the default", c.Timeout, maxTimeout)
	}
	const most = 256 << 20
	if c.MaxBody < 1 || c.MaxBody > most {
		refuse("Config.MaxBody is %d: want 1 to %d bytes, or 0 for the default", c.MaxBody, most)
	}
	if c.MaxResponse < 1 || c.MaxResponse > most {
		refuse("Config.MaxResponse is %d: want 1 to %d bytes, or 0 for the default", c.MaxResponse, most)
	}
	if _, err := pgschema.Validate(c.Schema); err != nil {
		refuse("Config.%w", err)
	}
	return errors.Join(errs...)
}

// Keys makes handlers idempotent by the client's key. It is safe for concurrent use. Each running request holds one connection of
// the pool. A handler that takes a second one can starve other requests under load.
type Keys struct {
	pool     *pgxpool.Pool
	cfg      Config
	requests metric.Int64Counter

	server              clock
	claim, find, insert string // statements
}

// New returns Keys that store answers in the pool's database. The caller still owns the pool.
func New(pool *pgxpool.Pool, cfg Config) (*Keys, error) {
	cfg = cfg.WithDefaults()
	err := cfg.Validate()
	if pool == nil {
		err = errors.Join(errors.New("pool is nil: want the *pgxpool.Pool of the service's database"), err)
	}
	if err != nil {
		return nil, fmt.Errorf("idempotency keys: %w", err)
	}
	requests, err := newCounter(cfg.MeterProvider)
	if err != nil {
		return nil, fmt.Errorf("idempotency keys: %w", err)
	}
	query := func(name string) string { return pgschema.Query(files, name, cfg.Schema) }
	return &Keys{pool: pool, cfg: cfg, requests: requests, claim: query("claim"), find: query("find"), insert: query("insert")}, nil
}
