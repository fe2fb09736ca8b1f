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

// Types of problems. They are URLs of this documentation.
const (
	KeyMissing     = base + "KeyMissing"     // send the header, with a new unique value for each operation
	KeyMalformed   = base + "KeyMalformed"   // send 1 to 255 printable ASCII characters in one header line
	KeyInUse       = base + "KeyInUse"       // the first request is still running: repeat the request after Retry-After
	KeyReused      = base + "KeyReused"      // the key was used for another request: use a new key
	BodyTooLarge   = base + "BodyTooLarge"   // the body is larger than Config.MaxBody
	BodyUnreadable = base + "BodyUnreadable" // the body did not arrive completely
	Failed         = base + "Failed"         // nothing was changed; the service's log has the reason
	Unavailable    = base + "Unavailable"    // nothing was changed: repeat the request with the same key
	OutcomeUnknown = base + "OutcomeUnknown" // repeat the request with the same key, which is safe, to learn the outcome
)

// Problem is an error in the form of RFC 9457.
type Problem struct {
	Type   string `json:"type"` // KeyMissing or another type
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"` // what the client should do

	// RetryAfter is when to repeat the request with the same key. 0: do not repeat it unchanged.
	RetryAfter time.Duration `json:"-"`
}

func writeProblem(w http.ResponseWriter, _ *http.Request, p Problem) {
	body, _ := json.Marshal(p) // it holds only strings and numbers
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Del("Content-Length") // it may be set for another body
	w.WriteHeader(p.Status)
	_, _ = w.Write(body) // the client may be gone
}

// askAgain is the Retry-After if the first request is running or the database cannot be reached.
const askAgain = time.Second

var problems = map[string]Problem{
	KeyMissing: {
		Title: "Idempotency-Key is missing", Status: http.StatusBadRequest,
		Detail: "Send an Idempotency-Key header: a new unique value, such as a UUID, for each operation, and the same value when you repeat a request.",
	},
	KeyMalformed: {Title: "Idempotency-Key is malformed", Status: http.StatusBadRequest}, // the detail names the error
	KeyInUse: {
		Title: "A request with this Idempotency-Key is running", Status: http.StatusConflict, RetryAfter: askAgain,
		Detail: "Repeat the request with the same key after Retry-After: it gets the first one's answer.",
	},
	KeyReused: {
		Title: "Idempotency-Key was used for another request", Status: http.StatusUnprocessableEntity,
		Detail: "This key came with another method, host, path, query, content type or body before. Use a new key for a new operation, and repeat a request unchanged.",
	},
	BodyTooLarge: {Title: "The request body is too large", Status: http.StatusRequestEntityTooLarge}, // the detail names the limit
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

// refuse answers with a problem. The detail "" means the default.
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

// verdict returns the problem type for an execution's error, and the outcome for the counter.
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

// misuse is an error that every repetition of the request would get.
type misuse struct{ error }

func (m misuse) Unwrap() error { return m.error }

// temporary reports whether the same request may succeed later, as after a timeout or while the database is not available.
func temporary(err error) bool {
	var (
		wrong misuse
		pgErr *pgconn.PgError
	)
	switch {
	case errors.As(err, &wrong), errors.Is(err, pgx.ErrTxCommitRollback), errors.Is(err, pgtx.ErrManaged):
		return false
	case errors.As(err, &pgErr) && len(pgErr.Code) == 5: // a pooler's error may have no code
		switch pgErr.Code[:2] {
		case "08", "25", "40", "53", "55", "57": // connection, ended while idle, conflict, resources, locks, operator
			return true
		}
		return false
	}
	return true // an error of the connection or of the context
}
