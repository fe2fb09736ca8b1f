package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/catalog"
	"github.com/millrace-go/millrace/cmd/millrace/internal/cli"
)

func catalogRun(args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = run(append([]string{"catalog"}, args...), nil, &out, &errs)
	return code, out.String(), errs.String()
}

func TestCatalog(t *testing.T) {
	t.Parallel()
	write := func(name string, build func(*catalog.Builder)) string {
		b := catalog.New("shop")
		build(b)
		text, err := json.Marshal(b.Document())
		require.NoError(t, err)
		path := filepath.Join(t.TempDir(), name)
		require.NoError(t, os.WriteFile(path, text, 0o600))
		return path
	}
	order := catalog.Event{Type: "Order", Version: 1, Go: reflect.TypeFor[struct{ ID int }]()}
	before := write("old.json", func(b *catalog.Builder) {
		require.NoError(t, b.Publishes("orders", order))
		require.NoError(t, b.Handles("bill", "orders", order))
	})
	after := write("new.json", func(b *catalog.Builder) { require.NoError(t, b.Handles("bill", "orders", order)) })
	served := httptest.NewServer(http.FileServer(http.Dir(filepath.Dir(before))))
	defer served.Close()

	code, out, _ := catalogRun("print", served.URL+"/old.json")
	assert.Equal(t, cli.ExitOK, code)
	assert.Regexp(t, `send\s+orders\s+Order.v1\s+application/json`, out)
	assert.Regexp(t, `receive\s+orders\s+Order.v1\s+application/json\s+bill`, out)
	code, out, _ = catalogRun("print", before, "-o", "json")
	assert.Equal(t, cli.ExitOK, code)
	assert.Contains(t, out, `"asyncapi": "3.0.0"`)

	code, out, _ = catalogRun("diff", before, before)
	assert.Equal(t, cli.ExitOK, code)
	assert.Equal(t, "Nothing has changed.\n", out)
	code, out, _ = catalogRun("diff", before, after)
	assert.Equal(t, cli.ExitFailed, code)
	assert.Regexp(t, `Order.v1 is no longer published to orders\s+shop/bill, each consumer of orders`, out)
	code, out, _ = catalogRun("diff", before, after, "-o", "json")
	assert.Equal(t, cli.ExitFailed, code)
	var changes []catalog.Change
	require.NoError(t, json.Unmarshal([]byte(out), &changes))
	assert.Len(t, changes, 1)
	code, _, _ = catalogRun("diff", after, before)
	assert.Equal(t, cli.ExitOK, code, "what is added breaks nobody")

	for want, args := range map[string][]string{
		"want two catalogs, OLD and NEW":            {"diff", before},
		"nowhere.json":                              {"print", "nowhere.json"},
		"answers 404 Not Found: want the path /cat": {"print", served.URL + "/nowhere"},
	} {
		code, _, stderr := catalogRun(args...)
		assert.NotEqual(t, cli.ExitOK, code)
		assert.Contains(t, stderr, want)
	}
}
