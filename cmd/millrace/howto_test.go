package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// howToPrelude declares what the pieces of code of the how-to pages leave out.
const howToPrelude = `package main

import (
	"context"
	"database/sql"

	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
	"github.com/millrace-go/millrace/transport/pubsub"
)

func main() {}

var _ = []any{cqrs.JSONMarshaler{}, middleware.Recoverer, claim.New, outbox.NewID, kafka.New, pubsub.New, transport.SetKey, pgx.ErrNoRows}

`

// Each piece of Go on the how-to pages compiles, in a function of its own, but for variables that nobody uses there.
func TestCodeOfTheHowToPages(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob("../../docs/how-to/*.md")
	require.NoError(t, err)
	program, pieces := strings.Builder{}, 0
	program.WriteString(howToPrelude)
	for _, page := range pages {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, m := range regexp.MustCompile("(?ms)^ *```go\n(.*?)^ *```$").FindAllStringSubmatch(string(text), -1) {
			pieces++
			tx := "tx pgx.Tx"
			if strings.Contains(m[1], "pgtx.WithSQL(") {
				tx = "tx *sql.Tx"
			}
			fmt.Fprintf(&program, `func _(ctx context.Context, pool *pgxpool.Pool, %s, payload []byte, orderID, project string, brokers []string,
	router *message.Router, subscriber message.Subscriber, publisher, events message.Publisher, notify message.HandlerFunc,
) {
	var err error
	{
		%s
	}
	_ = err
}

`, tx, m[1])
		}
	}
	require.Greater(t, pieces, 6)
	out, err := outside(t, program.String(), "build", "-mod=mod", "-gcflags=-e", "-o", os.DevNull, ".")
	require.Error(t, err)
	require.Contains(t, out, "declared and not used", "as they are")
	for line := range strings.Lines(out) {
		assert.True(t, strings.HasPrefix(line, "#") || strings.Contains(line, "declared and not used"), line)
	}
}
