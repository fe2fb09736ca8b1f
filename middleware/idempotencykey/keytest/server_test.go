package keytest

import (
	"bytes"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
)

// memory is a server that fulfils the draft, and a table of faults that it may have.
type memory struct {
	claims Server
	faults map[string]bool

	mu   sync.Mutex
	seen map[string]*entry
}

type entry struct {
	request string // fingerprint
	done    chan struct{}
	reply   reply // once done is closed
}

func newMemory(claims Server, faults ...string) *memory {
	m := &memory{claims: claims, faults: map[string]bool{}, seen: map[string]*entry{}}
	for _, f := range faults {
		m.faults[f] = true
	}
	return m
}

// expire forgets everything.
func (m *memory) expire() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.faults["never forgets"] {
		clear(m.seen)
	}
	return nil
}

func refuse(w http.ResponseWriter, status int) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, `{"type": "https://example.com/idempotency", "title": "The request is refused"}`)
}

// keyOf reads the header; false means that it is malformed.
func (m *memory) keyOf(r *http.Request) (string, bool) {
	values := r.Header.Values("Idempotency-Key")
	value := values[0]
	if m.claims.Keys == Opaque || m.faults["any key"] {
		return value, true
	}
	inner := strings.TrimSuffix(strings.TrimPrefix(value, `"`), `"`)
	bare := !strings.HasPrefix(value, `"`)
	if len(values) > 1 || bare && m.claims.Keys == Quoted {
		return "", false
	}
	unescaped := strings.NewReplacer(`\\`, "", `\"`, "").Replace(inner)
	if strings.ContainsAny(unescaped, "\"\\\t\u00fc") || !bare && (len(value) < 2 || value != `"`+inner+`"` || strings.Contains(unescaped, `" `)) {
		return "", false
	}
	return inner, true
}

func (m *memory) around(operation http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		missing := r.Header.Get("Idempotency-Key") == ""
		switch {
		case r.Method == http.MethodGet, missing && (m.claims.KeyOptional || m.faults["keys may be missing"]):
			operation.ServeHTTP(w, r)
			return
		case missing:
			refuse(w, http.StatusBadRequest)
			return
		}
		key, ok := m.keyOf(r)
		if !ok {
			refuse(w, http.StatusBadRequest)
			return
		}
		m.once(w, r, key, operation)
	})
}

func (m *memory) once(w http.ResponseWriter, r *http.Request, key string, operation http.Handler) {
	if m.faults["keys of all accounts"] {
		r.Header.Del("Account")
	}
	if m.faults["short keys"] && len(key) > 64 {
		key = key[:64]
	}
	id := r.Header.Get("Account") + " " + key
	body, _ := io.ReadAll(r.Body)
	if !m.faults["body is lost"] {
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	fingerprint := r.URL.Path
	if !m.faults["payload is not compared"] {
		fingerprint += " " + string(body)
	}

	m.mu.Lock()
	e := m.seen[id]
	if e != nil && m.faults["no lock"] {
		select {
		case <-e.done:
		default:
			e = nil // checks for a response only
		}
	}
	if e != nil {
		m.mu.Unlock()
		m.repeat(w, e, fingerprint)
		return
	}
	e = &entry{request: fingerprint, done: make(chan struct{})}
	m.seen[id] = e
	m.mu.Unlock()

	rec := httptest.NewRecorder()
	operation.ServeHTTP(rec, r)
	m.mu.Lock()
	e.reply = reply{rec.Code, rec.Header().Clone(), rec.Body.String()}
	if rec.Code >= 500 && (m.claims.RetryErrors || m.faults["errors are forgotten"]) || m.faults["hang-up forgets"] && r.Context().Err() != nil {
		delete(m.seen, id)
	}
	m.mu.Unlock()
	close(e.done)
	e.reply.write(w)
}

func (m *memory) repeat(w http.ResponseWriter, e *entry, fingerprint string) {
	select {
	case <-e.done:
	default:
		if !m.claims.Waits {
			refuse(w, http.StatusConflict)
			return
		}
		<-e.done
	}
	if e.request != fingerprint {
		refuse(w, m.claims.reuseStatus())
		return
	}
	stored := e.reply
	if m.faults["status is lost"] && stored.status < 300 {
		stored.status = http.StatusOK
	}
	if m.faults["headers are lost"] {
		stored.header = http.Header{"Content-Type": stored.header["Content-Type"], "X-Keytest-Run": stored.header["X-Keytest-Run"]}
	}
	stored.write(w)
}

func (r reply) write(w http.ResponseWriter) {
	maps.Copy(w.Header(), r.header)
	w.WriteHeader(r.status)
	_, _ = io.WriteString(w, r.body)
}
