package transport_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/transport"
)

func newMessage(id, key, payload string, metadata ...string) *message.Message {
	msg := message.NewMessage(id, []byte(payload))
	for i := 0; i < len(metadata); i += 2 {
		msg.Metadata[metadata[i]] = metadata[i+1]
	}
	transport.SetKey(msg, key)
	return msg
}

func TestSize(t *testing.T) {
	for name, c := range map[string]struct {
		msg  *message.Message
		want int
	}{
		"empty":             {newMessage("", "", ""), 0},
		"ID and payload":    {newMessage("id", "", "payload"), 2 + 7},
		"metadata":          {newMessage("", "", "", "name", "value", "a", ""), 4 + 5 + 1},
		"key, not its name": {newMessage("", "key", ""), 3},
		"bytes, not runes":  {newMessage("", "", "ü", "ü", "日"), 2 + 2 + 3},
		"no metadata map":   {&message.Message{UUID: "id"}, 2},
	} {
		require.Equal(t, c.want, transport.Size(c.msg), name)
	}
}

func TestLimitsCheck(t *testing.T) {
	limits := transport.Limits{
		Topic:              regexp.MustCompile(`^[a-z]+$`),
		MessageBytes:       20,
		KeyBytes:           3,
		MetadataEntries:    2,
		MetadataKeyBytes:   4,
		MetadataValueBytes: 5,
	}
	for name, c := range map[string]struct {
		topic string
		msg   *message.Message
		want  string // part of the error; "" if none is expected
	}{
		"all at the limit": {"topic", newMessage("i", "key", "payl", "name", "value", "a", "bc"), ""},
		"key is no entry":  {"topic", newMessage("", "k", "", "a", "", "b", ""), ""},
		"topic":            {"Topic", newMessage("", "", ""), `topic "Topic"`},
		"size":             {"topic", newMessage("", "", strings.Repeat("x", 21)), "message size in bytes is 21, the limit is 20"},
		"key":              {"topic", newMessage("", "long", ""), "key length in bytes is 4"},
		"entries":          {"topic", newMessage("", "", "", "a", "", "b", "", "c", ""), "metadata entries is 3"},
		"name":             {"topic", newMessage("", "", "", "names", ""), `metadata name "names" is 5`},
		"value":            {"topic", newMessage("", "", "", "name", "values"), `value of "name" is 6`},
	} {
		t.Run(name, func(t *testing.T) {
			err := limits.Check(c.topic, c.msg)
			if c.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, transport.ErrLimit)
			require.ErrorContains(t, err, c.want)
		})
	}
	err := limits.Check("Topic", newMessage("", "long", strings.Repeat("x", 30)))
	for _, part := range []string{"topic", "size", "key"} {
		require.ErrorContains(t, err, part, "all at once")
	}
	require.NoError(t, transport.Limits{}.Check("any topic", newMessage("", strings.Repeat("k", 1e6), "")))
	require.True(t, transport.Limits{}.IsZero())
	require.False(t, limits.IsZero())
}

func TestDefaultLimitsTopic(t *testing.T) {
	for topic, valid := range map[string]bool{
		"abc": true, "labour.completed": true, "a" + strings.Repeat("b", 248): true,
		"": false, "ab": false, "a" + strings.Repeat("b", 249): false, ".abc": false, "a/b": false, "abc\n": false,
	} {
		err := transport.DefaultLimits.Check(topic, newMessage("", "", ""))
		require.Equal(t, valid, err == nil, "%q: %v", topic, err)
	}
}

// The default limits refuse a key that one of the brokers refuses, so that the business transaction can still react.
func TestDefaultLimitsKey(t *testing.T) {
	require.NoError(t, transport.DefaultLimits.Check("topic", newMessage("", strings.Repeat("k", 1024), "")))
	require.ErrorContains(t, transport.DefaultLimits.Check("topic", newMessage("", strings.Repeat("k", 1025), "")), "key length in bytes is 1025, the limit is 1024")
}

func TestCheckText(t *testing.T) {
	require.NoError(t, transport.CheckText(newMessage("ïd", "key", "\xff\x00", "näme", "välue")))
	for name, msg := range map[string]*message.Message{
		"ID":             newMessage("\xff", "", ""),
		"key":            newMessage("", "\x00", ""),
		"metadata name":  newMessage("", "", "", "a\x00", ""),
		"metadata value": newMessage("", "", "", "a", "\xc3"),
	} {
		require.ErrorIs(t, transport.CheckText(msg), transport.ErrLimit, name)
	}
}
