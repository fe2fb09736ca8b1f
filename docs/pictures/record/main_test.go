package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What is read in the middle of a letter is written with its other half.
func TestTranscribe(t *testing.T) {
	t.Parallel()
	for name, r := range map[string]io.Reader{
		"at once": strings.NewReader("a ✗ b ░"), "byte by byte": iotest.OneByteReader(strings.NewReader("a ✗ b ░")),
	} {
		var out bytes.Buffer
		require.NoError(t, transcribe(&out, r), name)
		var text strings.Builder
		for d := json.NewDecoder(&out); ; {
			var event [3]any
			err := d.Decode(&event)
			if errors.Is(err, io.EOF) {
				break
			}
			require.NoError(t, err, name)
			assert.Equal(t, "o", event[1])
			text.WriteString(event[2].(string))
		}
		assert.Equal(t, "a ✗ b ░", text.String(), name)
	}
	require.Error(t, transcribe(io.Discard, iotest.ErrReader(errors.New("gone"))))
}
