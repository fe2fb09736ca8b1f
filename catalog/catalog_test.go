package catalog_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v4"

	"github.com/millrace-go/millrace/catalog"
)

type (
	line struct {
		Product string `json:"product"`
		Price   int    `json:"price"`
	}
	tree struct {
		Name     string `json:"name"`
		Children []tree `json:"children,omitempty"`
	}
	order struct {
		ID    int               `json:"id"`
		At    time.Time         `json:"at"`
		Lines []line            `json:"lines"`
		Notes map[string]string `json:"notes,omitempty"`
		Tree  *tree             `json:"tree,omitempty"`
		Any   any               `json:"any,omitempty"`
	}
)

// unit and named write themselves, as text.
type (
	unit  int
	named struct{ First, Last string }
)

func (unit) MarshalText() ([]byte, error)   { return []byte("kg"), nil }
func (*named) MarshalText() ([]byte, error) { return []byte("a name"), nil }

func of[T any](name string, version int) catalog.Event {
	return catalog.Event{Type: name, Version: version, Go: reflect.TypeFor[T]()}
}

// build makes a catalog of what is published to and handled of the topic "orders".
func build(t *testing.T, service string, published, handled []catalog.Event) *catalog.Document {
	t.Helper()
	b := catalog.New(service)
	for _, e := range published {
		require.NoError(t, b.Publishes("orders", e))
	}
	if handled != nil {
		require.NoError(t, b.Handles("bill", "orders", handled...))
	}
	return b.Document()
}

// A catalog is what AsyncAPI's own schema says a document is, and is read back as it was, from JSON and from YAML.
func TestDocumentIsAsyncAPI(t *testing.T) {
	t.Parallel()
	type line struct{ Other bool } // another type of the name
	type mixed struct {
		Line line
	}
	b := catalog.New("shop")
	require.NoError(t, b.Publishes("orders", of[order]("Order", 2)))
	require.NoError(t, b.Publishes("orders/eu~1", of[mixed]("Mixed", 1)))
	require.NoError(t, b.Publishes("orders", of[string]("Text", 1)))
	require.NoError(t, b.Handles("bill", "orders", of[order]("Order", 2), of[mixed]("Order", 1)))
	require.NoError(t, b.Handles("other", "orders", of[mixed]("Order", 2)))
	require.NoError(t, b.Handles("all", "orders/eu~1", catalog.Event{}))
	require.NoError(t, b.Handles("proto", "numbers", catalog.Event{Type: "shop.Number", Version: 1, Protobuf: "shop.v1.Number"}))
	b.CloudEvents("orders", "binary")
	d := b.Document()
	text, err := json.Marshal(d)
	require.NoError(t, err)

	schema := asyncAPI(t)
	instance, err := jsonschema.UnmarshalJSON(strings.NewReader(string(text)))
	require.NoError(t, err)
	require.NoError(t, schema.Validate(instance))
	broken, err := jsonschema.UnmarshalJSON(strings.NewReader(strings.Replace(string(text), `"action":"send"`, `"action":"sends"`, 1)))
	require.NoError(t, err)
	require.Error(t, schema.Validate(broken), "it can fail")

	assert.Contains(t, d.Channels["orders"].Messages, "Order.v2.other", "a handler that decodes it as another Go type")
	assert.Contains(t, d.Components.Schemas, "line")
	assert.Contains(t, d.Components.Schemas, "line_2")
	read, err := catalog.Parse(text)
	require.NoError(t, err)
	assert.Empty(t, catalog.Diff(d, read))
	var plain any
	require.NoError(t, json.Unmarshal(text, &plain))
	asYAML, err := yaml.Marshal(plain)
	require.NoError(t, err)
	read, err = catalog.Parse(asYAML)
	require.NoError(t, err)
	assert.Empty(t, catalog.Diff(read, d))
}

