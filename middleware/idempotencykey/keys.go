// Package idempotencykey is net/http middleware for the Idempotency-Key header: however often a client repeats a request
// with one key, it is executed once, and each repetition gets the first one's answer. It follows the IETF's draft
// (draft-ietf-httpapi-idempotency-key-header) and Stripe's practice.
//
// The handler runs in a PostgreSQL transaction, which it finds with pgtx.From(r.Context()) and which pgtx.Run joins. Its
// writes, the events that it publishes with that context and the stored answer are committed together, and only then is
// the answer sent: a client that got none, for whatever reason, repeats the request and learns what became of it.
//
//	answer of the handler            its writes    the answer
//	2xx, 3xx                         committed     stored
//	4xx                              rolled back   stored, but for Config.NotStored: 401, 403 and 423
//	408, 425, 429, 5xx, panic        rolled back   not stored: the repeated request is executed
//
// Effects outside of that database, such as a call of a payment provider, are not covered: they happen again when the
// process dies behind them. Answers are kept for Config.Retention; a request that is repeated later is executed again. Key,
// method, path and answer are stored in the clear.
//
// What the middleware itself answers is application/problem+json (RFC 9457):
//
//	400  KeyMissing, KeyMalformed, BodyUnreadable
//	409  KeyInUse: the first request is still running; Retry-After tells when to ask again
//	413  BodyTooLarge
//	422  KeyReused: the key came with another request before
//	500  Failed: nothing was changed
//	503  Unavailable: nothing was changed; OutcomeUnknown: repeat the request with the same key to find out
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

// maxTimeout is less than the server's settings can hold, and than any retention.
const maxTimeout = 24 * time.Hour

// Shared is the Config.Scope of a service whose callers may see one another's answers, because they are one party: any of
// them that knows a key gets what is stored for it.
func Shared(*http.Request) (string, error) { return "shared", nil }

// Config configures Keys. All but Service and Scope has a default.
type Config struct {
	// Service is the name of the service: a key that a client sends to two services on one schema is two keys, of which
	// neither gets the other's answer. Renaming it forgets the stored answers. 1 to 100 letters, digits, ".", "_" and "-",
	// starting with a letter. Required.
	Service string

	// Scope tells callers apart: the same key of two callers is two keys, so that nobody gets another's answer. Return the
	// ID of the authenticated account; authentication belongs outside of the middleware. Only a hash of it is stored. An
	// error, and an empty scope, refuse the request with 500. Required; Shared is for services with one caller.
	Scope func(r *http.Request) (string, error)

	// Methods are those that the middleware works on; requests with others pass through. PUT and DELETE may be added.
	// Default: POST and PATCH.
	Methods []string

	// Optional lets requests without a key pass through, outside of any transaction of the middleware's. Default: they
	// are refused with 400.
	Optional bool

	// Retention is how long answers are kept at least. Whole days (UTC) are dropped, so some are kept a day longer. 24 h
	// or more. Default: 24 h.
	Retention time.Duration

	// Timeout bounds the handler's run with its transaction, including the wait for a connection of the pool. The
	// handler's context ends at the timeout, not when the client hangs up: the handler finishes, and a client that retries
	// gets its answer. 1 ms to 24 h. Default: 30 s.
	Timeout time.Duration

	// MaxBody and MaxResponse bound the bodies of requests and responses, which are held in memory. A larger request is
	// refused with 413; a larger response is rolled back and becomes a 500. 1 B to 256 MiB. Default: 1 MiB.
	MaxBody, MaxResponse int64

	// OmitHeaders are response headers that are sent and not stored, besides those of the connection and Set-Cookie. Default:
	// none.
	OmitHeaders []string

	// StoreCookies stores Set-Cookie, in the clear, and repeats it with the answer: for handlers whose clients cannot go on
	// without the cookie. Default: false; only the first answer has it.
	StoreCookies bool

	// NotStored are the statuses from 400 to 499 whose answers are not stored, so that a repeated request is executed: those
	// which speak of the moment, and not of the request. 408, 425 and 429 always are such. Default: 401, 403 and 423.
	NotStored []int

	// Fingerprint returns what else a request that is repeated with its key must have in common with the first one, beside
	// method, host (unless it is an address), path and query: say, the fields that matter of a body that a client makes anew each time. Default: content
	// type and body; of a multipart body the parts, because a repeated upload has a new boundary. The body is r's, which has been
	// read.
	Fingerprint func(r *http.Request, body []byte) []byte

	// Problem writes what the middleware itself answers; Retry-After is set before it is called. Default: p as
	// application/problem+json.
	Problem func(w http.ResponseWriter, r *http.Request, p Problem)

	// Schema holds the table. Default: "millrace".
	Schema string

	// Logger gets what ends in a 5xx of the middleware's own. Default: slog.Default().
	Logger *slog.Logger

	// MeterProvider makes the counter. Default: OpenTelemetry's global one.
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

// Validate reports everything that is wrong with the configuration. It expects one that has its defaults.
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

// Keys makes handlers idempotent by the key that the client sends. It is safe for concurrent use. Each running request
// holds one connection of the pool: a handler that takes a second one can starve others under load.
type Keys struct {
	pool     *pgxpool.Pool
	cfg      Config
	requests metric.Int64Counter

	server              clock
	claim, find, insert string // statements
}

// New returns Keys that store answers in the pool's database. The pool stays the caller's.
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
