package framework_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"reflect"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework"
	"github.com/millrace-go/millrace/internal/settings/schema"
)

var update = flag.Bool("update", false, "write docs/millrace.schema.json and the golden files")

func TestSchemaIsThatOfTheStructs(t *testing.T) {
	t.Parallel()
	sections := map[string]reflect.Type{}
	for _, d := range drivers {
		sections[d.Name] = reflect.TypeOf(d.Settings())
	}
	object, err := schema.Object("..", reflect.TypeFor[framework.Config](), sections)
	require.NoError(t, err)
	object["title"] = "Configuration of a Millrace service"
	properties, ok := object["properties"].(map[string]any)
	require.True(t, ok)
	properties["broker"] = map[string]any{
		"enum": []string{"kafka", "memory", "pubsub"}, "description": "The broker: its section, and its driver, are those of this name. Required.",
	}
	var made bytes.Buffer
	e := json.NewEncoder(&made)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	require.NoError(t, e.Encode(object))
	golden(t, "../docs/millrace.schema.json", made.String())
}

// golden compares with a file, or writes it under -update.
func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(got), 0o600))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	remedy := fmt.Sprintf("%s is out of date: go test ./framework -run %s -update writes it anew", path, t.Name())
	if len(got) > 10_000 {
		assert.True(t, bytes.Equal(want, []byte(got)), remedy) // nobody wants to see both
		return
	}
	assert.Equal(t, string(want), got, remedy)
}
