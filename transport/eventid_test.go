package transport_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/transport"
)

// A source parsed from a configuration file equals the source made in Go.
func TestForeignRecordText(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]transport.EventIDSource{
		"":                {},
		"header:ce_id":    transport.EventIDFromHeader("ce_id"),
		"header:a:b":      transport.EventIDFromHeader("a:b"),
		"json:data.id":    transport.EventIDFromJSON("data.id"),
		"offset":          transport.EventIDFromOffset(),
		"message_id":      transport.EventIDFromMessageID(),
		"header:":         transport.EventIDFromHeader(""),
		"json:data..name": transport.EventIDFromJSON("data..name"),
	} {
		var got transport.EventIDSource
		require.NoError(t, got.UnmarshalText([]byte(text)))
		assert.Equal(t, want, got)
		assert.Equal(t, text, got.String())
	}
	for _, wrong := range []string{"header", "json", "ce_id", "offset:1", "Offset", "key"} {
		var got transport.EventIDSource
		require.ErrorContains(t, got.UnmarshalText([]byte(wrong)), "want header:NAME", wrong)
	}
}

func TestForeignRecordSourceThatCannotBe(t *testing.T) {
	t.Parallel()
	for source, want := range map[transport.EventIDSource]string{
		transport.EventIDFromHeader(""):      `"header:": the header has no name: want header:NAME, json:PATH or offset`,
		transport.EventIDFromHeader("_id"):   "want no EventID at all",
		transport.EventIDFromJSON("a."):      "such as json:data.id",
		transport.EventIDFromMessageID():     `"message_id", which this broker does not have: want header:NAME, json:PATH or offset`,
		transport.EventIDFromHeader("ce_id"): "",
		transport.EventIDFromJSON("a.b"):     "",
		transport.EventIDFromOffset():        "",
		{}:                                   "",
	} {
		err := source.Validate(transport.EventIDFromOffset(), "_id")
		if want == "" {
			require.NoError(t, err, source)
		} else {
			require.ErrorContains(t, err, want)
		}
	}
}

// Each source finds its ID or reports what is missing.
func TestForeignRecordIDs(t *testing.T) {
	t.Parallel()
	header, path, offset := transport.EventIDFromHeader("ce_id"), transport.EventIDFromJSON("data.id"), transport.EventIDFromOffset()
	for name, c := range map[string]struct {
		source            transport.EventIDSource
		own, header, body string
		want, err         string
	}{
		"own":                     {own: "1", want: "1"},
		"none":                    {err: "no header has one"},
		"header":                  {source: header, header: "2", want: "2"},
		"header before own":       {source: header, own: "1", header: "2", want: "2"},
		"no header":               {source: header, own: "1", err: `the header "ce_id" is missing or empty`},
		"string":                  {source: path, body: `{"data": {"id": "a\u0062"}}`, want: "ab"},
		"Latin-1":                 {source: path, body: "{\"data\": {\"id\": \"m\xfcller\"}}", err: `the payload's "data.id" is no valid UTF-8`},
		"half a character":        {source: path, body: `{"data": {"id": "\ud83d"}}`, err: `the payload's "data.id" is no valid UTF-8`},
		"number as it is written": {source: path, body: `{"data": {"id": 12345678901234567890}}`, want: "12345678901234567890"},
		"json before own":         {source: path, own: "1", body: `{"data": {"id": 2}}`, want: "2"},
		"tombstone":               {source: path, own: "1", err: `the payload is empty, so it has no "data.id"`},
		"no JSON":                 {source: path, body: "hello", err: `the payload has no "data.id": it is no JSON object`},
		"null":                    {source: path, body: "null", err: `it is no JSON object`},
		"no field":                {source: path, body: `{"Data": {}}`, err: `the payload has no "data.id": it has no field "data"`},
		"no object":               {source: path, body: `{"data": 7}`, err: `the payload has no "data.id": "data" is no JSON object`},
		"no field below":          {source: path, body: `{"data": {}}`, err: `"data" has no field "id"`},
		"an object":               {source: path, body: `{"data": {"id": {}}}`, err: "is no string and no number"},
		"true":                    {source: path, body: `{"data": {"id": true}}`, err: "is no string and no number"},
		"null ID":                 {source: path, body: `{"data": {"id": null}}`, err: "is no string and no number"},
		"empty ID":                {source: path, body: `{"data": {"id": ""}}`, err: "or empty"},
		"the broker's":            {source: offset, want: "at 7"},
		"own before the broker's": {source: offset, own: "1", want: "1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			msg := message.NewMessage("", []byte(c.body))
			if c.header != "" {
				msg.Metadata["ce_id"] = c.header
			}
			id, err := c.source.Find(c.own, msg, func() string { return "at 7" })
			assert.Equal(t, c.want, id)
			if c.err == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, c.err)
			}
		})
	}
}
