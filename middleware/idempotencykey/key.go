package idempotencykey

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
)

const (
	headerKey      = "Idempotency-Key"
	headerReplayed = "Idempotent-Replayed"
	maxKey         = 255 // characters, as in Stripe's API
)

var errNoKey = errors.New("the header is missing")

// keyOf returns the request's key. In the draft, the header is a string of structured fields (RFC 8941, section 3.3.3), in quotes.
// Most clients send it without quotes. Both forms give the same key. The value "a, b", into which a proxy joins two header lines,
// is not a key.
func keyOf(h http.Header) (string, error) {
	lines := h[headerKey]
	switch len(lines) {
	case 0:
		return "", errNoKey
	case 1:
		return parseKey(lines[0])
	}
	return "", fmt.Errorf("there are %d header lines: want one", len(lines))
}

func parseKey(value string) (string, error) {
	value = strings.Trim(value, " \t")
	key := value
	if strings.HasPrefix(value, `"`) {
		var err error
		if key, err = unquote(value); err != nil {
			return "", err
		}
	} else if i := strings.IndexFunc(value, func(c rune) bool { return c <= ' ' || c > '~' || strings.ContainsRune(`",;\`, c) }); i >= 0 {
		return "", fmt.Errorf("character %d is not allowed in a key without quotes: want visible ASCII except \" , ; and \\", i+1)
	}
	if n := len(key); n < 1 || n > maxKey {
		return "", fmt.Errorf("the key has %d characters: want 1 to %d", n, maxKey)
	}
	return key, nil
}

// unquote parses a string of structured fields. The draft defines no parameters, so nothing may follow the string.
func unquote(value string) (string, error) {
	var key strings.Builder
	for i := 1; i < len(value); i++ {
		switch c := value[i]; {
		case c == '"' && i == len(value)-1:
			return key.String(), nil
		case c == '"':
			return "", fmt.Errorf("character %d ends the quotes: want nothing behind them", i+1)
		case c == '\\':
			if i++; i == len(value) || value[i] != '"' && value[i] != '\\' {
				return "", errors.New(`a backslash is not followed by " or \`)
			}
			key.WriteByte(value[i])
		case c < ' ' || c > '~':
			return "", fmt.Errorf("character %d is not printable ASCII", i+1)
		default:
			key.WriteByte(c)
		}
	}
	return "", errors.New("the quotes are not closed")
}
