package cloudheader

import (
	"context"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestFor(t *testing.T) {
	t.Parallel()
	type metadata = message.Metadata
	for name, c := range map[string]struct {
		broker   string
		in, want metadata
	}{
		"Kafka's for Pub/Sub":    {"pubsub", metadata{"ce_specversion": "1.0", "ce_id": "1", "a": "b"}, metadata{"ce-specversion": "1.0", "ce-id": "1", "a": "b"}},
		"Pub/Sub's for Kafka":    {"kafka", metadata{"ce-specversion": "1.0", "ce-id": "1", "a": "b"}, metadata{"ce_specversion": "1.0", "ce_id": "1", "a": "b"}},
		"an entry of both names": {"kafka", metadata{"ce-specversion": "1.0", "ce-id": "1", "ce_id": "2"}, metadata{"ce_specversion": "1.0", "ce_id": "1"}},
		"right already":          {"kafka", metadata{"ce_specversion": "1.0", "ce-specversion": "1.0", "ce-id": "1"}, nil},
		"no CloudEvent":          {"kafka", metadata{"ce-tenant": "1"}, nil},
		"another broker":         {"memory", metadata{"ce-specversion": "1.0"}, nil},
		"no broker":              {"", metadata{"ce-specversion": "1.0", "specversion": "x"}, nil},
		"no metadata":            {"kafka", nil, nil},
	} {
		type key struct{}
		msg := message.NewMessageWithContext(context.WithValue(t.Context(), key{}, name), "id", []byte("data"))
		msg.Metadata = c.in
		before := metadata{}
		for k, v := range c.in {
			before[k] = v
		}
		got := For(c.broker, msg)
		if c.want == nil {
			require.Same(t, msg, got, name)
			continue
		}
		assert.Equal(t, c.want, got.Metadata, name)
		assert.Equal(t, "id data "+name, got.UUID+" "+string(got.Payload)+" "+got.Context().Value(key{}).(string))
		assert.Equal(t, before, c.in, "the caller's message stays as it is")
	}
}
