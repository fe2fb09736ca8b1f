package cloudevent

import (
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/cloudevents/sdk-go/v2/event"
)

// FromHTTP reads the CloudEvent of an HTTP request or response, in either mode. Its errors are those of FromMessage.
func FromHTTP(header http.Header, body []byte) (event.Event, error) {
	msg := message.NewMessage("", body)
	for name, values := range header {
		name, value := strings.ToLower(name), strings.Join(values, ", ")
		if strings.HasPrefix(name, dashed) {
			value = unescape(value)
		}
		if strings.HasPrefix(name, dashed) || name == ContentType {
			msg.Metadata.Set(name, value)
		}
	}
	return FromMessage(msg)
}

// ToHTTP returns headers and body of an HTTP request or response that carries the event. Its errors are those of ToMessage.
func ToHTTP(e event.Event, m Mode) (http.Header, []byte, error) {
	msg, err := write(e, dashed, m)
	if err != nil {
		return nil, nil, err
	}
	header := http.Header{}
	for name, value := range msg.Metadata {
		if strings.HasPrefix(name, dashed) {
			value = escape(value)
		}
		if strings.HasPrefix(name, dashed) || name == ContentType {
			header.Set(name, value)
		}
	}
	return header, msg.Payload, nil
}

// escape returns a value for a header. It percent-encodes space, quote, percent, and everything that is not printable ASCII.
func escape(value string) string {
	var b strings.Builder
	for i := range len(value) {
		if c := value[i]; c <= ' ' || c > '~' || c == '"' || c == '%' {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// unescape reverses escape. A percent sign that starts no escape stays.
func unescape(value string) string {
	if len(value) > 1 && value[0] == '"' && value[len(value)-1] == '"' {
		value = unquote(value[1 : len(value)-1])
	}
	var b strings.Builder
	for i := 0; i < len(value); i++ {
		if value[i] == '%' && i+2 < len(value) {
			if c, err := hex.DecodeString(value[i+1 : i+3]); err == nil {
				b.Write(c)
				i += 2
				continue
			}
		}
		b.WriteByte(value[i])
	}
	return b.String()
}

// unquote resolves the quoted pairs of a quoted string.
func unquote(text string) string {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] == '\\' && i+1 < len(text) {
			i++
		}
		b.WriteByte(text[i])
	}
	return b.String()
}
