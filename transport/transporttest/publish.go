package transporttest

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/transport"
)

// sized returns a message with so many bytes more than the limits allow.
func (e *env) sized(key string, more int) *message.Message {
	msg := newMessage(key, "")
	msg.Payload = bytes.Repeat([]byte("x"), e.transport.Features().Limits.MessageBytes+more-transport.Size(msg))
	return msg
}

func (e *env) tooLarge(key string) *message.Message { return e.sized(key, 1) }

func batchResults(e *env) {
	messages := e.subscribe(transport.SubscriberConfig{Consumer: "c"})
	batch := make([]*message.Message, 250)
	for i := range batch {
		batch[i] = newMessage("", fmt.Sprint(i))
	}
	bad := 100
	batch[bad] = e.tooLarge("")

	results := e.batcher().PublishBatch(e.Context(), e.topic, batch)
	require.Len(e, results, len(batch))
	for i, err := range results {
		if i == bad {
			require.ErrorIs(e, err, transport.ErrLimit)
		} else {
			require.NoError(e, err, "message %d", i)
		}
	}
	got := map[string]bool{}
	for len(got) < len(batch)-1 {
		msg := e.next(messages)
		got[string(msg.Payload)] = true
		msg.Ack()
	}
	require.NotContains(e, got, fmt.Sprint(bad))

	require.Empty(e, e.batcher().PublishBatch(e.Context(), e.topic, nil))
}

func batchHoldsBack(e *env) {
	messages := e.subscribe(transport.SubscriberConfig{Consumer: "c"})
	batch := []*message.Message{
		newMessage("a", "a1"), newMessage("b", "b1"), e.tooLarge("a"), newMessage("a", "a3"), newMessage("b", "b2"), newMessage("", "free"),
	}
	results := e.batcher().PublishBatch(e.Context(), e.topic, batch)
	require.NoError(e, results[0])
	require.NoError(e, results[1])
	require.ErrorIs(e, results[2], transport.ErrLimit)
	require.ErrorIs(e, results[3], transport.ErrNotSent)
	require.NoError(e, results[4])
	require.NoError(e, results[5])

	// The key is not lost: once the bad message is out of the way, it goes on.
	require.NoError(e, e.batcher().PublishBatch(e.Context(), e.topic, batch[3:4])[0])
	got := map[string]bool{}
	for len(got) < 5 {
		msg := e.next(messages)
		got[string(msg.Payload)] = true
		msg.Ack()
	}
	require.Equal(e, map[string]bool{"a1": true, "b1": true, "b2": true, "free": true, "a3": true}, got)
}

func batchContext(e *env) {
	p := e.batcher()
	e.publish(newMessage("", "the topic exists"))
	ctx, cancel := context.WithCancel(e.Context())
	cancel()
	for _, err := range p.PublishBatch(ctx, e.topic, []*message.Message{newMessage("k", "1"), newMessage("k", "2")}) {
		require.ErrorIs(e, err, context.Canceled)
	}
	require.NoError(e, p.PublishBatch(e.Context(), e.topic, []*message.Message{newMessage("k", "3")})[0])
}

