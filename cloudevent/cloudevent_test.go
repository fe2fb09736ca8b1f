package cloudevent_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/cloudevent"
	"github.com/millrace-go/millrace/transport"
)

var modes = []cloudevent.Mode{cloudevent.Binary, cloudevent.Structured}

func TestMessagesKeepEverything(t *testing.T) {
	t.Parallel()
	for name, e := range samples(t) {
		for _, mode := range modes {
			for binding, prefix := range map[cloudevent.Binding]string{cloudevent.Kafka: "ce_", cloudevent.PubSub: "ce-"} {
				msg, err := cloudevent.ToMessage(e, binding, mode)
				require.NoError(t, err, name)
				assert.True(t, cloudevent.Is(msg))
				assert.Equal(t, e.ID(), msg.UUID)
				if mode == cloudevent.Binary {
					assert.Equal(t, e.Type(), msg.Metadata[prefix+"type"])
					assert.Equal(t, string(e.Data()), string(msg.Payload))
				} else {
					assert.Equal(t, "application/cloudevents+json", msg.Metadata["content-type"])
				}
				key, _ := e.Extensions()["partitionkey"].(string)
				assert.Equal(t, key, transport.Key(msg))
				read, err := cloudevent.FromMessage(msg)
				require.NoError(t, err, name)
				assertSame(t, e, read, mode)
			}
		}
	}
}

func message1(metadata map[string]string, payload string) *message.Message {
	msg := message.NewMessage("", []byte(payload))
	msg.Metadata = metadata
	return msg
}

// A wrong event is refused with the name of the attribute.
func TestWrongEvents(t *testing.T) {
	t.Parallel()
	json := map[string]string{"content-type": "application/cloudevents+json"}
	binary := func(name, value string) *message.Message {
		metadata := map[string]string{"ce_specversion": "1.0", "ce_id": "1", "ce_source": "/s", "ce_type": "t", "content-type": "text/plain"}
		metadata[name] = value
		return message1(metadata, "x")
	}
	structured := func(member string) *message.Message {
		return message1(json, `{"specversion": "1.0", "id": "1", "source": "/s", "type": "t", `+member+`}`)
	}
	for want, msg := range map[string]*message.Message{
		`attribute "id" is missing or empty`:                                        binary("ce_id", ""),
		`attribute "source" is missing or empty`:                                    binary("ce_source", " "),
		`attribute "type" is missing or empty`:                                      binary("ce_type", ""),
		`attribute "specversion" is "0.3": want "1.0"`:                              binary("ce_specversion", "0.3"),
		`attribute "specversion" is missing or empty`:                               binary("ce_specversion", ""),
		`attribute "time" is "today": want a time of RFC 3339`:                      binary("ce_time", "today"),
		`attribute "source" is "a b": want a URI`:                                   binary("ce_source", "a b"),
		`attribute "source" is "%zz": want a URI`:                                   binary("ce_source", "%zz"),
		`attribute "dataschema" is "%zz": want a URI`:                               binary("ce_dataschema", "%zz"),
		`attribute "datacontenttype" is "a/": want a media type`:                    binary("content-type", "a/"),
		`attribute "a-b" has a wrong name`:                                          binary("ce_a-b", "x"),
		`attribute "" has a wrong name`:                                             binary("ce_", "x"),
		`is no JSON object: unexpected end`:                                         message1(json, ""),
		`is no JSON object: it is null`:                                             message1(json, "null"),
		`is no JSON object: json: cannot unmarshal array`:                           message1(json, "[]"),
		`is no JSON object: invalid character`:                                      structured(`"a": 1}`),
		`is not UTF-8`:                                                              structured("\"a\": \"\xff\""),
		`attribute "id" is "\ud800": want text without halves of surrogate pairs`:   structured(`"id": "\ud800"`),
		`attribute "source" is "/\uDC00\uD800": want text without halves`:           structured(`"source": "/\uDC00\uD800"`),
		`attribute "a" is "\\\uD83d\\udEb2": want text without halves`:              structured(`"a": "\\\uD83d\\udEb2"`),
		`attribute "id" is "1\xff": want UTF-8`:                                     binary("ce_id", "1\xff"),
		`attribute "id" is "1\x00": want UTF-8 without NUL`:                         structured(`"id": "1\u0000"`),
		`attribute "a" is "\xff": want UTF-8`:                                       binary("ce_a", "\xff"),
		`attribute "datacontenttype" is "text/plain; a=\"\xff\"": want UTF-8`:       binary("content-type", "text/plain; a=\"\xff\""),
		`attribute "id" is 1: want a string`:                                        structured(`"id": 1`),
		`attribute "id" is missing`:                                                 structured(`"id": null`),
		`attribute "specversion" is "1.1": want "1.0"`:                              structured(`"specversion": "1.1"`),
		`attribute "specversion" is 1: want a string`:                               structured(`"specversion": 1`),
		`attribute "specversion" is 1.0: want a string, a boolean or an integer of`: structured(`"specversion": 1.0`),
		`attribute "a" is {}: want a string, a boolean or an integer`:               structured(`"a": {}`),
		`attribute "a" is 2147483648: want a string, a boolean or an integer`:       structured(`"a": 2147483648`),
		`attribute "A" has a wrong name`:                                            structured(`"A": "x"`),
		`attribute "data_base64" is 1: want a string of base64`:                     structured(`"data_base64": 1`),
		`attribute "data_base64" is "?": want a string of base64`:                   structured(`"data_base64": "?"`),
		`attribute "data_base64" stands beside data`:                                structured(`"data_base64": "", "data": 1`),
		`attribute "data" is {}: want a string, as datacontenttype is "text/plain"`: structured(`"datacontenttype": "text/plain", "data": {}`),
		`content type is "application/cloudevents-batch+json": want application/cl`: message1(map[string]string{"content-type": "application/cloudevents-batch+json"}, "[]"),
		`content type is "application/cloudevents+avro": want application/cloud`:    message1(map[string]string{"content-type": "application/cloudevents+avro"}, ""),
		`not a CloudEvent`: message1(map[string]string{"ce_id": "1", "ce_source": "/s", "content-type": "application/json"}, "{}"),
	} {
		_, err := cloudevent.FromMessage(msg)
		assert.ErrorContains(t, err, want)
	}
	_, err := cloudevent.FromMessage(message1(nil, ""))
	require.ErrorIs(t, err, cloudevent.ErrNotCloudEvent)
	assert.False(t, cloudevent.Is(message1(nil, "")))
	var attribute *cloudevent.AttributeError
	_, err = cloudevent.FromMessage(binary("ce_id", ""))
	require.ErrorAs(t, err, &attribute)
	assert.Equal(t, "id", attribute.Attribute)
}

