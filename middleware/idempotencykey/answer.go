package idempotencykey

import (
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// answer is a response.
type answer struct {
	status int
	header http.Header // what the handler changed. No values: deleted. Prefix added: appended
	body   []byte
}

// added is the prefix of a header name if the handler only appended values. The values from outside the handler belong to one
// response, such as a session's cookie, so they are not stored. No header name starts with this prefix.
const added = " "

// never are the headers that are never stored: they belong to one connection or one moment, or follow from the body.
var never = []string{
	"Connection", "Content-Length", "Date", "Keep-Alive", "Proxy-Authenticate", "Proxy-Connection", "Te", "Trailer",
	"Transfer-Encoding", "Upgrade",
}

// hasBody reports whether a response with the status may have a body.
func hasBody(status int) bool {
	return status != http.StatusNoContent && status != http.StatusNotModified
}

// repeatable reports whether an answer with the status is not stored. Such an answer depends on the moment, and a stored one would
// be final.
func (c Config) repeatable(status int) bool {
	return status == http.StatusRequestTimeout || status == http.StatusTooEarly || status == http.StatusTooManyRequests || status >= 500 ||
		slices.Contains(c.NotStored, status)
}

// omitted returns the response headers that are not stored.
func (c Config) omitted() []string {
	if c.StoreCookies {
		return c.OmitHeaders
	}
	return append(slices.Clip(c.OmitHeaders), "Set-Cookie")
}

// send writes the answer. If the client is gone, its next request finds the stored answer.
func (a *answer) send(w http.ResponseWriter, replayed bool) {
	h := w.Header()
	for name, values := range a.header {
		if plain, ok := strings.CutPrefix(name, added); ok {
			h[plain] = append(h[plain], values...)
		} else {
			h[name] = values
		}
	}
	if replayed {
		h.Set(headerReplayed, "true")
	}
	h.Del("Content-Length")
	if !hasBody(a.status) {
		w.WriteHeader(a.status)
		return
	}
	h.Set("Content-Length", strconv.Itoa(len(a.body)))
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body)
}

// changes returns the headers that the handler has set, changed or deleted. Middleware around the handler sets its own headers on
// each response.
func changes(before, after http.Header) http.Header {
	changed := http.Header{}
	for name, values := range after {
		switch old := before[name]; {
		case len(old) == 0 || len(values) < len(old) || !slices.Equal(old, values[:len(old)]):
			if _, ok := before[name]; !ok || !slices.Equal(old, values) {
				changed[name] = values
			}
		case len(values) > len(old):
			changed[added+name] = values[len(old):]
		}
	}
	for name := range before {
		if _, ok := after[name]; !ok {
			changed[name] = nil
		}
	}
	return changed
}

// oneLine replaces line breaks in a value with spaces, as net/http does when it writes a header.
var oneLine = strings.NewReplacer("\n", " ", "\r", " ")

// encodeHeader returns lines "Name: value", " Name: value" for an appended value, or "Name" for a header without values. It returns
// bytes and not JSON, because a header need not be valid UTF-8.
func encodeHeader(h http.Header, omit []string) []byte {
	b := []byte{} // not nil, which would be NULL
	for _, name := range slices.Sorted(maps.Keys(h)) {
		plain := strings.TrimPrefix(name, added)
		canonical := http.CanonicalHeaderKey(plain)
		if slices.Contains(never, canonical) || slices.Contains(omit, canonical) || strings.ContainsAny(plain, ": \r\n") || plain == "" {
			continue
		}
		if len(h[name]) == 0 {
			b = append(b, name+"\n"...)
		}
		for _, v := range h[name] {
			b = append(b, name+": "+oneLine.Replace(v)+"\n"...)
		}
	}
	return b
}

func decodeHeader(b []byte) http.Header {
	h := http.Header{}
	for line := range strings.Lines(string(b)) {
		name, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		if !ok {
			h[name] = nil
			continue
		}
		h[name] = append(h[name], value)
	}
	return h
}