func limits(e *env) {
	l := e.transport.Features().Limits
	large := func(limit int) string { return strings.Repeat("x", limit+1) }
	bad := map[string]func(*message.Message){
		"NUL in metadata":     func(m *message.Message) { m.Metadata["a"] = "\x00" },
		"no UTF-8 in the key": func(m *message.Message) { transport.SetKey(m, "\xff") },
	}
	if l.KeyBytes > 0 {
		bad["key"] = func(m *message.Message) { transport.SetKey(m, large(l.KeyBytes)) }
	}
	if l.MetadataKeyBytes > 0 {
		bad["metadata name"] = func(m *message.Message) { m.Metadata[large(l.MetadataKeyBytes)] = "v" }
	}
	if l.MetadataValueBytes > 0 {
		bad["metadata value"] = func(m *message.Message) { m.Metadata["k"] = large(l.MetadataValueBytes) }
	}
	if l.MetadataEntries > 0 {
		bad["metadata entries"] = func(m *message.Message) {
			for i := range l.MetadataEntries + 1 {
				m.Metadata[fmt.Sprint("k", i)] = "v"
			}
		}
	}
	for name, spoil := range bad {
		msg := newMessage("", name)
		spoil(msg)
		require.ErrorIs(e, e.publisher().Publish(e.topic, msg), transport.ErrLimit, name)
	}
	if l.Topic != nil {
		require.ErrorIs(e, e.publisher().Publish("no topic/at all", newMessage("", "x")), transport.ErrLimit)
	}

	// What just fits is carried by the broker, not only by our check.
	messages := e.subscribe(transport.SubscriberConfig{Consumer: "c"})
	msg := newMessage(strings.Repeat("k", l.KeyBytes), "fits")
	for i := range l.MetadataEntries {
		msg.Metadata[fmt.Sprint("k", i)] = "v"
	}
	if l.MetadataEntries > 0 && l.MetadataKeyBytes > 0 {
		delete(msg.Metadata, "k0")
		msg.Metadata[strings.Repeat("n", l.MetadataKeyBytes)] = strings.Repeat("v", l.MetadataValueBytes)
	}
	e.publish(msg)
	got := e.next(messages)
	require.Equal(e, msg.Metadata, got.Metadata)
	got.Ack()
}

// largestMessage: what the limits just allow arrives as it was, and one byte more is refused at no cost to the others.
func largestMessage(e *env) {
	messages := e.subscribe(transport.SubscriberConfig{Consumer: "c"})
	largest := e.sized("k", 0)
	largest.Payload[0], largest.Payload[len(largest.Payload)-1] = 'a', 'z'
	batch := []*message.Message{newMessage("", "before"), e.tooLarge(""), largest, newMessage("", "after")}
	for i, err := range e.batcher().PublishBatch(e.Context(), e.topic, batch) {
		if i == 1 {
			require.ErrorIs(e, err, transport.ErrLimit)
		} else {
			require.NoError(e, err, "message %d", i)
		}
	}
	want := map[string]*message.Message{batch[0].UUID: batch[0], largest.UUID: largest, batch[3].UUID: batch[3]}
	for len(want) > 0 {
		msg := e.next(messages)
		if sent := want[msg.UUID]; sent != nil {
			require.True(e, bytes.Equal(sent.Payload, msg.Payload), "%d bytes, want %d", len(msg.Payload), len(sent.Payload))
			delete(want, msg.UUID)
		}
		msg.Ack()
	}
}

func publisherClose(e *env) {
	p := e.publisher()
	require.NoError(e, p.Close())
	require.NoError(e, p.Close())
	require.NoError(e, p.Publish(e.topic, newMessage("", "x")))
}

// malformed: what is no JSON, no text, empty or without an ID is for the layer above to judge.
func malformed(e *env) {
	messages := e.subscribe(transport.SubscriberConfig{Consumer: "c"})
	for _, want := range []*message.Message{
		message.NewMessage("bytes", []byte("\xff\xfe\x00{")), message.NewMessage("empty", []byte{}), message.NewMessage("", []byte("no ID")),
	} {
		e.publish(want)
		got := e.next(messages)
		require.Equal(e, want.UUID, got.UUID)
		require.Equal(e, string(want.Payload), string(got.Payload))
		got.Ack()
	}
}

func metadata(e *env) {
	messages := e.subscribe(transport.SubscriberConfig{Consumer: "c"})
	with := newMessage("key-1", "payload")
	with.Metadata["name"] = "value"
	with.Metadata["empty"] = ""
	with.Metadata["grüße"] = "日本語"
	without := message.NewMessage("no-uuid-but-an-id", nil)
	without.Metadata = nil
	e.publish(with, without)

	for range 2 {
		got := e.next(messages)
		want := with
		if got.UUID == without.UUID {
			want = without
			require.Empty(e, got.Metadata)
			require.Empty(e, got.Payload)
		} else {
			require.Equal(e, want.Payload, got.Payload)
			require.Equal(e, want.Metadata, got.Metadata)
		}
		require.Equal(e, want.UUID, got.UUID)
		require.Equal(e, transport.Key(want), transport.Key(got))
		got.Ack()
	}
}
