package wire

import (
	"strings"
	"testing"

	"cloud.google.com/go/pubsub/v2"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/transport"
)

func TestCheckTopic(t *testing.T) {
	for topic, valid := range map[string]bool{
		"abc":                          true,
		"labour.completed":             true,
		"A-._~+%9":                     true,
		"a" + strings.Repeat("b", 254): true,
		"a" + strings.Repeat("b", 255): false,
		"ab":                           false,
		"":                             false,
		"1abc":                         false,
		"a/bc":                         false,
		"a bc":                         false,
		"google.events":                false,
		"abc\n":                        false,
	} {
		if valid {
			require.NoError(t, CheckTopic(topic), "%q", topic)
		} else {
			require.ErrorIs(t, CheckTopic(topic), transport.ErrLimit, "%q", topic)
		}
	}
}

func TestCheckReservedNames(t *testing.T) {
	for name, valid := range map[string]bool{
		"a":                      true,
		"gopher":                 true,
		transport.KeyMetadata:    true, // travels as the ordering key
		"":                       false,
		"goog":                   false,
		"googclient_traceid":     false,
		IDAttribute:              false,
		strings.Repeat("n", 257): false,
	} {
		msg := message.NewMessage("id", nil)
		msg.Metadata[name] = "v"
		if valid {
			require.NoError(t, Check(msg), "%q", name)
		} else {
			require.ErrorIs(t, Check(msg), transport.ErrLimit, "%q", name)
		}
	}
}

func TestMarshal(t *testing.T) {
	msg := message.NewMessage("id", []byte("payload"))
	msg.Metadata["name"] = "value"
	transport.SetKey(msg, "key")
	m := Marshal(msg)
	require.Equal(t, &pubsub.Message{
		Data:        []byte("payload"),
		Attributes:  map[string]string{"name": "value", IDAttribute: "id"},
		OrderingKey: "key",
	}, m)
	require.True(t, msg.Equals(Unmarshal(m)))
	require.NotContains(t, msg.Metadata, IDAttribute, "Marshal changed the message")
}

func TestUnmarshalForeign(t *testing.T) {
	for name, c := range map[string]struct {
		in       *pubsub.Message
		id       string
		metadata message.Metadata
	}{
		"nothing but data": {&pubsub.Message{Data: []byte("x")}, "", message.Metadata{}},
		"client's own attributes": {
			&pubsub.Message{Attributes: map[string]string{IDAttribute: "id", "googclient_traceparent": "00-0", "a": "1"}},
			"id",
			message.Metadata{"a": "1"},
		},
		"a key that is none": {
			&pubsub.Message{Attributes: map[string]string{transport.KeyMetadata: "forged"}},
			"",
			message.Metadata{},
		},
		"server's fields": {
			&pubsub.Message{ID: "server-id", OrderingKey: "k", Attributes: map[string]string{IDAttribute: "id"}},
			"id",
			message.Metadata{transport.KeyMetadata: "k"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			msg := Unmarshal(c.in)
			require.Equal(t, c.id, msg.UUID)
			require.Equal(t, c.metadata, msg.Metadata)
		})
	}
}
