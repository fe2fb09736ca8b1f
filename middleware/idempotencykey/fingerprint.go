package idempotencykey

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"maps"
	"mime"
	"mime/multipart"
	"net"
	"net/http"
	"slices"
	"strings"
)

// fingerprintOf is what a request that is repeated with its key has in common with the first one. The path as it was sent is
// in it, too, because http.StripPrefix and the like make one path of two operations'.
func fingerprintOf(r *http.Request, body []byte, hook func(*http.Request, []byte) []byte) [sha256.Size]byte {
	sent, _, _ := strings.Cut(r.RequestURI, "?")
	var content [sha256.Size]byte
	if hook == nil {
		content = contentOf(r.Header.Get("Content-Type"), body)
	} else {
		content = digest([]byte("hook"), hook(r, body))
	}
	return digest([]byte(r.Method), []byte(site(r.Host)), []byte(r.URL.EscapedPath()), []byte(sent), []byte(r.URL.RawQuery), content[:])
}

// site is the name of a host. An address says which instance was asked, and so does a port: a client that repeats its request
// may ask another one.
func site(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	if net.ParseIP(strings.Trim(host, "[]")) != nil {
		return ""
	}
	return strings.TrimSuffix(strings.ToLower(host), ".")
}

// contentOf is the digest of a body with its type. A client that repeats an upload makes a new boundary, so of a multipart
// body the parts count. Parts that are multipart themselves are compared as they are.
func contentOf(contentType string, body []byte) [sha256.Size]byte {
	media, params, err := mime.ParseMediaType(contentType)
	boundary := params["boundary"]
	if err == nil && boundary != "" && strings.HasPrefix(media, "multipart/") {
		delete(params, "boundary")
		if parts, err := partsOf(body, boundary); err == nil {
			return digest(append([][]byte{[]byte("multipart"), []byte(mime.FormatMediaType(media, params))}, parts...)...)
		}
	}
	return digest([]byte("body"), []byte(contentType), body)
}

// partsOf returns, for each part, the digest of its headers and its content.
func partsOf(body []byte, boundary string) (parts [][]byte, err error) {
	reader := multipart.NewReader(bytes.NewReader(body), boundary)
	for {
		part, err := reader.NextRawPart()
		if errors.Is(err, io.EOF) {
			return parts, nil
		}
		if err != nil {
			return nil, err
		}
		content, err := io.ReadAll(part)
		if err != nil {
			return nil, err
		}
		fields := [][]byte{content}
		for _, name := range slices.Sorted(maps.Keys(part.Header)) {
			fields = append(fields, []byte(name), []byte(strings.Join(part.Header[name], "\n")))
		}
		sum := digest(fields...)
		parts = append(parts, sum[:])
	}
}
