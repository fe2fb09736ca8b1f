package idempotencykey

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/millrace-go/millrace/pgtx"
)

const base = "https://pkg.go.dev/github.com/millrace-go/millrace/middleware/idempotencykey#"

// Types of problems. They are addresses of this documentation.
const (
	KeyMissing     = base + "KeyMissing"     // send the header, with a new unique value for each operation
	KeyMalformed   = base + "KeyMalformed"   // send 1 to 255 printable ASCII characters in one header line
	KeyInUse       = base + "KeyInUse"       // the first request is still running: ask again after Retry-After
	KeyReused      = base + "KeyReused"      // another request was sent with the key: use a new one
	BodyTooLarge   = base + "BodyTooLarge"   // Config.MaxBody
	BodyUnreadable = base + "BodyUnreadable" // the body did not arrive as a whole
	Failed         = base + "Failed"         // nothing was changed, and the service's log says why
	Unavailable    = base + "Unavailable"    // nothing was changed: repeat the request, with the same key
	OutcomeUnknown = base + "OutcomeUnknown" // repeat the request with the same key, to find out and without risk
)

// Problem is an error as RFC 9457 describes it.
type Problem struct {
	Type   string `json:"type"` // KeyMissing and so on
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"` // what the client should do

	// RetryAfter is when to repeat the request, with the same key; 0: not as it is.
	RetryAfter time.Duration `json:"-"`
}

func writeProblem(w http.ResponseWriter, _ *http.Request, p Problem) {
	body, _ := json.Marshal(p) // it holds only strings and numbers
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Del("Content-Length") // that of another body
	w.WriteHeader(p.Status)
	_, _ = w.Write(body) // the client may have gone
}

// askAgain is when a client should repeat a request that found the first one running, or the database out of reach.
const askAgain = time.Second

var problems = map[string]Problem{
	KeyMissing: {
		Title: "Idempotency-Key is missing", Status: http.StatusBadRequest,
		Detail: "Send an Idempotency-Key header: a new unique value, such as a UUID, for each operation, and the same value when you repeat a request.",
	},
	KeyMalformed: {Title: "Idempotency-Key is malformed", Status: http.StatusBadRequest}, // the detail says how
	KeyInUse: {
		Title: "A request with this Idempotency-Key is running", Status: http.StatusConflict, RetryAfter: askAgain,
		Detail: "Repeat the request with the same key after Retry-After: it gets the first one's answer.",
	},
	KeyReused: {
		Title: "Idempotency-Key was used for another request", Status: http.StatusUnprocessableEntity,
		Detail: "This key came with another method, host, path, query, content type or body before. Use a new key for a new operation, and repeat a request unchanged.",
	},
	BodyTooLarge: {Title: "The request body is too large", Status: http.StatusRequestEntityTooLarge}, // the detail says how much
	BodyUnreadable: {
		Title: "The request body could not be read", Status: http.StatusBadRequest,
		Detail: "It did not arrive as a whole, and nothing was changed. Repeat the request with the same key.",
	},
	Failed: {
		Title: "The request failed", Status: http.StatusInternalServerError,
		Detail: "Nothing was changed. The service's log says why.",
	},
	Unavailable: {
		Title: "The service is unavailable", Status: http.StatusServiceUnavailable, RetryAfter: askAgain,
		Detail: "Nothing was changed. Repeat the request with the same key after Retry-After.",
	},
	OutcomeUnknown: {
		Title: "The outcome is unknown", Status: http.StatusServiceUnavailable, RetryAfter: askAgain,
		Detail: "The request may or may not have taken effect. Repeat it with the same key after Retry-After: it is executed if it was not before, and gets the stored answer otherwise.",
	},
}

// refuse answers with a problem; detail "" means the usual one.
func (k *Keys) refuse(w http.ResponseWriter, r *http.Request, kind, detail string) {
	p := problems[kind]
	p.Type = kind
	if detail != "" {
		p.Detail = detail
	}
	if p.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(p.RetryAfter.Seconds())))
	}
	k.cfg.Problem(w, r, p)
}

// verdict is what an execution's error means for the client, and for the counter.
func verdict(err error) (kind, outcome string) {
	switch {
	case errors.Is(err, errRunning):
		return KeyInUse, running
	case errors.Is(err, errReused):
		return KeyReused, reused
	case errors.Is(err, pgtx.ErrOutcomeUnknown):
		return OutcomeUnknown, unknown
	case temporary(err):
		return Unavailable, failed
	}
	return Failed, failed
}

// misuse is an error that the same request would meet again.
type misuse struct{ error }

func (m misuse) Unwrap() error { return m.error }

// temporary reports whether the same request may succeed later: the time was up, or the database was not there for it.
func temporary(err error) bool {
	var (
		wrong misuse
		pgErr *pgconn.PgError
	)
	switch {
	case errors.As(err, &wrong), errors.Is(err, pgx.ErrTxCommitRollback), errors.Is(err, pgtx.ErrManaged):
		return false
	case errors.As(err, &pgErr) && len(pgErr.Code) == 5: // a pooler's own may have none
		switch pgErr.Code[:2] {
		case "08", "25", "40", "53", "55", "57": // connection, ended while idle, conflict, resources, locks, operator
			return true
		}
		return false
	}
	return true // of the connection, or the context's
}
