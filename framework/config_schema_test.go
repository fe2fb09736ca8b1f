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

// sections are those of the brokers.
func sections() map[string]reflect.Type {
	all := map[string]reflect.Type{}
	for _, d := range drivers {
		all[d.Name] = reflect.TypeOf(d.Settings())
	}
	return all
}

const referenceHead = `# Configuration

<!-- Made from the structs and their comments: go test ./framework -run TestReferenceIsThatOfTheStructs -update -->

A service reads one YAML file and then the environment, which wins. An environment variable is ` + "`MILLRACE_`" + ` and the path of keys in
upper case, joined by ` + "`_`" + `, such as ` + "`MILLRACE_HTTP_READ_TIMEOUT`" + `. Durations are Go's: ` + "`500ms`, `30s`, `1h30m`" + `. In variables a list has commas; a map, and a list of sections, is YAML. A key that
does not exist is an error that names its line. What can only be set in Go (loggers, functions, TLS configurations) is not listed here: see
the packages' documentation.

The texts come from Go code, so they have Go's names: ` + "`MaxAttempts`" + ` is the key ` + "`max_attempts`" + ` of the same section, and ` + "`Config.HandlerTimeout`" + ` of package
claim is ` + "`claim.handler_timeout`" + `.

` + "`millrace config check FILE`" + ` reports everything that is wrong, and ` + "`millrace config print FILE`" + ` shows what takes effect. Editors complete keys
with [the JSON schema](../millrace.schema.json).

`

// The reference of the configuration is made from the same structs.
func TestReferenceIsThatOfTheStructs(t *testing.T) {
	t.Parallel()
	text, err := schema.Markdown("..", reflect.TypeFor[framework.Config](), sections())
	require.NoError(t, err)
	golden(t, "../docs/reference/configuration.md", referenceHead+text)
}

func TestSchemaIsThatOfTheStructs(t *testing.T) {
	t.Parallel()
	object, err := schema.Object("..", reflect.TypeFor[framework.Config](), sections())
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
