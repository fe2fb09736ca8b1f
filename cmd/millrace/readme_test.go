package main

import (
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/internal/docs"
)

// What a newcomer does: the README's two files in a folder that knows nothing of this repository but its module, on what
// "millrace dev" starts, and on another broker by another word in one line.
func TestServiceOfTheREADME(t *testing.T) {
	t.Parallel()
	program, configuration := snippet(t, "go"), snippet(t, "yaml")
	require.LessOrEqual(t, strings.Count(program+configuration, "\n"), 57, "lines")
	service := buildOutside(t, program)
	for broker, needs := range map[string][]devstack.Service{
		"pubsub": {devstack.Postgres, devstack.PubSub},
		"kafka":  {devstack.Postgres, devstack.Kafka},
		"memory": {devstack.Postgres},
	} {
		t.Run(broker, func(t *testing.T) {
			t.Parallel()
			folder := t.TempDir()
			before, after, found := strings.Cut(configuration, "broker: pubsub")
			require.True(t, found)
			write(t, folder, "millrace.yaml", before+"broker: "+broker+after)
			names := make([]string, len(needs))
			for i, n := range needs {
				names[i] = string(n)
			}
			command, output, schema := devOn(t, needs, "--services", strings.Join(names, ","), "--", service)
			command.Dir = folder
			require.NoError(t, command.Start())
			t.Cleanup(func() {
				_ = command.Process.Signal(syscall.SIGTERM) // nothing is left, whatever fails
				_ = command.Wait()
			})
			output.await(t, "service runs")
			assert.Regexp(t, `service runs.* broker=`+broker+` `, output.String())
			address := regexp.MustCompile(`service runs.* address=(\S+)`).FindStringSubmatch(output.String())
			require.NotNil(t, address, output.String())
			for range 2 {
				answer, err := http.Post("http://"+address[1]+"/labours/"+schema+"/complete", "", http.NoBody)
				require.NoError(t, err)
				require.NoError(t, answer.Body.Close())
				assert.Equal(t, http.StatusOK, answer.StatusCode)
			}
			output.await(t, "telling the family of "+schema+"\n")
			require.NoError(t, command.Process.Signal(syscall.SIGTERM))
			require.NoError(t, command.Wait(), output)
			told := 0
			require.NoError(t, devtest.Pool(t).QueryRow(t.Context(), `select told from `+schema+`.labour where id = $1`, schema).Scan(&told))
			assert.Equal(t, 1, told)
		})
	}
}

// snippet is the first block of the language in the README's chapter about a service.
func snippet(t *testing.T, language string) string {
	t.Helper()
	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	_, chapter, _ := strings.Cut(string(readme), "\n## A service\n")
	_, code, _ := strings.Cut(chapter, "\n```"+language+"\n")
	code, _, found := strings.Cut(code, "```\n")
	require.True(t, found, "a block of %s", language)
	return code
}

// partsPrelude declares what the pieces of code in docs/parts.md leave out.
const partsPrelude = `package main

import (
	"context"
	"crypto/tls"
	"net/http"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/effect"
	"github.com/millrace-go/millrace/middleware/idempotencykey"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
	"github.com/millrace-go/millrace/transport/pubsub"
)

type Receipt struct{}

var (
	ctx               context.Context
	pool              *pgxpool.Pool
	payload           []byte
	id, text, account string
	sent, msg         *message.Message
	router            *message.Router
	subscriber        message.Subscriber
	events            message.Publisher
	c                 *claim.Claim
	price             message.HandlerFunc
	createOrder       http.Handler
	tenant            func(*http.Request) (string, error)
	provider          interface{ Send(context.Context, string, string) (Receipt, error) }
)

func main() {
`

// Each piece of code in docs/parts.md compiles, but for variables that nobody uses there.
func TestPartsCompile(t *testing.T) {
	t.Parallel()
	var program strings.Builder
	program.WriteString(partsPrelude)
	parts, err := os.ReadFile("../../docs/parts.md")
	require.NoError(t, err)
	pieces := strings.Split(string(parts), "\n```go\n")[1:]
	require.Greater(t, len(pieces), 8)
	for _, piece := range pieces {
		piece, _, _ = strings.Cut(piece, "```\n")
		program.WriteString("\t{\n" + piece + "\t}\n")
	}
	out, err := outside(t, program.String()+"}\n", "build", "-mod=mod", "-gcflags=-e", "-o", os.DevNull, ".")
	require.Error(t, err)
	require.Contains(t, out, "declared and not used", "as they are")
	for line := range strings.Lines(out) {
		assert.True(t, strings.HasPrefix(line, "#") || strings.Contains(line, "declared and not used"), line)
	}
}

// withoutDWARF has the go command link in half of the time. A test binary is linked so too.
const withoutDWARF = "GOFLAGS=-ldflags=-w"

// buildOutside builds a program in a module of its own.
func buildOutside(t *testing.T, program string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "service")
	out, err := outside(t, program, "build", "-mod=mod", "-o", path, ".")
	require.NoError(t, err, out)
	return path
}

// outside runs the go command on a program in a module of its own. The module of this repository, which is not published, is
// found in its folder, and what that needs in the versions that it needs.
func outside(t *testing.T, program string, args ...string) (out string, err error) {
	t.Helper()
	return outsideIn(t, map[string]string{"main.go": program}, nil, args...)
}

// outsideIn is outside for files of other names, with more variables in the environment.
func outsideIn(t *testing.T, files map[string]string, env []string, args ...string) (out string, err error) {
	t.Helper()
	folder := t.TempDir()
	repository, err := filepath.Abs("../..")
	require.NoError(t, err)
	sums, err := os.ReadFile("../../go.sum")
	require.NoError(t, err)
	write(t, folder, "go.sum", string(sums))
	for name, text := range files {
		write(t, folder, name, text)
	}
	const module = "github.com/millrace-go/millrace"
	for _, args := range [][]string{
		{"mod", "init", "labour"},
		{"mod", "edit", "-require=" + module + "@v0.0.0", "-replace=" + module + "=" + repository},
		args,
	} {
		command := exec.CommandContext(t.Context(), "go", args...)
		command.Dir = folder
		command.Env = append(append(os.Environ(), withoutDWARF, "GOWORK=off"), env...)
		var text []byte
		text, err = command.CombinedOutput()
		out = string(text)
	}
	return out, err
}

func write(t *testing.T, folder, name, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600))
}

// devOn is "millrace dev" on the tests' services, in a schema, a project and at an address of its own.
func devOn(t *testing.T, needs []devstack.Service, args ...string) (command *exec.Cmd, output *buffer, schema string) {
	t.Helper()
	stack := devtest.Start(t, needs...)
	schema = devtest.Schema(t)
	dsn, err := url.Parse(stack.PostgresDSN())
	require.NoError(t, err)
	query := dsn.Query()
	query.Set("search_path", schema)
	dsn.RawQuery = query.Encode()
	command, output = millrace(t, append([]string{"dev"}, args...)...)
	command.Env = append(command.Env, stack.Env()...)
	command.Env = append(command.Env,
		"MILLRACE_POSTGRES_DSN="+dsn.String(), "MILLRACE_POSTGRES_SCHEMA="+schema, "MILLRACE_HTTP_ADDRESS=127.0.0.1:0", "PUBSUB_PROJECT_ID="+devtest.Project(t))
	command.WaitDelay = time.Minute
	return command, output, schema
}

func TestDocumentedCommands(t *testing.T) {
	t.Parallel()
	docs.Commands(t, func(args []string, out io.Writer) { run(args, os.Stdin, out, out) })
}
