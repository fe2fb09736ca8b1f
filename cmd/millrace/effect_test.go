package main

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/cmd/millrace/internal/cli"
	"github.com/millrace-go/millrace/middleware/effect"
	"github.com/millrace-go/millrace/outbox"
)

func TestEffectCommands(t *testing.T) {
	o := newOperator(t)
	assert.Contains(t, o.run(cli.ExitFailed, "effect", "list"), `run "millrace migrate up"`)
	assert.Regexp(t, `effect +1 +effect +20`, o.run(cli.ExitOK, "migrate", "up"))
	ledger, err := effect.New(o.pool, effect.Config{Service: "labour", Schema: o.schema, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	defer ledger.Close()
	charge := func(key string, err error) (string, error) {
		return effect.Value(effect.With(t.Context(), ledger), key, func(context.Context, string) (string, error) { return "ch_called", err })
	}
	timeout := errors.New("a time\nout")
	for _, key := range []string{"charge:1", "charge:2"} {
		_, err = charge(key, timeout)
		require.ErrorIs(t, err, effect.ErrInDoubt)
	}
	_, err = charge("charge:3", nil)
	require.NoError(t, err)
	ofEvent := outbox.WithCause(effect.With(t.Context(), ledger), "event-1")
	require.NoError(t, effect.Once(ofEvent, "mail:4", func(context.Context, string) error { return nil }))
	require.ErrorIs(t, effect.Once(ofEvent, "sms:4", func(context.Context, string) error { return timeout }), effect.ErrInDoubt)

	out := o.run(cli.ExitOK, "effect", "list")
	assert.Regexp(t, `charge:1 +doubt +1 +\S+ ago +[0-9a-f-]{36} +a time\\nout\n`, out)
	assert.NotContains(t, out, "charge:3")
	assert.Regexp(t, `charge:3 +done .* "ch_called"`, o.run(cli.ExitOK, "effect", "list", "--state", "all", "--response"))
	var found []effect.Entry
	require.NoError(t, json.Unmarshal([]byte(o.run(cli.ExitOK, "effect", "list", "--json", "--limit", "1")), &found))
	require.Len(t, found, 1)
	assert.Equal(t, "labour/charge:1", found[0].Key)
	out = o.run(cli.ExitOK, "effect", "list", "--event", "event-1")
	assert.Regexp(t, `(?s)^KEY .*labour/mail:4 +done .*labour/sms:4 +doubt `, out)
	assert.NotContains(t, out, "charge")
	assert.NotContains(t, o.run(cli.ExitOK, "effect", "list", "--event", "event-1", "--state", "open"), "mail")
	require.NoError(t, json.Unmarshal([]byte(o.run(cli.ExitOK, "effect", "list", "--event", "event-1", "--json")), &found))
	require.Len(t, found, 2)
	assert.Equal(t, "No such effects.\n", o.run(cli.ExitOK, "effect", "list", "--event", "event-2"))
	assert.Contains(t, o.run(cli.ExitUsage, "effect", "list", "--event", ""), "--event is empty: want an event's ID\n")
	o.run(cli.ExitOK, "effect", "resolve", "labour/sms:4", "--done")
	assert.Contains(t, o.run(cli.ExitUsage, "effect", "list", "--state", "lost"), "--state is \"lost\": want open, doubt, conflict, running, pending, done, not_done or all\n")
	assert.Contains(t, o.run(cli.ExitUsage, "effect", "list", "--limit", "0"), "want 1 or more")

	assert.Contains(t, o.run(cli.ExitUsage, "effect", "resolve", "--done"), "KEY is missing, for example: millrace effect resolve labour/sms/")
	assert.Contains(t, o.run(cli.ExitUsage, "effect", "resolve", "labour/charge:1"), "want either --done or --not-done")
	assert.Contains(t, o.run(cli.ExitUsage, "effect", "resolve", "labour/charge:1", "--not-done", "--response", "1"), "--response needs --done\n")
	assert.Contains(t, o.run(cli.ExitUsage, "effect", "resolve", "labour/charge:1", "--done", "--response", "ch_1"), "want JSON, such as a text in double quotes\n")
	assert.Contains(t, o.run(cli.ExitUsage, "effect", "resolve", "labour/charge:1", "--done", "--by", ""), "--by is empty: want the name of who decides\n")
	assert.Contains(t, o.run(cli.ExitFailed, "effect", "resolve", "labour/charge:9", "--done"), "no such effect")
	assert.Contains(t, o.run(cli.ExitFailed, "effect", "resolve", "labour/charge:3", "--not-done"), "nothing to decide")
	assert.Equal(t, "Effect labour/charge:1 was resolved.\n", o.run(cli.ExitOK, "effect", "resolve", "labour/charge:1", "--done", "--response", `"ch_1"`, "--by", "ada", "--note", "seen"))
	o.run(cli.ExitOK, "effect", "resolve", "labour/charge:2", "--not-done")
	assert.Equal(t, "No such effects.\n", o.run(cli.ExitOK, "effect", "list"))

	answer, err := charge("charge:1", timeout)
	require.NoError(t, err)
	assert.Equal(t, "ch_1", answer)
	answer, err = charge("charge:2", nil)
	require.NoError(t, err)
	assert.Equal(t, "ch_called", answer)
	var by, note string
	require.NoError(t, o.pool.QueryRow(t.Context(), `select resolved_by, note from `+o.schema+`.effect_resolution where key = 'labour/charge:1'`).Scan(&by, &note))
	assert.Equal(t, "ada seen", by+" "+note)
}
