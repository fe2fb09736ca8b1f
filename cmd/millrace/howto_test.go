package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
)

// howToPrelude declares what the pieces of code of the how-to pages leave out.
const howToPrelude = `package main

import (
	"context"
	"database/sql"
	"errors"
	"net/http"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/framework"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/outbox/fleet"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
	"github.com/millrace-go/millrace/transport/pubsub"
)

func main() {}

var _ = []any{cqrs.JSONMarshaler{}, middleware.Recoverer, claim.New, outbox.NewID, kafka.New, pubsub.New, transport.SetKey, pgx.ErrNoRows}

`

// howToTests begins the file of the pages' tests.
const howToTests = `package main

import (
	"context"
	"net/url"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework"
	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/memory"
)

`

// howToService is the tutorial's, as far as the pages use it.
const howToService = `
type LabourCompleted struct{ LabourID, Phone string }

var Completed = framework.Topic[LabourCompleted]("labour.completed")

func addLabours(ctx context.Context, svc *framework.Service) error {
	_, err := svc.Pool().Exec(ctx, "create table if not exists labour (id text primary key, told int not null default 0)")
	return err
}

func addNotify(svc *framework.Service) error {
	return framework.Handle(svc, "notify-family", Completed, notifyFamily)
}

func notifyFamily(ctx context.Context, e LabourCompleted) error {
	return pgtx.Queue(ctx, "update labour set told = told + 1 where id = $1", e.LabourID)
}
`

// howToOrders is what single pages take for granted.
const howToOrders = `
type OrderV2 struct{ OrderID, Currency string }

func addCurrency(o struct{ OrderID string }) (OrderV2, error) { return OrderV2{OrderID: o.OrderID, Currency: "EUR"}, nil }

var OrderPlaced, OrderPaid = framework.Topic[OrderV2]("orders.placed"), framework.Topic[OrderV2]("orders.paid")

func authenticated(h http.Handler) http.Handler { return h }
`

// howToCode matches a piece of Go on a page.
var howToCode = regexp.MustCompile("(?ms)^ *```go\n(.*?)^ *```$")

// Each piece of Go on the how-to pages compiles, in a function of its own, but for variables that nobody uses there. Tests
// are left to TestTestsOfTheHowToPages.
func TestCodeOfTheHowToPages(t *testing.T) {
	t.Parallel()
	var program strings.Builder
	program.WriteString(howToPrelude + howToService + howToOrders)
	pieces := 0
	for _, piece := range howToPieces(t) {
		if isTest(piece) {
			continue
		}
		pieces++
		tx := "tx pgx.Tx"
		if strings.Contains(piece, "pgtx.WithSQL(") {
			tx = "tx *sql.Tx"
		}
		fmt.Fprintf(&program, `func _(ctx context.Context, pool, control *pgxpool.Pool, svc *framework.Service, %s, payload []byte, orderID, labourID, reminderID, project string,
	brokers []string, router *message.Router, subscriber message.Subscriber, publisher, events message.Publisher, notify message.HandlerFunc,
) {
	var err error
	{
		%s
	}
	_ = err
}

`, tx, piece)
	}
	require.Greater(t, pieces, 6)
	out, err := outside(t, program.String(), "build", "-mod=mod", "-gcflags=-e", "-o", os.DevNull, ".")
	require.Error(t, err)
	require.Contains(t, out, "declared and not used", "as they are")
	for line := range strings.Lines(out) {
		assert.True(t, strings.HasPrefix(line, "#") || strings.Contains(line, "declared and not used"), line)
	}
}

// The tests on the how-to pages pass.
func TestTestsOfTheHowToPages(t *testing.T) {
	t.Parallel()
	tests := slices.DeleteFunc(howToPieces(t), func(piece string) bool { return !isTest(piece) })
	require.Len(t, tests, 2)
	out, err := outsideIn(t, map[string]string{"service_test.go": howToTests + howToService + strings.Join(tests, "\n")}, devtest.Start(t, devstack.Postgres).Env(),
		"test", "-mod=mod", "-v", "-count=1", ".")
	require.NoError(t, err, out)
	assert.Equal(t, len(tests), strings.Count(out, "--- PASS: Test"), out)
}

func isTest(piece string) bool { return strings.HasPrefix(piece, "func Test") }

const (
	// attackPage has whole files, which TestAttackPage runs.
	attackPage = "../../docs/how-to/attack.md"
	// mskPage needs modules of AWS, which this one does not. The transport's TestDriverWithTokens runs such a driver.
	mskPage = "../../docs/how-to/msk-iam.md"
)

// The page's test fails as the page says, and passes when the handler is mended as it says.
func TestAttackPage(t *testing.T) {
	t.Parallel()
	devtest.Long(t)
	text, err := os.ReadFile(attackPage)
	require.NoError(t, err)
	pieces := howToCode.FindAllStringSubmatch(string(text), -1)
	require.Len(t, pieces, 3)
	attacked := func(handler string) (string, error) {
		files := map[string]string{"notify.go": handler, "notify_test.go": pieces[1][1]}
		return outsideIn(t, files, devtest.Start(t, devstack.Postgres).Env(), "test", "-mod=mod", "-count=1", ".")
	}
	broken := pieces[0][1]
	out, err := attacked(broken)
	require.Error(t, err)
	said := regexp.MustCompile("(?ms)^```\n(millracetest: .*?)^```$").FindSubmatch(text)
	require.NotNil(t, said)
	for line := range strings.Lines(string(said[1])) {
		line, _, _ = strings.Cut(strings.TrimSpace(line), "…") // what differs from machine to machine
		assert.Contains(t, out, line)
	}

	mended := strings.Replace(broken, "\t\tif err := send(ctx, sms, e.LabourID, \"\"); err != nil {\n\t\t\treturn err\n\t\t}\n", pieces[2][1], 1)
	mended = strings.Replace(mended, "\"github.com/millrace-go/millrace/pgtx\"", "\"github.com/millrace-go/millrace/middleware/effect\"\n\t\"github.com/millrace-go/millrace/pgtx\"", 1)
	out, err = attacked(mended)
	require.NoError(t, err, out)
}

func howToPieces(t *testing.T) (pieces []string) {
	t.Helper()
	pages, err := filepath.Glob("../../docs/how-to/*.md")
	require.NoError(t, err)
	for _, page := range pages {
		if page == attackPage || page == mskPage {
			continue
		}
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, m := range howToCode.FindAllStringSubmatch(string(text), -1) {
			pieces = append(pieces, m[1])
		}
	}
	return pieces
}
