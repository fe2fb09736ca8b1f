package entry_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox/internal/entry"
)

func TestEncode(t *testing.T) {
	t.Parallel()
	e := entry.Entry{ID: "1", Topic: "orders", Key: "k", Headers: []byte("{}"), Payload: []byte{}}
	assert.Equal(t, "\x01\x011\x06orders\x01k\x02{}\x00", string(e.Encode()), "the form is stored, so it must not change")
}

func TestDecode(t *testing.T) {
	t.Parallel()
	long := entry.Entry{ID: "1", Topic: "orders", Key: string(bytes.Repeat([]byte("k"), 300)), Headers: []byte(`{"a":"b"}`), Payload: bytes.Repeat([]byte{0}, 70_000)}
	for _, e := range []entry.Entry{long, {Headers: []byte{}, Payload: []byte{}}} {
		got, err := entry.Decode(e.Encode())
		require.NoError(t, err)
		assert.Equal(t, e, got)
	}
	whole := entry.Entry{ID: "1", Topic: "t", Key: "k", Headers: []byte("{}"), Payload: []byte("p")}.Encode()
	for n := range whole {
		_, err := entry.Decode(whole[:n])
		assert.ErrorContains(t, err, "cut off", "%d bytes", n)
	}
	_, err := entry.Decode(append(whole, 0))
	assert.ErrorContains(t, err, "1 bytes too many")
	_, err = entry.Decode([]byte{2})
	assert.ErrorContains(t, err, "version 2")
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{2})
	f.Add([]byte("\x01\x011\x06orders\x01k\x02{}\x00"))
	f.Add([]byte("\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"))
	f.Add([]byte("\x01\x81\x001\x01t\x01k\x02{}\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := entry.Decode(b)
		if err != nil {
			return
		}
		again, err := entry.Decode(e.Encode())
		require.NoError(t, err)
		assert.Equal(t, e, again)
	})
}
