package claim

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/transport"
)

// headers is what a message carries beside its payload, as claim_failed.headers keeps it: JSON. Strings that JSON or
// UTF-8 cannot carry survive as base64 behind a NUL.
type headers struct {
	UUID     string            `json:"uuid"`
	Metadata map[string]string `json:"metadata"`
	Origin   transport.Origin  `json:"origin,omitempty"`
}

func encodeHeaders(msg *message.Message, origin transport.Origin) ([]byte, error) {
	h := headers{UUID: encodeText(msg.UUID), Metadata: make(map[string]string, len(msg.Metadata)), Origin: make(transport.Origin, len(origin))}
	for k, v := range msg.Metadata {
		h.Metadata[encodeText(k)] = encodeText(v)
	}
	for k, v := range origin {
		h.Origin[k] = encodeText(v)
	}
	return json.Marshal(h)
}

func decodeHeaders(b []byte) (h headers, err error) {
	var stored headers
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

// isText reports whether a text column can hold s.
func isText(s string) bool { return utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 }

func encodeText(s string) string {
	if isText(s) {
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

// printable makes of s what a text column takes, at most so many bytes.
func printable(s string, limit int) string {
	if len(s) > limit {
		s = s[:limit]
	}
	return strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", ""), "\uFFFD")
}

// maxOrderKey is how long a key may be that stands in an index as it is.
const maxOrderKey = 500

// orderKey is a message's key as it stands in claim_key. Keys of a broker may be any bytes, of any length.
func orderKey(key string) string {
	if isText(key) && len(key) <= maxOrderKey {
		return key
	}
	h := sha256.Sum256([]byte(key))
	return "sha256:" + hex.EncodeToString(h[:])
}

// syntheticID identifies a message that has no usable ID by all that it carries, and where its transport tells by its origin,
// so that its redeliveries coincide, and another message of the same content does not.
func syntheticID(topic string, msg *message.Message, origin transport.Origin) string {
	h := sha256.New()
	add := func(s string) {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(s))))
		h.Write([]byte(s))
	}
	add(topic)
	add(string(msg.Payload))
	add(msg.UUID)
	for _, k := range slices.Sorted(maps.Keys(msg.Metadata)) {
		add(k)
		add(msg.Metadata[k])
	}
	for _, k := range slices.Sorted(maps.Keys(origin)) {
		add(k)
		add(origin[k])
	}
	return "malformed:" + hex.EncodeToString(h.Sum(nil))
}