// What is wrong is not written either.
func TestWrongEventsAreNotWritten(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*event.Event){
		`attribute "id" is wrong`:     func(e *event.Event) { e.SetID("") },
		`attribute "type" is wrong`:   func(e *event.Event) { e.SetType("") },
		`attribute "source" is wrong`: func(e *event.Event) { e.Context.(*event.EventContextV1).Source.Path = "" },
		`attribute "data" is not valid JSON, as datacontenttype is "application/json"`: func(e *event.Event) { _ = e.SetData("application/json", []byte("{")) },
		`attribute "specversion" is missing, or not "1.0"`:                             func(e *event.Event) { e.SetSpecVersion("0.3") },
	} {
		for _, mode := range modes {
			e := samples(t)["least"]
			change(&e)
			_, err := cloudevent.ToMessage(e, cloudevent.Kafka, mode)
			assert.ErrorContains(t, err, want)
		}
	}
	_, err := cloudevent.ToMessage(event.Event{}, cloudevent.Kafka, cloudevent.Binary)
	assert.ErrorContains(t, err, `attribute "specversion" is missing`)
	_, err = cloudevent.ToMessage(samples(t)["least"], cloudevent.Kafka, cloudevent.Off)
	assert.ErrorContains(t, err, "the mode is Off: want Binary or Structured")
	_, _, err = cloudevent.ToHTTP(samples(t)["least"], cloudevent.Mode(7))
	assert.ErrorContains(t, err, "the mode is Mode(7)")
}

// An event is identified by its source and its id, unless Millrace has minted the id.
func TestEventID(t *testing.T) {
	t.Parallel()
	of := func(uuid, source, id string) string {
		msg := message1(map[string]string{"ce-specversion": "1.0", "ce-id": id, "ce-source": source}, "")
		msg.UUID = uuid
		got, err := cloudevent.EventID(msg)
		require.NoError(t, err)
		return got
	}
	assert.Equal(t, "/s 1", of("", "/s", "1"))
	assert.Equal(t, "/s 1", of("2", "/s", "1"), "another library's ID, which is a new one for each attempt")
	assert.Equal(t, "1", of("1", "/s", "1"))
	assert.NotEqual(t, of("", "/a#b", "c"), of("", "/a", "#b c"))
	assert.NotEqual(t, of("", "/a#", "c"), of("", "/a", "c"))
	long := strings.Repeat("x", 255)
	assert.Len(t, of("", "/s", long), len("sha256:")+64)
	assert.NotEqual(t, of("", "/s", long), of("", "/t", long))

	for _, msg := range []*message.Message{
		message1(map[string]string{"ce_specversion": "1.0", "ce_source": "/s"}, ""),
		message1(map[string]string{"content-type": "application/cloudevents+json"}, `{"source": "/s"}`),
	} {
		_, err := cloudevent.EventID(msg)
		assert.ErrorContains(t, err, `attribute "id" is missing`)
	}
}

