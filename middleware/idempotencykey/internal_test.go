package idempotencykey

import (
	"context"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/internal/pgschema"
)

func TestEveryStatementPrepares(t *testing.T) {
	t.Parallel()
	pool, schema := devtest.Pool(t), devtest.Schema(t)
	require.NoError(t, Migrate(t.Context(), pool, schema))
	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	require.NoError(t, pgschema.Prepare(t.Context(), conn.Conn(), files, schema))
}

// Every process must compute the same, whatever its version: these values must never change.
func TestStoredFormat(t *testing.T) {
	t.Parallel()
	r := httptest.NewRequest(http.MethodPost, "/orders?dry=1", nil)
	r.Header.Set("Content-Type", "application/json")
	q := newRequest(r, Config{Schema: "millrace", Service: "shop"}, "acct-1", "k", []byte("{}"))
	assert.Equal(t, "aa5bf3f2dc9edfd5efbd4f8e37e3d4208eafa7e8c0c0833d11521d4ff81d487f", hex.EncodeToString(q.id[:]))
	assert.Equal(t, "9e68a83595c1d6fe64cc03ecb9f482e5e021764a598e829ccf422176b2752063", hex.EncodeToString(q.fingerprint[:]))
	assert.Equal(t, int64(-6171070639972098091), q.lock())
	assert.Equal(t, "POST /orders", q.summary)
	assert.NotEqual(t, q.id, newRequest(r, Config{Schema: "millrace", Service: "shop"}, "acct-1k", "", nil).id, "nothing moves from one part to the next")

	header := http.Header{
		"Content-Type": {"text/plain"}, "Set-Cookie": {"a=1", "b=2\r\nX-Evil: 1"}, "X-Gone": nil, "X-Empty": {""},
		"Connection": {"close"}, "content-length": {"5"}, "Date": {"now"}, "X-Private": {"1"}, "X Bad:": {"1"},
	}
	assert.Equal(t, "Content-Type: text/plain\nSet-Cookie: a=1\nSet-Cookie: b=2  X-Evil: 1\nX-Empty: \nX-Gone\n",
		string(encodeHeader(header, []string{"X-Private"})))
}

func TestHeadersComeBack(t *testing.T) {
	t.Parallel()
	name := rapid.StringMatching(`[A-Z][a-z]{0,8}-[A-Za-z0-9!#$%&'*+.^_|~-]{1,8}`)
	value := rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return oneLine.Replace(string(b)) })
	rapid.Check(t, func(t *rapid.T) {
		h := http.Header(rapid.MapOf(name, rapid.SliceOf(value)).Draw(t, "header"))
		got := decodeHeader(encodeHeader(h, nil))
		assert.Len(t, got, len(h))
		for k, v := range h {
			assert.Equal(t, append([]string(nil), v...), got[k])
		}
	})
}

func TestParseKey(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{
		`abc`: "abc", `"abc"`: "abc", " abc\t": "abc", ` "a b,c;d" `: "a b,c;d", `"a\"b\\c"`: `a"b\c`,
		`8e03978e-40d5-43e8-bc93-6894a57f9324`: "8e03978e-40d5-43e8-bc93-6894a57f9324", `a+/=:b`: "a+/=:b",
		strings.Repeat("x", 255): strings.Repeat("x", 255), `"` + strings.Repeat(`\\`, 255) + `"`: strings.Repeat(`\`, 255),
	} {
		got, err := parseKey(value)
		assert.NoError(t, err, value)
		assert.Equal(t, want, got)
	}
	for value, want := range map[string]string{
		``: "has 0 characters", ` `: "has 0 characters", `""`: "has 0 characters", `"`: "not closed", `"a`: "not closed", `"a\"`: "not closed",
		`a b`: "character 2", `a,b`: "character 2", `a"`: "character 2", `a;q=1`: "character 2", `a\b`: "character 2", "a\x7f": "character 2",
		`"a";q=1`: "behind", `"a", "b"`: "behind", `"a\n"`: "backslash", `"a\`: "backslash", "\"a\x00\"": "printable", `"ä"`: "printable", `ä`: "character 1",
		strings.Repeat("x", 256): "256 characters",
	} {
		_, err := parseKey(value)
		assert.ErrorContains(t, err, want, "%q", value)
	}
}

func FuzzParseKey(f *testing.F) {
	for _, seed := range []string{`abc`, `"abc"`, `"a\"b"`, `"a`, `a, b`, ``, `"\\"`, "\x00", `"a";b=1`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		key, err := parseKey(value)
		if err != nil {
			return
		}
		if len(key) < 1 || len(key) > maxKey {
			t.Fatalf("%q gave a key of %d characters", value, len(key))
		}
		if strings.ContainsFunc(key, func(c rune) bool { return c < ' ' || c > '~' }) {
			t.Fatalf("%q gave %q", value, key)
		}
		quoted := `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key) + `"`
		if again, err := parseKey(quoted); err != nil || again != key {
			t.Fatalf("%q gave %q, but in quotes %q, %v", value, key, again, err)
		}
	})
}

// A service whose role owns nothing leaves the days that are past to the owner, and complains when they stay.
func TestHousekeepingWithoutOwnership(t *testing.T) {
	t.Parallel()
	pool, schema := devtest.Pool(t), devtest.Schema(t)
	exec := func(sql string) {
		_, err := pool.Exec(context.Background(), pgschema.Render(sql, schema))
		require.NoError(t, err)
	}
	require.NoError(t, Migrate(t.Context(), pool, schema))
	role := schema + "_h"
	exec(`create role ` + role)
	t.Cleanup(func() { exec(`drop owned by ` + role + `; drop role ` + role) })
	grants, err := Grants(schema, GrantRoles{HTTP: role})
	require.NoError(t, err)
	exec(grants)
	granted := devtest.PoolOn(t, pool.Config().ConnString(), func(cfg *pgxpool.Config) { cfg.ConnConfig.RuntimeParams["role"] = role })
	keys, err := New(granted, Config{Service: "shop", Scope: Shared, Schema: schema})
	require.NoError(t, err)

	day := func(ago int) {
		date := time.Now().UTC().AddDate(0, 0, -ago)
		exec(fmt.Sprintf(`create table {schema}.idempotency_key_%s partition of {schema}.idempotency_key for values from ('%s') to ('%s')`,
			date.Format("20060102"), date.Format(time.DateOnly), date.AddDate(0, 0, 1).Format(time.DateOnly)))
	}
	day(2)
	assert.NoError(t, keys.housekeep(t.Context()), "the owner may come yet")
	day(9)
	assert.ErrorContains(t, keys.housekeep(t.Context()), `run "millrace retention run"`)
}
