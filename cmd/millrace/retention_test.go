package main

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/cmd/millrace/internal/cli"
	"github.com/millrace-go/millrace/internal/pgdays"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/outbox"
)

func TestRetentionCommand(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	assert.Contains(t, o.run(cli.ExitFailed, "retention", "status"), `"millrace migrate up"`)
	o.run(cli.ExitOK, "migrate", "up")
	store := claim.NewPostgresStore(o.pool, claim.Schema(o.schema))
	for _, id := range []string{outbox.NewID(), "order 1"} {
		require.NoError(t, store.Do(t.Context(), claim.Key{Consumer: "notify", EventID: id}, func(context.Context) error { return nil }))
	}
	out := o.run(cli.ExitOK, "retention", "status")
	assert.Regexp(t, `claims +10 `, out)
	assert.Regexp(t, `effects +\d+ `, out)
	assert.Regexp(t, `http_keys +\d+ `, out)
	assert.Contains(t, out, "claims without a date: 1\n")
	assert.Regexp(t, `notify +-\n`, out)

	out = o.run(cli.ExitOK, "retention", "run", "--claims=24h")
	assert.Contains(t, out, "processed_old")
	yesterday := time.Now().UTC().AddDate(0, 0, -1).Format(time.DateOnly)
	assert.Contains(t, out, "the retention watermark is "+yesterday+": older events are not handled\n")
	assert.Regexp(t, `notify +`+yesterday, o.run(cli.ExitOK, "retention", "status"))

	var done map[string]struct{ Days []string }
	require.NoError(t, json.Unmarshal([]byte(o.run(cli.ExitOK, "retention", "run", "--claims=1d", "--effects=30d", "--json")), &done))
	assert.Len(t, done, 2, "what is not named is left alone")
	var status struct {
		Tables []keptDays
		Claims claim.Kept
	}
	require.NoError(t, json.Unmarshal([]byte(o.run(cli.ExitOK, "retention", "status", "--json")), &status))
	assert.Equal(t, 9, status.Tables[0].Days)
	assert.Equal(t, int64(1), status.Claims.Hashed)

	// A service that keeps its records for longer than the flag says counts more.
	_, err := pgdays.Table{Schema: o.schema, Name: "idempotency_key"}.Expiry(t.Context(), o.pool, "shop", 8*24*time.Hour)
	require.NoError(t, err)
	assert.Regexp(t, `http_keys +- +service shop keeps them for 8d\n`, o.run(cli.ExitOK, "retention", "run", "--http-keys=2d"))
	assert.Regexp(t, `shop +http_keys +192h0m0s +20`, o.run(cli.ExitOK, "retention", "status"))
	assert.NotContains(t, o.run(cli.ExitOK, "retention", "run", "--http-keys=8d"), "shop")

	assert.Contains(t, o.run(cli.ExitOK, "retention", "run"), "Partitions for the next week exist: claims, effects, http_keys. None was dropped, because no duration was given.\n")
	assert.Equal(t, `{"ahead":["claims","effects","http_keys"]}`, strings.Join(strings.Fields(o.run(cli.ExitOK, "retention", "run", "--json")), ""))
	assert.Contains(t, o.run(cli.ExitFailed, "retention", "run", "--claims=1h"), "--claims: ")
	for _, wrong := range []string{"soon", "0", "-1h", "-1d", "1.5d", "d"} {
		assert.Contains(t, o.run(cli.ExitUsage, "retention", "run", "--claims="+wrong), `for "--claims" flag: want an age such as 90d or 12h`)
	}
}