// Escapes that are no halves of surrogate pairs are text.
func TestEscapesInJSON(t *testing.T) {
	t.Parallel()
	for written, want := range map[string]string{`\ud83d\uDEB2`: "🚲", `\\ud800`: `\ud800`, `\\\ud83d\udeb2\ud7ff\ue000`: "\\🚲\ud7ff\ue000", `\"\/\ufffd�`: `"/��`} {
		e, err := cloudevent.FromMessage(message1(map[string]string{"content-type": "application/cloudevents+json"},
			`{"specversion": "1.0", "id": "`+written+`", "source": "/s", "type": "t"}`))
		require.NoError(t, err)
		assert.Equal(t, want, e.ID())
	}
}

// Sources and schemas that net/url would write in another way stay as they are: sources that differ are of different events.
func TestURIsStayAsTheyAre(t *testing.T) {
	t.Parallel()
	for _, uri := range []string{"/a", "/a#", "/a?", "?", "//", "/ü", "/%c3%bc", "/%C3%BC", "/%41", "/a|b", `/"a"`, "/\u00a0", "URN:a:B", "https://Shop.example", "HTTPS://shop.example/ü?ü#ü", "https://ü.example", "x:", "X:", "*"} {
		for _, mode := range modes {
			e, err := cloudevent.FromMessage(message1(map[string]string{"ce_specversion": "1.0", "ce_id": "1", "ce_source": uri, "ce_type": "t"}, ""))
			require.NoError(t, err, uri)
			assert.Equal(t, uri, e.Source())
			header, body, err := cloudevent.ToHTTP(e, mode)
			require.NoError(t, err, uri)
			read, err := cloudevent.FromHTTP(header, body)
			require.NoError(t, err, uri)
			assert.Equal(t, uri, read.Source())

			e, err = cloudevent.FromMessage(message1(map[string]string{"ce_specversion": "1.0", "ce_id": "1", "ce_source": "/s", "ce_type": "t", "ce_dataschema": uri}, ""))
			if !strings.Contains(uri, ":") {
				require.ErrorContains(t, err, `attribute "dataschema"`)
				continue
			}
			require.NoError(t, err)
			msg, err := cloudevent.ToMessage(e, cloudevent.Kafka, mode)
			require.NoError(t, err)
			read, err = cloudevent.FromMessage(msg)
			require.NoError(t, err)
			assert.Equal(t, uri, read.DataSchema())
		}
	}
}

// FuzzFromMessage looks for input that makes reading panic, and for events that do not survive being written.
func FuzzFromMessage(f *testing.F) {
	for _, e := range samples(f) {
		for _, mode := range modes {
			msg, err := cloudevent.ToMessage(e, cloudevent.Kafka, mode)
			require.NoError(f, err)
			f.Add(msg.Metadata["content-type"], msg.Metadata["ce_source"], msg.Metadata["ce_time"], []byte(msg.Payload))
		}
	}
	f.Add("application/cloudevents+json", "", "", []byte(`{"specversion":"1.0","data_base64":1}`)) // which the SDK's reader panics at
	f.Add("application/cloudevents+json;charset=\"", "/", "", []byte(`{"specversion":"1.0","id":"\u0000","source":"?#","type":"\ud800","data":null}`))
	f.Add("text/plain;", "://", "9999-12-31T23:59:60Z", []byte("\xff"))
	f.Fuzz(func(t *testing.T, contentType, source, moment string, payload []byte) {
		metadata := map[string]string{"content-type": contentType}
		if source != "" {
			metadata["ce_specversion"], metadata["ce_id"], metadata["ce_source"], metadata["ce_type"], metadata["ce_time"] = "1.0", "1", source, "t", moment
		}
		msg := message.NewMessage("", payload)
		msg.Metadata = metadata
		e, err := cloudevent.FromMessage(msg)
		if err != nil {
			return
		}
		id, err := cloudevent.EventID(msg)
		require.NoError(t, err, "an event that can be read has an ID")
		for _, mode := range modes {
			written, err := cloudevent.ToMessage(e, cloudevent.PubSub, mode)
			if err != nil {
				require.ErrorContains(t, err, `attribute "data" is not valid JSON`)
				continue
			}
			read, err := cloudevent.FromMessage(written)
			require.NoError(t, err)
			require.Equal(t, e.ID(), read.ID())
			require.Equal(t, e.Type(), read.Type())
			require.Equal(t, e.Source(), read.Source())
			require.True(t, e.Time().Equal(read.Time()))
			if !bytes.ContainsAny(e.Data(), "{[ \t\r\n<>&\u2028\u2029") { // which may be written in another way
				require.Equal(t, string(e.Data()), string(read.Data()))
			}
		}
		require.NotEmpty(t, id)
	})
}
