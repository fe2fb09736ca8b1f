package docs

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Each program that the documentation names has a test that calls Commands, and each test that it names a go test for.
func TestCommands(t *testing.T) {
	t.Parallel()
	r, err := read(os.DirFS("../.."))
	require.NoError(t, err)
	require.Contains(t, r.checked, "./cmd/millrace")
	r.eachCommand(func(at string, c command) {
		assert.True(t, r.checked[c.pkg], "%s: no test of %s calls docs.Commands", at, c.pkg)
	})
	for name, d := range r.documents {
		for _, line := range d.shell {
			assert.Empty(t, r.noTests(line.text), "%s:%d: %s", name, line.line, line.text)
		}
	}
}

func TestCommandsWithoutTestsAreFound(t *testing.T) {
	t.Parallel()
	r := &repository{tests: map[string]map[string]bool{
		"a/x_test.go": {"TestOne": true}, "a/b/x_test.go": {"TestTwo": true, "ExampleTwo": true},
	}}
	for line, want := range map[string]string{
		"go test ./...":                           "",
		"go test -race ./a -run 'TestOne'":        "",
		"go test ./a/b -run 'TestT|^ExampleTwo$'": "",
		"go test ./a/... -run TestTwo":            "",
		"go test ./a -run 'TestOne|TestTwo'":      "./a has no test that matches TestTwo",
		"go test ./c -run Test":                   "./c has no test that matches Test",
		"millrace dev -- go test ./a -run Testis": "./a has no test that matches Testis",
	} {
		assert.Equal(t, want, r.noTests(line), line)
	}
}

func TestUnknownCommandsAreFound(t *testing.T) {
	t.Parallel()
	help := func(args ...string) (string, error) {
		return map[string]string{
			"":             "Usage:\n\nAvailable Commands:\n  dev         Run\n  outbox      Look\n\nFlags:\n  -h, --help   help\n",
			"dev":          "usage: dev\n\n  -services string\n    \twhich\n",
			"outbox":       "Usage:\n\nAvailable Commands:\n  retry       Again\n",
			"outbox retry": "Usage:\n\nFlags:\n  -o, --output string   how\n      --key string   a key\n\nGlobal Flags:\n      --dsn string   the database\n",
		}[strings.Join(args, " ")], nil
	}
	for line, want := range map[string]string{
		`millrace outbox retry K --key "a --b" --dsn=x -o json # --no`: "",
		"go run ./cmd/millrace dev -services x -- go test -race":       "",
		"A=b millrace outbox retry 0198-… [--key K]":                   "",
		"`millrace outbox` and millrace":                               "",
		"$ millrace <command>":                                         "",
		"millrace inbox":                                               `there is no command "inbox"`,
		"cd x && millrace outbox try":                                  `there is no command "outbox try"`,
		"millrace outbox retry --keys a":                               `./cmd/millrace outbox retry has no flag "keys"`,
		"millrace dev -service x":                                      `./cmd/millrace dev has no flag "service"`,
	} {
		found := ""
		for _, c := range commands(line) {
			if err := c.check(help); err != nil {
				found = err.Error()
			}
		}
		assert.Equal(t, want, found, line)
	}
}
