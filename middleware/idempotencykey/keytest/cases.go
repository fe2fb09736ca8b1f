package keytest

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/google/uuid"
)

const (
	draft  = "draft-ietf-httpapi-idempotency-key-header-07, "
	stripe = "https://docs.stripe.com/api/idempotent_requests: "
)

type testCase struct {
	name, source string
	when         func(Server) bool // nil: always
	run          func(*probe) error
}

var cases = []testCase{
	{"first request is executed", draft + `section 2.6: "process the request normally and respond with an appropriate response and status code"`, nil, firstRequest},
	{"retry gets the first response", draft + `section 2.6: "respond with the result of the previously completed operation"; ` + stripe + `"saving the resulting status code and body"`, nil, retry},
	{"PATCH is executed once", draft + `section 1: "non-idempotent HTTP methods such as POST or PATCH"`, nil, patch},
	{"GET is left alone", stripe + `"Don't send idempotency keys in GET and DELETE requests because it has no effect"`, nil, get},
	{"new key is a new operation", draft + "section 2.2: a key is unique to a request", nil, newKey},
	{"every character of a key counts", draft + "section 2.1: the value is a String; " + stripe + `"up to 255 characters"`, nil, everyCharacter},
	{"missing key is refused", draft + "section 2.7: 400", func(s Server) bool { return !s.KeyOptional }, missingKey},
	{"missing key is no key", stripe + "a key is an additional element of a request", func(s Server) bool { return s.KeyOptional }, noKey},
	{"malformed key is refused", draft + "section 2.1: a String of RFC 8941, section 3.3.3; its section 4.2: parsing fails", func(s Server) bool { return s.Keys != Opaque }, malformedKey},
	{"two keys are refused", draft + `section 2.1: "MUST NOT include more than one"`, func(s Server) bool { return s.Keys != Opaque }, twoKeys},
	{"bare key is refused", draft + `section 2.1: "Its value MUST be a String"`, func(s Server) bool { return s.Keys == Quoted }, bareKeyRefused},
	{"bare key is the same key", "Server.Keys is QuotedOrBare", func(s Server) bool { return s.Keys == QuotedOrBare }, bareKeySame},
	{"other payload is refused", draft + "section 2.7: 422; " + stripe + `"compares incoming parameters to those of the original request and errors if they're not the same"`, nil, otherPayload},
	{"other endpoint is refused", "https://docs.stripe.com/api/errors: idempotency_error, a request that does not match the first request's API endpoint and parameters", nil, otherEndpoint},
	{"concurrent request is refused", draft + "sections 2.6 and 2.7: 409 while the original request is being processed", func(s Server) bool { return !s.Waits }, concurrent},
	{"concurrent request waits", "Server.Waits", func(s Server) bool { return s.Waits }, waits},
	{"crowd with one key", draft + "section 2.6: one request is the first, the others are concurrent", func(s Server) bool { return !s.Waits }, crowd},
	{"other key does not wait", draft + "section 2.2: a key is unique to a request", nil, otherKey},
	{"client error is replayed", draft + `section 2.6: "success or an error"; ` + stripe + `"regardless of whether it succeeds or fails"`, nil, clientError},
	{"server error is replayed", stripe + `"the same result, including 500 errors"`, func(s Server) bool { return !s.RetryErrors }, serverErrorReplayed},
	{"server error is executed again", "Server.RetryErrors", func(s Server) bool { return s.RetryErrors }, serverErrorAgain},
	// Only with a server in this process can the suite wait until the server has noticed the hang-up.
	{"client that hangs up gets the response", draft + `section 1: a client may "safely retry a request until it actually gets a valid response"`, func(s Server) bool { return s.Handler != nil }, hangUp},
	{"accounts do not share keys", draft + "section 5: a composite key of the client's key and attributes of the client", func(s Server) bool { return s.Authenticate != nil }, accounts},
	{"expired key is executed again", draft + "section 2.3; " + stripe + `"We generate a new request if a key is reused after the original is pruned"`, func(s Server) bool { return s.Expire != nil }, expired},
	{"refusals point to documentation", draft + "section 2.7: problem details with a link, or a Link header", nil, documented},
}

