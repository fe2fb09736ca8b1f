package idempotencykey

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"net/http"
)

// request is what is known about a request before its handler runs.
type request struct {
	key         string
	summary     string // shown to operators
	scope       []byte // a hash
	id          [sha256.Size]byte
	fingerprint [sha256.Size]byte
	body        []byte
}

func newRequest(r *http.Request, cfg Config, scope, key string, body []byte) *request {
	return &request{
		key: key, summary: r.Method + " " + r.URL.EscapedPath(), body: body, scope: scopeHash(scope),
		id:          digest([]byte(cfg.Schema), []byte(cfg.Service), []byte(scope), []byte(key)),
		fingerprint: fingerprintOf(r, body, cfg.Fingerprint),
	}
}

var errBodyGone = errors.New("the request's body was read outside of the middleware, which cannot compare it with an earlier one: " +
	"put what reads it, such as Request.FormValue, inside")

// gone reports whether something has read the body before, so that it looks empty.
func gone(r *http.Request, body []byte) bool {
	return len(body) == 0 && (r.ContentLength > 0 || len(r.PostForm) > 0 || r.MultipartForm != nil)
}

// lock returns the number of the key's advisory lock. It has 64 bits, because 32-bit numbers collide among a few thousand keys.
func (q *request) lock() int64 { return int64(binary.BigEndian.Uint64(q.id[:8])) }

// of returns r for the handler: with the transaction's context and a body in memory.
func (q *request) of(ctx context.Context, r *http.Request) *http.Request {
	r = r.WithContext(ctx)
	r.Body, r.ContentLength, r.TransferEncoding = io.NopCloser(bytes.NewReader(q.body)), int64(len(q.body)), nil
	return r
}

// digest hashes the parts with their lengths, so different divisions into parts have different digests. It must be the same in
// every process and in every version.
func digest(parts ...[]byte) (sum [sha256.Size]byte) {
	h := sha256.New()
	for _, p := range parts {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(p))))
		h.Write(p)
	}
	h.Sum(sum[:0])
	return sum
}
