package keytest

import (
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"strings"

	"github.com/google/uuid"
)

func missingKey(p *probe) error {
	for _, keys := range [][]string{nil, {""}} {
		r, err := p.send(p.ctx, call{keys: keys, body: "amount=7"})
		if err := p.refused("a request without a key", r, err, http.StatusBadRequest, 0); err != nil {
			return err
		}
	}
	return nil
}

func noKey(p *probe) error {
	for run := int64(1); run <= 2; run++ {
		r, err := p.send(p.ctx, call{body: "amount=7"})
		if err := p.accepted("a request without a key", r, err, http.StatusCreated, run); err != nil {
			return err
		}
	}
	return nil
}

func malformedKey(p *probe) error {
	id := uuid.NewString()
	for _, value := range []string{
		`"` + id, `"` + id + `\"`, `"` + id + `\x"`, `"` + id + `"b"`, `"` + id + `" "b"`, "\"" + id + "\u00fc\"", "\"" + id + "\t\"",
	} {
		r, err := p.send(p.ctx, call{keys: []string{value}, body: "amount=7"})
		if err := p.refused(fmt.Sprintf("the key %q, which is no String,", value), r, err, http.StatusBadRequest, 0); err != nil {
			return err
		}
	}
	// A String may contain escaped characters: these two keys differ in one.
	for i, value := range []string{`"` + id + ` \""`, `"` + id + ` \\"`} {
		r, err := p.post(value)
		if err := p.accepted(fmt.Sprintf("the key %q", value), r, err, http.StatusCreated, int64(i+1)); err != nil {
			return err
		}
		if err := p.repeated(value, r, int64(i+1)); err != nil {
			return err
		}
	}
	return nil
}

func twoKeys(p *probe) error {
	first, second := p.key(), p.key()
	for _, keys := range [][]string{{first, second}, {first + ", " + second}} {
		r, err := p.send(p.ctx, call{keys: keys, body: "amount=7"})
		if err := p.refused("a request with two keys", r, err, http.StatusBadRequest, 0); err != nil {
			return err
		}
	}
	return nil
}

func bareKeyRefused(p *probe) error {
	r, err := p.post(uuid.NewString())
	return p.refused("a key without quotes", r, err, http.StatusBadRequest, 0)
}

func bareKeySame(p *probe) error {
	key := uuid.NewString()
	r, err := p.post(key)
	if err := p.accepted("a key without quotes", r, err, http.StatusCreated, 1); err != nil {
		return err
	}
	return p.repeated(`"`+key+`"`, r, 1)
}

func otherPayload(p *probe) error {
	key := p.key()
	first, err := p.post(key)
	if err := p.accepted("the first request", first, err, http.StatusCreated, 1); err != nil {
		return err
	}
	for _, body := range []string{"amount=8", "amount=7&to=bob", ""} {
		r, err := p.send(p.ctx, call{keys: []string{key}, body: body})
		if err := p.refused(fmt.Sprintf("the key of another request, with the body %q,", body), r, err, p.server.reuseStatus(), 1); err != nil {
			return err
		}
	}
	return p.repeated(key, first, 1)
}

func otherEndpoint(p *probe) error {
	key := p.key()
	first, err := p.post(key)
	if err := p.accepted("the first request", first, err, http.StatusCreated, 1); err != nil {
		return err
	}
	r, err := p.send(p.ctx, call{keys: []string{key}, body: "amount=7", suffix: "/refunds"})
	if err := p.refused("the key of a request to another path", r, err, p.server.reuseStatus(), 1); err != nil {
		return err
	}
	return p.repeated(key, first, 1)
}

func clientError(p *probe) error {
	for i, status := range []int{http.StatusPaymentRequired, http.StatusNotFound, http.StatusUnprocessableEntity} {
		if err := p.replays(status, int64(i+1)); err != nil {
			return err
		}
	}
	return nil
}

func serverErrorReplayed(p *probe) error { return p.replays(http.StatusInternalServerError, 1) }

func serverErrorAgain(p *probe) error {
	p.answer = func(w http.ResponseWriter, _ *http.Request, run int64) {
		status := http.StatusCreated
		if run == 1 {
			status = http.StatusInternalServerError
		}
		respond(w, status, run)
	}
	key := p.key()
	r, err := p.post(key)
	if err := p.accepted("the first request", r, err, http.StatusInternalServerError, 1); err != nil {
		return err
	}
	r, err = p.post(key)
	if err := p.accepted("the request that is repeated after a 500", r, err, http.StatusCreated, 2); err != nil {
		return err
	}
	return p.repeated(key, r, 2)
}

// documented checks each refusal of the server.
func documented(p *probe) error {
	var errs []error
	look := func(what string, r reply, err error) {
		if err == nil {
			err = r.documentation()
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("the refusal of %s: %w", what, err))
		}
	}
	key := p.key()
	ended, release, err := p.hold(p.ctx, key)
	defer release()
	if err != nil {
		return err
	}
	if !p.server.Waits {
		select {
		case s := <-p.postAside(p.ctx, key):
			look("a key in use", s.reply, s.err)
		case <-p.began:
			return p.executed("a request whose key is in use", 1)
		}
	}
	release()
	<-ended
	r, err := p.send(p.ctx, call{keys: []string{key}, body: "amount=8"})
	look("another payload", r, err)
	if !p.server.KeyOptional {
		r, err = p.send(p.ctx, call{body: "amount=7"})
		look("a missing key", r, err)
	}
	return errors.Join(errs...)
}

// documentation asserts that the response is problem details whose type is an absolute URL, or has a Link header.
func (r reply) documentation() error {
	if strings.Contains(r.header.Get("Link"), "describedby") {
		return nil
	}
	if media, _, _ := mime.ParseMediaType(r.header.Get("Content-Type")); media != "application/problem+json" {
		return fmt.Errorf("%v has the type %q: want application/problem+json, or a Link header with rel=\"describedby\"", r, r.header.Get("Content-Type"))
	}
	var problem struct{ Type, Title string }
	if err := json.Unmarshal([]byte(r.body), &problem); err != nil {
		return fmt.Errorf("%v: %w", r, err)
	}
	if u, err := url.Parse(problem.Type); err != nil || !u.IsAbs() || problem.Title == "" {
		return fmt.Errorf("%v has the type %q and the title %q: want an absolute URL, and a title", r, problem.Type, problem.Title)
	}
	return nil
}