func firstRequest(p *probe) error {
	r, err := p.post(p.key())
	if err := p.accepted("the first request", r, err, http.StatusCreated, 1); err != nil {
		return err
	}
	if got := p.received[0]; got != "amount=7" {
		return fmt.Errorf("the operation received the body %q: want the one that was sent, %q", got, "amount=7")
	}
	return nil
}

func retry(p *probe) error {
	for i, status := range []int{http.StatusOK, http.StatusCreated, http.StatusAccepted, http.StatusNoContent, http.StatusSeeOther} {
		if err := p.replays(status, int64(i+1)); err != nil {
			return err
		}
	}
	return nil
}

// replays asserts that an operation with this status is executed once, as execution number run of the case.
func (p *probe) replays(status int, run int64) error {
	p.answer = func(w http.ResponseWriter, _ *http.Request, run int64) { respond(w, status, run) }
	key := p.key()
	first, err := p.post(key)
	if err := p.accepted("the first request", first, err, status, run); err != nil {
		return err
	}
	for range 2 {
		if err := p.repeated(key, first, run); err != nil {
			return err
		}
	}
	return nil
}

// repeated asserts that a repetition is not executed and gets the first response.
func (p *probe) repeated(key string, first reply, runs int64) error {
	r, err := p.post(key)
	if err != nil {
		return fmt.Errorf("the repeated request: %w", err)
	}
	if err := p.executed("a repeated request", runs); err != nil {
		return err
	}
	return same("the repeated request", first, r)
}

func patch(p *probe) error {
	c := call{method: http.MethodPatch, keys: []string{p.key()}, body: "amount=7"}
	first, err := p.send(p.ctx, c)
	if err := p.accepted("the first request", first, err, http.StatusCreated, 1); err != nil {
		return err
	}
	r, err := p.send(p.ctx, c)
	if err != nil {
		return fmt.Errorf("the repeated request: %w", err)
	}
	if err := p.executed("a repeated PATCH", 1); err != nil {
		return err
	}
	return same("the repeated PATCH", first, r)
}

func get(p *probe) error {
	key := p.key()
	for run := int64(1); run <= 2; run++ {
		r, err := p.send(p.ctx, call{method: http.MethodGet, keys: []string{key}})
		if err := p.accepted("a GET with a key", r, err, http.StatusCreated, run); err != nil {
			return err
		}
	}
	return nil
}

func newKey(p *probe) error {
	for run := int64(1); run <= 3; run++ {
		r, err := p.post(p.key())
		if err := p.accepted("a request with a new key", r, err, http.StatusCreated, run); err != nil {
			return err
		}
	}
	return nil
}

func everyCharacter(p *probe) error {
	start := strings.Repeat("k", 255-37) + uuid.NewString()
	for i, end := range []string{"a", "A", "b"} {
		key := p.written(start + end)
		r, err := p.post(key)
		if err := p.accepted("a key of 255 characters that differs in the last one", r, err, http.StatusCreated, int64(i+1)); err != nil {
			return err
		}
		if err := p.repeated(key, r, int64(i+1)); err != nil {
			return err
		}
	}
	return nil
}

func accounts(p *probe) error {
	key := p.key()
	alice, err := p.send(p.ctx, call{keys: []string{key}, body: "amount=7", account: "alice"})
	if err := p.accepted("the first account's request", alice, err, http.StatusCreated, 1); err != nil {
		return err
	}
	bob, err := p.send(p.ctx, call{keys: []string{key}, body: "amount=7", account: "bob"})
	if err := p.accepted("another account's request with the same key", bob, err, http.StatusCreated, 2); err != nil {
		return err
	}
	return p.repeated(key, alice, 2) // as alice
}

func expired(p *probe) error {
	key := p.key()
	r, err := p.post(key)
	if err := p.accepted("the first request", r, err, http.StatusCreated, 1); err != nil {
		return err
	}
	if err := p.repeated(key, r, 1); err != nil {
		return err
	}
	if err := p.server.Expire(); err != nil {
		return fmt.Errorf("Server.Expire: %w", err)
	}
	r, err = p.post(key)
	if err := p.accepted("the request after its key expired", r, err, http.StatusCreated, 2); err != nil {
		return err
	}
	return p.repeated(key, r, 2)
}
