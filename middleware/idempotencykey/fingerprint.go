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

// fingerprintOf identifies a request: a repetition with the same key must have the same fingerprint. It includes the path as sent,
// because http.StripPrefix and similar handlers can give two operations the same path.
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

// site returns the name of a host, without its port, and "" for an address. Port and address only select an instance, and a client
// may repeat its request at another one.
func site(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	if net.ParseIP(strings.Trim(host, "[]")) != nil {
		return ""
	}
	return strings.TrimSuffix(strings.ToLower(host), ".")
}

// contentOf is the digest of a body and its type. For a multipart body it covers the parts, because a repeated upload has a new
// boundary. A part that is multipart itself is compared byte by byte.
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

// partsOf returns a digest of each part's headers and content.
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