// asyncAPI is schemas/3.0.0-without-$id.json of the npm package @asyncapi/specs 6.11.1.
func asyncAPI(t *testing.T) *jsonschema.Schema {
	t.Helper()
	file, err := os.Open("testdata/asyncapi-3.0.0.json")
	require.NoError(t, err)
	defer file.Close()
	text, err := jsonschema.UnmarshalJSON(file)
	require.NoError(t, err)
	compiler := jsonschema.NewCompiler()
	require.NoError(t, compiler.AddResource("asyncapi.json", text))
	schema, err := compiler.Compile("asyncapi.json")
	require.NoError(t, err)
	return schema
}

// A consumer outside Millrace that reads the payload gets another one in structured mode; one that reads CloudEvents needs their headers.
func TestDiffOfModes(t *testing.T) {
	t.Parallel()
	in := func(mode string) *catalog.Document {
		b := catalog.New("shop")
		require.NoError(t, b.Publishes("orders", of[order]("Order", 1)))
		require.NoError(t, b.Handles("bill", "paid", of[order]("Paid", 1)))
		b.CloudEvents("orders", mode)
		b.CloudEvents("paid", mode) // it publishes nothing there
		return b.Document()
	}
	for _, others := range [][]*catalog.Document{nil, {build(t, "billing", nil, []catalog.Event{of[order]("Order", 1)})}} {
		for _, was := range []string{"", "binary", "structured"} {
			assert.Empty(t, catalog.Diff(in(was), in(was), others...))
			for _, is := range []string{"", "binary", "structured"} {
				if is == was {
					continue
				}
				breaks := []string{"each consumer of orders outside Millrace"}
				if was == "" && is == "binary" {
					breaks = []string{}
				}
				want := fmt.Sprintf("CloudEvents, published to orders: the mode was %s and is %s", cmp.Or(was, "off"), cmp.Or(is, "off"))
				assert.Equal(t, []catalog.Change{{What: want, Breaks: breaks}}, catalog.Diff(in(was), in(is), others...))
			}
		}
	}
}

func TestWrongDocuments(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"{":                 "read the catalog: ",
		"[]":                "read the catalog: ",
		"{asyncapi: 2.6.0}": `asyncapi is "2.6.0": want a document of AsyncAPI 3, as a service serves it at /catalog`,
		"asyncapi: 1":       "read the catalog: ",
		`{asyncapi: 3.0.0, operations: {x: {action: send, channel: {$ref: "#/channels/y"}}}}`:                                                     `operation "x" refers to the channel "#/channels/y", which is not there`,
		`{asyncapi: 3.0.0, channels: {y: {}}, operations: {x: {channel: {$ref: "#/channels/y"}, messages: [{$ref: "#/channels/y/messages/z"}]}}}`: `operation "x" refers to the message "#/channels/y/messages/z", which is not there`,
	} {
		_, err := catalog.Parse([]byte(text))
		assert.ErrorContains(t, err, want)
	}
}

