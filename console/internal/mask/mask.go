// Package mask hides confidential parts of payloads and headers.
package mask

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/millrace-go/millrace/console/internal/format"
)

// Mask has the names, in lower case, of fields and headers whose values are hidden.
type Mask map[string]bool

// Header is a name with its value.
type Header struct{ Name, Value string }

// Body is a payload for display.
type Body struct {
	Hidden  string // why the payload is not shown
	Covered bool   // it is shown on demand
	Text    string
	Bytes   int
	Cut     bool
}

// maxBody bounds how much of a payload a page shows, in bytes.
const maxBody = 64 << 10

// Headers returns the headers, sorted and masked.
func (m Mask) Headers(of map[string]string) (all []Header) {
	for _, k := range slices.Sorted(maps.Keys(of)) {
		v := of[k]
		if m[strings.ToLower(k)] {
			v = Masked
		}
		all = append(all, Header{k, v})
	}
	return all
}

// Answer returns the headers of an HTTP response, sorted and masked.
func (m Mask) Answer(of http.Header) (all []Header) {
	for _, k := range slices.Sorted(maps.Keys(of)) {
		v := strings.Join(of[k], ", ")
		if m[strings.ToLower(k)] || strings.EqualFold(k, "Set-Cookie") || strings.EqualFold(k, "Authorization") {
			v = Masked
		}
		all = append(all, Header{k, v})
	}
	return all
}

// Masked replaces a hidden value. Its length does not depend on the value.
const Masked = "••••••"

// Body returns the payload for display, or why it is hidden. may is the user's right to see payloads.
func (m Mask) Body(payload []byte, size int, may bool) Body {
	b := Body{Bytes: size}
	value, isJSON := ParseJSON(payload)
	switch {
	case size == 0 && len(payload) == 0:
		b.Hidden = "The payload is not here: the broker has it, or it is empty."
	case !may:
		b.Hidden = "You may not see payloads. Ask for the right to."
	case len(m) > 0 && !isJSON:
		b.Hidden = "The payload is hidden: it is not JSON, so its secrets cannot be masked."
	case len(m) > 0:
		text, err := json.MarshalIndent(m.masked(value), "", "  ")
		if err != nil {
			b.Hidden = "The payload cannot be shown."
			break
		}
		b.Text = string(text)
	case isJSON:
		b.Text = Indented(payload)
	default:
		b.Text = legible(payload)
	}
	if b.Cut = len(b.Text) > maxBody; b.Cut {
		b.Text = strings.ToValidUTF8(b.Text[:maxBody], "")
	}
	return b
}

// Indented returns JSON on several lines, and other text unchanged.
func Indented(payload []byte) string {
	var b bytes.Buffer
	if json.Indent(&b, bytes.TrimSpace(payload), "", "  ") != nil {
		return string(payload)
	}
	return b.String()
}

// ParseJSON decodes JSON, and keeps the notation of numbers.
func ParseJSON(b []byte) (value any, ok bool) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	ok = json.Valid(b) && d.Decode(&value) == nil
	return value, ok
}

// masked returns the value with hidden fields replaced.
func (m Mask) masked(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for k := range v {
			if m.hides(v, k) {
				v[k] = Masked
			} else {
				v[k] = m.masked(v[k])
			}
		}
	case []any:
		for i := range v {
			v[i] = m.masked(v[i])
		}
	case string:
		if m.Has(v) {
			return Masked
		}
	}
	return value
}

// hides reports whether a field is hidden: Config.Mask names it, or it is the data of a CloudEvent as text or base64, which may
// contain such fields.
func (m Mask) hides(object map[string]any, field string) bool {
	if m[strings.ToLower(field)] {
		return true
	}
	_, text := object[field].(string)
	_, cloudEvent := object["specversion"]
	return len(m) > 0 && cloudEvent && text && (field == "data" || field == "data_base64")
}

// legible returns printable text unchanged, and other text quoted.
func legible(b []byte) string {
	if utf8.Valid(b) && !strings.ContainsFunc(string(b), func(r rune) bool { return !unicode.IsGraphic(r) && r != '\n' && r != '\t' }) {
		return string(b)
	}
	return fmt.Sprintf("%+q", b)
}

// Has reports whether a value contains hidden fields.
func (m Mask) Has(value any) bool {
	switch v := value.(type) {
	case map[string]any:
		for k, inner := range v {
			if m.hides(v, k) || m.Has(inner) {
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(v, m.Has)
	case string: // it may be JSON itself
		inner, isJSON := ParseJSON([]byte(v))
		return isJSON && m.Has(inner)
	}
	return false
}

// Form returns the text of a payload of size bytes for a form, or why no form can edit it. most limits its size, in bytes.
func (m Mask) Form(payload []byte, size, most int) (text, why string) {
	value, isJSON := ParseJSON(payload)
	text = Indented(payload)
	switch {
	case len(payload) != size || len(text) > most:
		return "", fmt.Sprintf("The payload is too large for a form, which takes %s bytes.", format.Number(most))
	case !utf8.ValidString(text) || strings.ContainsAny(text, "\x00\r"):
		return "", "A browser's form would change this payload."
	case len(m) > 0 && (!isJSON || m.Has(value)):
		return "", "The payload has, or may have, fields that are masked."
	}
	return text, ""
}
