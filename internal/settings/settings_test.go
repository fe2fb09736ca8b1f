package settings_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v4"

	"github.com/millrace-go/millrace/internal/settings"
)

func TestNearest(t *testing.T) {
	t.Parallel()
	known := []string{"batch_size", "max_in_flight", "relay", "service"}
	for name, want := range map[string]string{
		"batchsize": "batch_size", "batch_sizes": "batch_size", "relya": "relay", "max-in-flight": "max_in_flight", "srvice": "service",
		"observability": "", "": "", "x": "", "topic": "",
	} {
		assert.Equal(t, want, settings.Nearest(name, known), name)
	}
}

type inner struct {
	Count int8
	Names []string
}

type sample struct {
	Inner    inner
	Optional *inner
	ByName   map[string]inner
	Numbers  []int
	Colours  []colour
	List     []inner
	Rate     float64
	Small    uint16
	ignored  int
	Logger   func()
}

// colour is an enumeration: red or blue.
type colour int

func (c *colour) UnmarshalText(text []byte) error {
	switch string(text) {
	case "red":
		*c = 0
	case "blue":
		*c = 1
	default:
		return errors.New("want red or blue")
	}
	return nil
}

func TestEnvironmentMakesWhatIsNotThere(t *testing.T) {
	t.Parallel()
	var s sample
	r := settings.NewReader()
	known := environ(t, r, &s, map[string]string{
		"S_OPTIONAL_COUNT": "3", "S_BY_NAME": "{a-b: {count: 1}, c: {names: [x]}}", "S_BY_NAME_A_B_COUNT": "2", "S_NUMBERS": "1,2 3", "S_RATE": "",
		"S_LIST": "[{count: 1}, {names: [x]}]", "S_COLOURS": "blue,red",
	})
	assert.Empty(t, r.Problems)
	assert.Equal(t, sample{
		Optional: &inner{Count: 3}, ByName: map[string]inner{"a-b": {Count: 2}, "c": {Names: []string{"x"}}}, Numbers: []int{1, 2, 3},
		List: []inner{{Count: 1}, {Names: []string{"x"}}}, Colours: []colour{1, 0},
	}, s)
	assert.Equal(t, settings.Origin{Env: "S_LIST"}, r.Origin("list[1].names"))
	assert.Contains(t, known, "S_BY_NAME_C_NAMES")
	assert.NotContains(t, known, "S_LOGGER")
	assert.NotContains(t, known, "S_IGNORED")
	assert.Zero(t, s.ignored)
	assert.Equal(t, settings.Origin{Env: "S_BY_NAME_A_B_COUNT"}, r.Origin("by_name.a-b.count"))
	assert.Equal(t, settings.Origin{Env: "S_BY_NAME"}, r.Origin("by_name.c.names"))
}

// A variable cannot tell names that differ in what is "_" in its own name.
func TestEnvironmentOfTwoNames(t *testing.T) {
	t.Parallel()
	s := sample{ByName: map[string]inner{"a-b": {}, "a_b": {}}}
	r := settings.NewReader()
	environ(t, r, &s, map[string]string{"S_BY_NAME_A_B_COUNT": "2"})
	require.Len(t, r.Problems, 1)
	assert.Equal(t, settings.Origin{Env: "S_BY_NAME_A_B_COUNT"}, r.Problems[0].Origin)
	assert.Contains(t, r.Problems[0].Text, "is meant by the variable of another name, too")
}

// Where nothing of it is set, a pointer stays nil; a map that others share stays as it is.
func TestEnvironmentTouchesNothingElse(t *testing.T) {
	t.Parallel()
	shared := map[string]inner{"a": {Count: 1}}
	s := sample{ByName: shared}
	r := settings.NewReader()
	environ(t, r, &s, map[string]string{"S_BY_NAME_A_COUNT": "2"})
	assert.Nil(t, s.Optional)
	assert.Equal(t, int8(2), s.ByName["a"].Count)
	assert.Equal(t, int8(1), shared["a"].Count)
}

func TestWrongValuesLeaveWhatWasThere(t *testing.T) {
	t.Parallel()
	s := sample{Inner: inner{Count: 5}, Numbers: []int{7}, Rate: 0.5, Small: 9}
	r := settings.NewReader()
	environ(t, r, &s, map[string]string{"S_INNER_COUNT": "300", "S_NUMBERS": "1,x", "S_RATE": "fast", "S_SMALL": "-1", "S_BY_NAME": "[", "S_LIST": "{}", "S_COLOURS": "red,green"})
	assert.Equal(t, sample{Inner: inner{Count: 5}, Numbers: []int{7}, Rate: 0.5, Small: 9}, s)
	texts := map[string]string{}
	for _, p := range r.Problems {
		texts[p.Path] = p.Text
	}
	assert.Equal(t, map[string]string{
		"inner.count": `is "300": want a whole number up to 127`, "numbers": `has "x" in it: want a list of numbers`, "rate": `is "fast": want a number`,
		"small": `is "-1": want a whole number from 0 on`, "by_name": "is no YAML: want {name: {key: value}}",
		"colours": `has "green" in it: want red or blue`,
		"list":    `is a mapping: want a list of sections, each with names and values, "- name: value"`,
	}, texts)
}

func TestRefusalsAreInTheWordsOfTheConfiguration(t *testing.T) {
	t.Parallel()
	var document yaml.Node
	require.NoError(t, yaml.Unmarshal([]byte("by_name:\n  a.b:\n    count: 1\n"), &document))
	var s sample
	r := settings.NewReader()
	r.Decode(document.Content[0], "part", &s)
	r.Refuse(errors.Join(
		errors.New(`Config.ByName["a.b"].Count is 1: want as many as Config.Inner.Names has`),
		errors.Join(errors.New("Config.Nothing is odd"), errors.New("all is odd")),
	), "part", &s)
	assert.Equal(t, []settings.Problem{
		{Origin: settings.Origin{Line: 3}, Path: "part.by_name.a.b.count", Text: "is 1: want as many as part.inner.names has"},
		{Origin: settings.Origin{Line: 1}, Path: "part", Text: "Config.Nothing is odd"},
		{Origin: settings.Origin{Line: 1}, Path: "part", Text: "all is odd"},
	}, r.Problems)
}

func environ(t *testing.T, r *settings.Reader, target any, variables map[string]string) []string {
	t.Helper()
	return r.Environ(func(name string) (string, bool) { v, ok := variables[name]; return v, ok }, "S", "", target)
}
