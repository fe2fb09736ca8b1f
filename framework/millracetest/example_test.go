package millracetest_test

import (
	"context"
	"fmt"
	"regexp"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/framework"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/framework/millracetest"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
)

// printing replaces a *testing.T in an example: it prints the failure, without the numbers of point and line.
type printing struct{ testing.TB }

func (printing) Errorf(format string, args ...any) {
	fmt.Println(regexp.MustCompile(`point \d+ of \d+|\.go:\d+`).ReplaceAllStringFunc(fmt.Sprintf(format, args...), func(found string) string {
		return regexp.MustCompile(`\d+`).ReplaceAllString(found, "N")
	}))
}

// A handler that sends a text without the ledger. In a test of yours, t is the *testing.T.
func ExampleRun() {
	t := devtest.Example()
	defer t.End()
	event, err := Completed.Message(t.Context(), "7", LabourCompleted{LabourID: "7"})
	if err != nil {
		panic(err)
	}
	millracetest.Run(printing{t}, func(p *millracetest.Process) error {
		return framework.Handle(p.Service, "tell-family", Completed, func(ctx context.Context, e LabourCompleted) error {
			if err := p.Effect("the SMS to the family of "+e.LabourID, ""); err != nil { // sent by a fake of the provider's client
				return err
			}
			return pgtx.Queue(ctx, `update labour set told = told + 1 where id = $1`, e.LabourID)
		})
	}, event, millracetest.Tables(`create table labour (id text primary key, told int not null default 0); insert into labour values ('7')`))
	// Output:
	// millracetest: point N of N: the process dies before statement 5 of 6 (update labour set told = told + 1 where id = $1):
	//     example_test.go:N: the SMS to the family of 7 happened twice, and without a fault once: the call is outside of the ledger: make it in effect.Once, or with an idempotency key of the event's that the provider honours
	// repeat it alone: go test -run '^Example$' -millracetest.point 3
}

func ExamplePublished() {
	t := devtest.Example() // in your tests, use the *testing.T
	defer t.End()
	pool, schema := t.Database()
	if err := outbox.Migrate(t.Context(), pool, schema); err != nil {
		panic(err)
	}
	events, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: schema})
	if err != nil {
		panic(err)
	}
	err = pgtx.Run(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		msg, err := Completed.Message(ctx, "7", LabourCompleted{LabourID: "7"})
		if err != nil {
			return err
		}
		if err := events.Publish(Completed.Name(), msg); err != nil {
			return err
		}
		found := millracetest.Published(t, tx, Completed, LabourCompleted{LabourID: "7"})
		fmt.Println(len(found), found[0].UUID == msg.UUID)
		return nil
	})
	fmt.Println(err)
	// Output:
	// 1 true
	// <nil>
}