// Each change is told, with those whom it breaks.
func TestDiff(t *testing.T) {
	t.Parallel()
	type event = []catalog.Event
	v1 := of[order]("Order", 1)
	withoutLines := of[struct {
		ID   int    `json:"id"`
		At   string `json:"at,omitempty"`
		More string `json:"more"`
	}]("Order", 1)
	withoutPrice := of[struct {
		ID    int       `json:"id"`
		At    time.Time `json:"at"`
		Lines []struct {
			Product []string `json:"product"`
		} `json:"lines"`
		Notes map[string]string `json:"notes,omitempty"`
		Tree  *tree             `json:"tree,omitempty"`
		Any   any               `json:"any,omitempty"`
	}]("Order", 1)
	onlyID := of[struct {
		ID int `json:"id"`
	}]("Order", 1)
	withOptional := of[struct {
		ID      int   `json:"id"`
		Lines   []int `json:"lines,omitempty"`
		Address *struct {
			Street string `json:"street"`
		} `json:"address,omitempty"`
	}]("Order", 1)
	withEncodings := of[struct {
		Picture []byte      `json:"picture"`
		Prices  map[int]int `json:"prices"`
		Unit    unit        `json:"unit"`
		Owner   named       `json:"owner"`
	}]("Order", 1)
	withOtherEncodings := of[struct {
		Picture string         `json:"picture"`
		Prices  map[int]string `json:"prices"`
		Unit    int            `json:"unit"`
		Owner   string         `json:"owner"`
	}]("Order", 1)
	widened := of[struct {
		Picture string         `json:"picture"`
		Prices  map[int]string `json:"prices"`
		Unit    float64        `json:"unit"`
		Owner   any            `json:"owner"`
	}]("Order", 1)
	everyone := []string{"each consumer of orders"}
	producers := []string{"each producer of orders", "events that wait for bill"}
	for name, c := range map[string]struct {
		before, after *catalog.Document
		others        []*catalog.Document
		want          []catalog.Change
	}{
		"nothing": {build(t, "shop", event{v1}, event{v1}), build(t, "shop", event{v1}, event{v1}), nil, nil},
		"topic removed": {build(t, "shop", event{v1}, nil), build(t, "shop", nil, nil), nil, []catalog.Change{
			{"Order.v1 is no longer published to orders", everyone},
		}},
		"version replaced": {build(t, "shop", event{v1}, nil), build(t, "shop", event{of[order]("Order", 2)}, nil), []*catalog.Document{build(t, "billing", nil, event{v1})}, []catalog.Change{
			{"Order.v1 is no longer published to orders", []string{"billing/bill"}},
			{"Order.v2 is published to orders", []string{"billing/bill"}},
		}},
		"version added that consumers may not know": {build(t, "shop", event{v1}, nil), build(t, "shop", event{v1, of[order]("Order", 2)}, nil), nil, []catalog.Change{
			{"Order.v2 is published to orders", everyone},
		}},
		"topic added": {build(t, "shop", nil, nil), build(t, "shop", event{v1}, nil), nil, []catalog.Change{{"Order.v1 is published to orders", []string{}}}},
		"topic that it only handled": {build(t, "shop", nil, event{v1}), build(t, "shop", event{v1}, event{v1}), nil, []catalog.Change{
			{"Order.v1 is published to orders", []string{}},
		}},
		"version added that consumers know": {build(t, "shop", event{v1}, nil), build(t, "shop", event{v1, of[order]("Order", 2)}, nil), []*catalog.Document{build(t, "billing", nil, event{v1, of[order]("Order", 2)})}, []catalog.Change{
			{"Order.v2 is published to orders", []string{}},
		}},
		"fields": {build(t, "shop", event{v1}, nil), build(t, "shop", event{withoutLines}, nil), nil, []catalog.Change{
			{"Order.v1, published to orders: any was removed", everyone},
			{"Order.v1, published to orders: at was string date-time and is string", everyone},
			{"Order.v1, published to orders: lines was removed", everyone},
			{"Order.v1, published to orders: notes was removed", everyone},
			{"Order.v1, published to orders: tree was removed", everyone},
			{"Order.v1, published to orders: more was added", []string{}},
		}},
		"nested fields": {build(t, "shop", event{v1}, nil), build(t, "shop", event{withoutPrice}, nil), nil, []catalog.Change{
			{"Order.v1, published to orders: lines[].price was removed", everyone},
			{"Order.v1, published to orders: lines[].product was string and is array", everyone},
			{"Order.v1, published to orders: lines[].product[] was added", []string{}},
		}},
		"fields that no handler needs": {build(t, "shop", event{v1}, nil), build(t, "shop", event{withoutPrice}, nil), []*catalog.Document{build(t, "billing", nil, event{onlyID})}, []catalog.Change{
			{"Order.v1, published to orders: lines[].price was removed", []string{}},
			{"Order.v1, published to orders: lines[].product was string and is array", []string{}},
			{"Order.v1, published to orders: lines[].product[] was added", []string{}},
		}},
		"fields of odd names": {
			build(t, "shop", event{of[struct {
				A map[string]struct {
					B int `json:"b.c[]"`
				} `json:"a{}"`
				Dot   int                   `json:"x.y"`
				Start int                   `json:".z"`
				Split struct{ Y, Z string } `json:"split"`
			}]("Order", 1)}, nil), build(t, "shop", event{of[struct {
				A     map[string]struct{} `json:"a{}"`
				X     struct{}            `json:"x"`
				Split string              `json:"split.Y"`
			}]("Order", 1)}, nil), nil, []catalog.Change{
				{`Order.v1, published to orders: ".z" was removed`, everyone},
				{`Order.v1, published to orders: "a{}"{}."b.c[]" was removed`, everyone},
				{`Order.v1, published to orders: "x.y" was removed`, everyone},
				{`Order.v1, published to orders: split was removed`, everyone},
				{`Order.v1, published to orders: "split.Y" was added`, []string{}},
				{`Order.v1, published to orders: x was added`, []string{}},
			},
		},
		"field that its own handler needs": {build(t, "shop", event{onlyID}, event{onlyID}), build(t, "shop", event{of[struct{}]("Order", 1)}, event{onlyID}), []*catalog.Document{build(t, "other", nil, nil)}, []catalog.Change{
			{"Order.v1, published to orders: id was removed", []string{"shop/bill"}},
		}},
		"handler removed": {build(t, "shop", nil, event{v1}), build(t, "shop", nil, nil), nil, []catalog.Change{
			{"handler bill no longer handles Order.v1 of orders", producers},
		}},
		"handler of an older version": {build(t, "shop", nil, event{of[order]("Order", 2), v1}), build(t, "shop", nil, event{of[order]("Order", 2)}), nil, []catalog.Change{
			{"handler bill no longer handles Order.v1 of orders", producers},
		}},
		"handler that needs more": {build(t, "shop", nil, event{onlyID}), build(t, "shop", nil, event{withoutLines}), nil, []catalog.Change{
			{"handler bill, Order.v1 of orders: at was added", []string{}},
			{"handler bill, Order.v1 of orders: more is required now", producers},
		}},
		"handler that reads more, if it is there": {build(t, "shop", nil, event{onlyID}), build(t, "shop", nil, event{withOptional}), nil, []catalog.Change{
			{"handler bill, Order.v1 of orders: address was added", []string{}},
			{"handler bill, Order.v1 of orders: address.street was added", []string{}},
			{"handler bill, Order.v1 of orders: lines was added", []string{}},
			{"handler bill, Order.v1 of orders: lines[] was added", []string{}},
		}},
		"values that are written otherwise": {build(t, "shop", event{withEncodings}, nil), build(t, "shop", event{withOtherEncodings}, nil), nil, []catalog.Change{
			{"Order.v1, published to orders: picture was string base64 and is string", everyone},
			{"Order.v1, published to orders: prices{} was integer and is string", everyone},
			{"Order.v1, published to orders: unit was string and is integer", everyone},
		}},
		"handler that takes more": {build(t, "shop", nil, event{withOtherEncodings}), build(t, "shop", nil, event{widened}), nil, []catalog.Change{
			{"handler bill, Order.v1 of orders: owner was string and is any", []string{}},
			{"handler bill, Order.v1 of orders: unit was integer and is number", []string{}},
		}},
		"what is published is always what consumers took": {build(t, "shop", event{widened}, nil), build(t, "shop", event{withOtherEncodings}, nil), nil, []catalog.Change{
			{"Order.v1, published to orders: owner was any and is string", []string{}},
			{"Order.v1, published to orders: unit was number and is integer", []string{}},
		}},
		"handler that needs less": {build(t, "shop", nil, event{v1}), build(t, "shop", nil, event{onlyID}), nil, nil},
		"handler that takes anything": {build(t, "shop", nil, event{v1}), build(t, "shop", nil, event{{}}), nil, []catalog.Change{
			{"handler bill handles any of orders", []string{}},
		}},
		"handler that took anything": {build(t, "shop", nil, event{{}}), build(t, "shop", nil, event{v1}), nil, []catalog.Change{
			{"handler bill no longer handles any of orders", producers},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, c.want, catalog.Diff(c.before, c.after, c.others...))
		})
	}
}
