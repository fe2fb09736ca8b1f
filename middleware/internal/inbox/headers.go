package inbox

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/transport"
)

// Headers is what a message carries in addition to its payload, as JSON for claim_failed.headers. A string that is not valid text
// is stored as NUL and base64.
type Headers struct {
	UUID     string            `json:"uuid"`
	Metadata map[string]string `json:"metadata"`
	Origin   transport.Origin  `json:"origin,omitempty"`
}

// EncodeHeaders returns the stored form of a message's headers and of its origin at the broker.
func EncodeHeaders(msg *message.Message, origin transport.Origin) ([]byte, error) {
	h := Headers{UUID: encodeText(msg.UUID), Metadata: make(map[string]string, len(msg.Metadata)), Origin: make(transport.Origin, len(origin))}
	for k, v := range msg.Metadata {
		h.Metadata[encodeText(k)] = encodeText(v)
	}
	for k, v := range origin {
		h.Origin[k] = encodeText(v)
	}
	return json.Marshal(h)
}

// DecodeHeaders is the reverse of EncodeHeaders.
func DecodeHeaders(b []byte) (h Headers, err error) {
	var stored Headers
	if err := json.Unmarshal(b, &stored); err != nil {
		return h, fmt.Errorf("the event's headers: %w", err)
	}
	if h.UUID, err = decodeText(stored.UUID); err != nil {
		return h, err
	}
	h.Metadata = make(map[string]string, len(stored.Metadata))
	for k, v := range stored.Metadata {
		if k, err = decodeText(k); err != nil {
			return h, err
		}
		if h.Metadata[k], err = decodeText(v); err != nil {
			return h, err
		}
	}
	h.Origin = stored.Origin
	for k, v := range h.Origin {
		if h.Origin[k], err = decodeText(v); err != nil {
			return h, err
		}
	}
	return h, nil
}

// IsText reports whether a text column can hold s.
func IsText(s string) bool { return utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 }

func encodeText(s string) string {
	if IsText(s) {
		return s
	}
	return "\x00" + base64.StdEncoding.EncodeToString([]byte(s))
}

func decodeText(s string) (string, error) {
	code, coded := strings.CutPrefix(s, "\x00")
	if !coded {
		return s, nil
	}
	b, err := base64.StdEncoding.DecodeString(code)
	if err != nil {
		return "", fmt.Errorf("the event's headers: %w", err)
	}
	return string(b), nil
}

// Printable returns s as text that a column can hold, of at most limit bytes before invalid bytes are replaced.
func Printable(s string, limit int) string {
	if len(s) > limit {
		s = s[:limit]
	}
	return strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", ""), "\uFFFD")
}
