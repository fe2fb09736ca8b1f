package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/cmd/millrace/internal/cli"
	"github.com/millrace-go/millrace/middleware/idempotencykey"
)

func TestKeysCommands(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	o.run(cli.ExitOK, "migrate", "up")
	runs := 0
	request := func(service, account, key string) string {
		keys, err := idempotencykey.New(o.pool, idempotencykey.Config{
			Service: service, Schema: o.schema, Logger: quiet, Scope: func(*http.Request) (string, error) { return account, nil },
		})
		require.NoError(t, err)
		r := httptest.NewRequest(http.MethodPost, "/orders", nil)
		r.Header.Set("Idempotency-Key", key)
		w := httptest.NewRecorder()
		keys.Middleware(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			runs++
			w.Header().Set("Location", "/orders/7")
			if account == "stranger" {
				w.WriteHeader(http.StatusConflict)
			}
			_, _ = io.WriteString(w, "ordered")
		})).ServeHTTP(w, r)
		return w.Body.String()
	}
	assert.Equal(t, "No such keys.\n", o.run(cli.ExitOK, "keys", "list"))
	request("shop", "ada", "k-1")
	request("shop", "stranger", "k-2")
	request("billing", "ada", "k-1")
	list := func(args ...string) (found []idempotencykey.Entry) {
		require.NoError(t, json.Unmarshal([]byte(o.run(cli.ExitOK, append([]string{"keys", "list", "--json"}, args...)...)), &found))
		return found
	}
	all := list()
	require.Len(t, all, 3, "the latest first")
	assert.Equal(t, []string{"billing", "shop", "shop"}, []string{all[0].Service, all[1].Service, all[2].Service})
	assert.Equal(t, all[0].Scope, all[2].Scope, "one caller")
	assert.NotEqual(t, all[0].Scope, all[1].Scope)
	assert.Len(t, list("--service", "shop"), 2)
	assert.Len(t, list("--scope", "ada"), 2)
	assert.Len(t, list("--scope", "ada", "--service", "shop"), 1)
	assert.Len(t, list("--limit", "1"), 1)
	table := o.run(cli.ExitOK, "keys", "list")
	assert.Regexp(t, `shop +[0-9a-f]{16} +k-2 +POST /orders +rejected +409 +\S+`, table)
	assert.Regexp(t, `billing +[0-9a-f]{16} +k-1 +POST /orders +executed +200 +\S+`, table)
	assert.NotContains(t, table, "ada", "a scope may be a secret")

	shown := o.run(cli.ExitOK, "keys", "show", "k-2")
	assert.Contains(t, shown, "state    rejected, status 409\n")
	assert.Contains(t, shown, "header   Location: /orders/7\n")
	assert.Contains(t, shown, "body     7 bytes\nordered\n")
	assert.Contains(t, o.run(cli.ExitUsage, "keys", "show", "k-1"), "name one by its ID\n")
	assert.Contains(t, o.run(cli.ExitOK, "keys", "show", all[0].ID[:shortKeyID]), "service  billing\n")
	assert.Contains(t, o.run(cli.ExitFailed, "keys", "show", "k-9"), "no answer is stored for the key")

	assert.Contains(t, o.run(cli.ExitUsage, "keys", "forget", "k-1"), "name one by its ID\n")
	assert.Contains(t, o.run(cli.ExitUsage, "keys", "forget", "k-1", "--actor", ""), "--actor is empty")
	assert.Equal(t, "The answer 200 to POST /orders with the key k-1 was forgotten.\n",
		o.run(cli.ExitOK, "keys", "forget", all[0].ID[:shortKeyID], "--actor", "ada", "--note", "undone"))
	assert.Contains(t, o.run(cli.ExitFailed, "keys", "forget", all[0].ID), "no answer is stored for the key")
	before := runs
	request("shop", "ada", "k-1")
	assert.Equal(t, before, runs, "the other service's answer is still there")
	request("billing", "ada", "k-1")
	assert.Equal(t, before+1, runs, "what was forgotten is executed again")
	var noted string
	require.NoError(t, o.pool.QueryRow(t.Context(), `select concat_ws(' ', actor, action, service, key, request, status, note) from `+o.schema+`.idempotency_key_audit`).Scan(&noted))
	assert.Equal(t, "ada forget billing k-1 POST /orders 200 undone", noted)
}
