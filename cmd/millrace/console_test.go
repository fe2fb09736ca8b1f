package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/cmd/millrace/internal/cli"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
)

// The command serves pages until it is asked to end, also while a browser keeps one up to date.
func TestConsoleCommand(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	o.run(cli.ExitOK, "migrate", "up")
	assert.Contains(t, o.run(cli.ExitUsage, "console", "--address", "0.0.0.0:0"), `--address is "0.0.0.0:0": want the host 127.0.0.1`)
	assert.Contains(t, o.run(cli.ExitUsage, "console", "--act", "--actor", ""), "--actor is empty")
	assert.Contains(t, o.run(cli.ExitUsage, "console", "--payloads", "--actor", ""), "--actor is empty")
	command, output := millrace(t, "console", "--address", "127.0.0.1:0", "--schema", o.schema, "--dsn", o.dsn)
	require.NoError(t, command.Start())
	t.Cleanup(func() { _ = command.Process.Kill() }) // where the test has failed
	at := regexp.MustCompile(`The console is at (http://127\.0\.0\.1:\d+/)`)
	require.Eventually(t, func() bool { return at.MatchString(output.String()) }, time.Minute, 20*time.Millisecond, output)
	address := at.FindStringSubmatch(output.String())[1]
	first, err := http.Get(address)
	require.NoError(t, err)
	defer first.Body.Close()
	page, err := io.ReadAll(first.Body)
	require.NoError(t, err)
	assert.Contains(t, string(page), "No consumer has claimed an event.")
	assert.Contains(t, string(page), "may look, payloads hidden")
	open, err := http.Get(first.Request.URL.String() + "live")
	require.NoError(t, err)
	defer open.Body.Close()
	require.NoError(t, command.Process.Signal(syscall.SIGTERM))
	_, err = io.ReadAll(open.Body)
	assert.NoError(t, err, "the stream ends as it should")
	require.NoError(t, command.Wait(), output)
}

// Everybody who could log in to the machine, and a proxy on it that set no header, could act with --act. Now a browser needs the secret of
// the printed address, which is in no later URL and on no page.
func TestConsoleThatActsNeedsItsSecret(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	o.run(cli.ExitOK, "migrate", "up")
	for _, flag := range []string{"--act", "--payloads"} {
		command, output := millrace(t, "console", flag, "--address", "127.0.0.1:0", "--schema", o.schema, "--dsn", o.dsn)
		require.NoError(t, command.Start())
		t.Cleanup(func() { _ = command.Process.Kill() }) // where the test has failed
		at := regexp.MustCompile(`The console is at (http://127\.0\.0\.1:\d+)/\?secret=(\w{26})\n`)
		require.Eventually(t, func() bool { return at.MatchString(output.String()) }, time.Minute, 20*time.Millisecond, output)
		address, secret := at.FindStringSubmatch(output.String())[1], at.FindStringSubmatch(output.String())[2]
		jar, err := cookiejar.New(nil)
		require.NoError(t, err)
		client := &http.Client{Jar: jar}
		get := func(path string) (status int, url string, cookies []*http.Cookie, page string) {
			r, err := client.Get(address + path)
			require.NoError(t, err)
			defer r.Body.Close()
			body, err := io.ReadAll(r.Body)
			require.NoError(t, err)
			return r.StatusCode, r.Request.URL.String(), r.Cookies(), string(body)
		}
		for _, path := range []string{"/", "/?secret=", "/?secret=" + secret[1:], "/static/console.css", "//evil.example/?secret=" + secret} {
			status, _, cookies, page := get(path)
			assert.Equal(t, http.StatusForbidden, status, path)
			assert.Contains(t, page, "Open the address that the command has printed")
			assert.Empty(t, cookies, path)
		}
		status, url, _, page := get("/?secret=" + secret)
		assert.Equal(t, http.StatusOK, status)
		assert.Contains(t, page, "No consumer has claimed an event.")
		assert.NotContains(t, page, secret)
		assert.NotContains(t, url, "secret")
		client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		_, _, cookies, _ := get("/?secret=" + secret)
		require.Len(t, cookies, 1)
		assert.True(t, cookies[0].HttpOnly)
		assert.Equal(t, http.SameSiteStrictMode, cookies[0].SameSite)
		require.NoError(t, command.Process.Signal(syscall.SIGTERM))
		require.NoError(t, command.Wait(), output)
		assert.Equal(t, 1, strings.Count(output.String(), secret), "it is in no log")
	}
}

// With a fleet's configuration the command serves all of its databases, also while one is away.
func TestConsoleOfAFleet(t *testing.T) {
	t.Parallel()
	dsns := devtest.Databases(t, 2, func(string) error { return nil })
	config := filepath.Join(t.TempDir(), "fleet.yaml")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, `
service: tenants
broker: memory
fleet:
  databases:
  - {name: North_EU, dsn: %q}
  - {name: north/eu, dsn: %q}
  - {name: away, dsn: "postgres://127.0.0.1:1/x"}
`, dsns[0], dsns[1]), 0o600))
	command, output := millrace(t, "console", "--address", "127.0.0.1:0", "--config", config)
	require.NoError(t, command.Start())
	t.Cleanup(func() { _ = command.Process.Kill() }) // where the test has failed
	at := regexp.MustCompile(`The console is at (http://127\.0\.0\.1:\d+)/`)
	require.Eventually(t, func() bool { return at.MatchString(output.String()) }, time.Minute, 20*time.Millisecond, output)
	get := func(path string) string {
		r, err := http.Get(at.FindStringSubmatch(output.String())[1] + path)
		require.NoError(t, err)
		defer r.Body.Close()
		page, err := io.ReadAll(r.Body)
		require.NoError(t, err)
		return string(page)
	}
	page := get("/")
	for _, name := range []string{"north-eu", "north-eu-2", "away"} {
		assert.Contains(t, page, `<a href="/`+name+`/">`+name+`</a>`)
	}
	assert.Contains(t, page, "1 without an answer")
	assert.Contains(t, get("/north-eu-2/"), "--database north/eu", "commands lead to the same database")
	require.NoError(t, command.Process.Signal(syscall.SIGTERM))
	require.NoError(t, command.Wait(), output)
}

func TestConsoleNames(t *testing.T) {
	t.Parallel()
	taken := map[string]bool{"a-b": true, "a-b-2": true}
	for name, want := range map[string]string{"orders": "orders", "A_b": "a-b-3", "static": "database", "äöü": "database", "": "database", "-x-": "x", strings.Repeat("y", 60): strings.Repeat("y", 35)} {
		assert.Equal(t, want, consoleName(name, taken), name)
	}
}
