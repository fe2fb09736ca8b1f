package wire

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/IBM/sarama"
	watermillkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/transport"
)

// asConsumed is the record as a consumer gets it.
func asConsumed(key, value []byte, headers []*sarama.RecordHeader) *sarama.ConsumerMessage {
	return &sarama.ConsumerMessage{Key: key, Value: value, Headers: headers}
}

// A service can move from watermill-kafka one process at a time.
func TestWatermillReadsOurWire(t *testing.T) {
	msg := message.NewMessage("event-1", []byte("payload"))
	msg.Metadata["name"] = "value"
	transport.SetKey(msg, "key")
	record := Marshal(msg)
	require.Equal(t, "key", string(record.Key))

	got, err := watermillkafka.DefaultMarshaler{}.Unmarshal(asConsumed(record.Key, record.Value, record.Headers))
	require.NoError(t, err)
	require.Equal(t, "event-1", got.UUID)
	require.Equal(t, "payload", string(got.Payload))
	require.Equal(t, message.Metadata{"name": "value"}, got.Metadata)
}

func TestWeReadWatermillsWire(t *testing.T) {
	msg := message.NewMessage("event-1", []byte("payload"))
	msg.Metadata["name"] = "value"
	marshaler := watermillkafka.NewWithPartitioningMarshaler(func(string, *message.Message) (string, error) { return "key", nil })
	sent, err := marshaler.Marshal("topic", msg)
	require.NoError(t, err)
	key, err := sent.Key.Encode()
	require.NoError(t, err)
	value, err := sent.Value.Encode()
	require.NoError(t, err)
	var headers []*sarama.RecordHeader
	for i := range sent.Headers {
		headers = append(headers, &sent.Headers[i])
	}

	got := Unmarshal(asConsumed(key, value, headers))
	require.Equal(t, "event-1", got.UUID)
	require.Equal(t, "payload", string(got.Payload))
	require.Equal(t, message.Metadata{"name": "value", transport.KeyMetadata: "key"}, got.Metadata)
}

func TestWireEdges(t *testing.T) {
	record := Marshal(&message.Message{UUID: "id"})
	require.Nil(t, record.Key, "an empty key is a key to Kafka: all such messages would go to one partition")
	require.Nil(t, record.Value, "a tombstone")
	require.NotNil(t, Marshal(&message.Message{Payload: []byte{}}).Value)

	got := Unmarshal(asConsumed(nil, nil, nil))
	require.Empty(t, got.UUID)
	require.Empty(t, got.Metadata)
	forged := []*sarama.RecordHeader{{Key: []byte(transport.KeyMetadata), Value: []byte("forged")}}
	require.Empty(t, transport.Key(Unmarshal(asConsumed(nil, nil, forged))), "the key is the record's")
}

// Debezium publishes all metadata in one header. Where that is something else, it is metadata like any other.
func TestMetadataInOneHeader(t *testing.T) {
	unmarshal := func(header string) message.Metadata {
		headers := []*sarama.RecordHeader{
			{Key: []byte(IDHeader), Value: []byte("event-1")}, {Key: []byte(MetadataHeader), Value: []byte(header)},
		}
		msg := Unmarshal(asConsumed([]byte("key"), nil, headers))
		require.Equal(t, "event-1", msg.UUID)
		require.Equal(t, "key", transport.Key(msg))
		delete(msg.Metadata, transport.KeyMetadata)
		return msg.Metadata
	}
	packed := func(json string) string { return base64.StdEncoding.EncodeToString([]byte(json)) }
	require.Equal(t, message.Metadata{"name": "value", "ü": ""}, unmarshal(packed(`{"name": "value", "ü": ""}`)))
	require.Empty(t, unmarshal(packed(`{}`)))
	require.Empty(t, unmarshal(packed(`{"`+IDHeader+`": "forged", "`+transport.KeyMetadata+`": "forged"}`)))
	for _, other := range []string{"", "text", packed("text"), packed(`{"name": 1}`), packed(`["name"]`)} {
		require.Equal(t, message.Metadata{MetadataHeader: other}, unmarshal(other))
	}
}

func TestCheck(t *testing.T) {
	require.NoError(t, Check(message.NewMessage("id", []byte("\xff")), Limits))
	for name, spoil := range map[string]func(*message.Message){
		"size":        func(m *message.Message) { m.Payload = make([]byte, Limits.MessageBytes) },
		"UTF-8":       func(m *message.Message) { m.Metadata["a"] = "\xff" },
		"reserved":    func(m *message.Message) { m.Metadata[IDHeader] = "" },
		"UTF-8 of ID": func(m *message.Message) { m.UUID = "\x00" },
	} {
		msg := message.NewMessage("id", nil)
		spoil(msg)
		require.ErrorIs(t, Check(msg, Limits), transport.ErrLimit, name)
	}
	for topic, valid := range map[string]bool{
		"a": true, "labour.completed_1-2": true, strings.Repeat("x", 249): true,
		"": false, ".": false, "..": false, "a/b": false, "ü": false, strings.Repeat("x", 250): false, "a\n": false,
	} {
		require.Equal(t, valid, CheckTopic(topic) == nil, "%q", topic)
	}
}

// Each message of a transaction is marshaled while its handler runs: its headers take no memory of their own.
func TestMarshalAllocatesTwice(t *testing.T) {
	msg := message.NewMessage("event-1", []byte("payload"))
	transport.SetKey(msg, "key")
	for _, name := range []string{"one", "two", "three", "four", "five"} {
		if len(msg.Metadata) <= usualHeaders { // with the key, and without the ID
			require.InDelta(t, 2, testing.AllocsPerRun(100, func() { Marshal(msg) }), 0, msg.Metadata)
		}
		msg.Metadata[name] = "value of " + name
	}
	got := Unmarshal(asConsumed([]byte("key"), nil, Marshal(msg).Headers))
	require.Equal(t, msg.UUID, got.UUID)
	require.Equal(t, msg.Metadata, got.Metadata)
}
