package millracetest_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework"
	"github.com/millrace-go/millrace/framework/millracetest"
	"github.com/millrace-go/millrace/middleware/effect"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
)

// failing records the failure instead of failing the test.
type failing struct {
	testing.TB
	text string
}

func (f *failing) Errorf(format string, args ...any) { f.text += fmt.Sprintf(format, args...) }

// lineOf returns the line of this file with the mark, in the form of a failure.
func lineOf(t *testing.T, mark string) string {
	t.Helper()
	text, err := os.ReadFile("wrong_test.go")
	require.NoError(t, err)
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		if strings.HasSuffix(strings.TrimSpace(line), "// "+mark) {
			return fmt.Sprintf("wrong_test.go:%d: ", n)
		}
	}
	t.Fatalf("no line is marked %q", mark)
	return ""
}

func TestWrongHandlersAreCaught(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		of   author
		opts []millracetest.Option
		mark string // of the line that the failure must name; "" where it cannot be known
		want string // what else the failure says
	}{
		"a write through another connection": {of: func(p *millracetest.Process) func(context.Context, LabourCompleted) error {
			return func(ctx context.Context, e LabourCompleted) error {
				_, err := p.Service.Pool().Exec(ctx, `update labour set told = told + 1 where id = $1`, e.LabourID) // another connection
				return err
			}
		}, mark: "another connection", want: "outside of the claim's transaction"},
		"an effect outside of the ledger": {of: func(p *millracetest.Process) func(context.Context, LabourCompleted) error {
			return func(ctx context.Context, e LabourCompleted) error {
				if err := exec(ctx, `update labour set told = told + 1 where id = $1`, e.LabourID); err != nil {
					return err
				}
				return p.Effect("the SMS to "+e.LabourID, "") // no ledger
			}
		}, mark: "no ledger", want: "the SMS to 7 happened twice"},
		"a request before the commit": {of: func(p *millracetest.Process) func(context.Context, LabourCompleted) error {
			return func(ctx context.Context, e LabourCompleted) error {
				if _, err := send(ctx, p.HTTP, e.LabourID, ""); err != nil { // request
					return err
				}
				return exec(ctx, `update labour set told = told + 1 where id = $1`, e.LabourID)
			}
		}, mark: "request", want: "happened twice"},
		"a request after the commit": {of: func(p *millracetest.Process) func(context.Context, LabourCompleted) error {
			return func(ctx context.Context, e LabourCompleted) error {
				pgtx.AfterCommit(ctx, func() { _, _ = send(ctx, p.HTTP, e.LabourID, "") })
				return exec(ctx, `update labour set told = told + 1 where id = $1`, e.LabourID)
			}
		}, want: "happened never, and without a fault once"},
		"an event in a transaction of its own": {of: func(p *millracetest.Process) func(context.Context, LabourCompleted) error {
			return func(ctx context.Context, e LabourCompleted) error {
				return pgtx.Run(pgtx.Detached(ctx), p.Service.Pool(), func(ctx context.Context, _ pgx.Tx) error { // own transaction
					return Told.Publish(ctx, e.LabourID, FamilyTold{LabourID: e.LabourID})
				})
			}
		}, mark: "own transaction", want: "the events on family.told"},
		"an event past the outbox": {of: func(p *millracetest.Process) func(context.Context, LabourCompleted) error {
			return func(ctx context.Context, e LabourCompleted) error {
				broker, err := p.Service.Transport().Publisher()
				if err != nil {
					return err
				}
				return broker.Publish("family.told", message.NewMessage(outbox.NewID(), []byte(e.LabourID))) // broker
			}
		}, mark: "broker", want: "past the outbox"},
		"state in memory": {of: func(*millracetest.Process) func(context.Context, LabourCompleted) error {
			told := 0
			return func(ctx context.Context, e LabourCompleted) error {
				told++
				return exec(ctx, `update labour set told = $2 where id = $1`, e.LabourID, told) // memory
			}
		}, mark: "memory", want: `"told":2`},
		"duplicates that are known in memory": {of: func(*millracetest.Process) func(context.Context, LabourCompleted) error {
			seen := map[string]bool{}
			return func(ctx context.Context, e LabourCompleted) error {
				if id := framework.EventFrom(ctx).ID; seen[id] {
					return nil
				} else {
					seen[id] = true
				}
				return exec(ctx, `update labour set told = told + 1 where id = $1`, e.LabourID) // seen
			}
		}, mark: "seen", want: `"told":0`},
		"time as data": {of: func(*millracetest.Process) func(context.Context, LabourCompleted) error {
			return func(ctx context.Context, e LabourCompleted) error {
				return exec(ctx, `update labour set note = $2 where id = $1`, e.LabourID, time.Now().String()) // time
			}
		}, mark: "time", want: "another one at each try"},
		"a random ID": {of: func(*millracetest.Process) func(context.Context, LabourCompleted) error {
			return func(ctx context.Context, e LabourCompleted) error {
				return exec(ctx, `insert into labour (id) values ($1)`, uuid.NewString()) // random ID
			}
		}, mark: "random ID", want: "another one at each try"},
		"a random ID in an event": {of: func(*millracetest.Process) func(context.Context, LabourCompleted) error {
			return func(ctx context.Context, e LabourCompleted) error {
				return Told.Publish(ctx, e.LabourID, FamilyTold{LabourID: e.LabourID, Note: uuid.NewString()})
			}
		}, want: "the events on family.told"},
		"an effect with a random key": {of: func(p *millracetest.Process) func(context.Context, LabourCompleted) error {
			return func(ctx context.Context, e LabourCompleted) error {
				return effect.Once(ctx, "sms:"+uuid.NewString(), func(ctx context.Context, key string) error { // random key
					_, err := send(ctx, p.HTTP, e.LabourID, key)
					return err
				}, effect.Idempotent())
			}
		}, mark: "random key", want: "make the key of the event's ID"},
		"a read and a write on another connection": {of: func(p *millracetest.Process) func(context.Context, LabourCompleted) error {
			return func(ctx context.Context, e LabourCompleted) error {
				var told int
				if err := p.Service.Pool().QueryRow(ctx, `select told from labour where id = $1`, e.LabourID).Scan(&told); err != nil {
					return err
				}
				_, err := p.Service.Pool().Exec(ctx, `update labour set told = $2 where id = $1`, e.LabourID, told+1) // read, then write
				return err
			}
		}, mark: "read, then write", want: "outside of the claim's transaction"},
		"a commit in the middle": {of: func(p *millracetest.Process) func(context.Context, LabourCompleted) error {
			return func(ctx context.Context, e LabourCompleted) error {
				for range 2 {
					if err := pgx.BeginFunc(ctx, p.Service.Pool(), func(tx pgx.Tx) error { // two transactions
						_, err := tx.Exec(ctx, `update labour set told = told + 1 where id = $1`, e.LabourID)
						return err
					}); err != nil {
						return err
					}
				}
				return nil
			}
		}, mark: "two transactions", want: "outside of the claim's transaction"},
		"a commit of the claim's transaction": {of: func(*millracetest.Process) func(context.Context, LabourCompleted) error {
			return func(ctx context.Context, e LabourCompleted) error {
				if err := exec(ctx, `update labour set told = told + 1 where id = $1`, e.LabourID); err != nil {
					return err
				}
				tx, _ := pgtx.From(ctx)
				return tx.Commit(ctx)
			}
		}, want: pgtx.ErrManaged.Error()},
		"an error of PostgreSQL that is swallowed": {of: func(p *millracetest.Process) func(context.Context, LabourCompleted) error {
			return func(ctx context.Context, e LabourCompleted) error {
				_ = pgtx.Run(ctx, p.Service.Pool(), func(ctx context.Context, tx pgx.Tx) error { // swallowed here
					_, err := tx.Exec(ctx, `update labour set note = 'told' where id = $1`, e.LabourID)
					return err
				})
				return exec(ctx, `update labour set told = told + 1 where id = $1`, e.LabourID)
			}
		}, mark: "swallowed here", want: "must return the error of this statement"},
		"an error of a provider that is swallowed": {of: func(p *millracetest.Process) func(context.Context, LabourCompleted) error {
			return func(ctx context.Context, e LabourCompleted) error {
				_, _ = send(ctx, p.HTTP, e.LabourID, framework.EventFrom(ctx).ID) // swallowed
				return nil
			}
		}, mark: "swallowed", want: "it is lost: the handler must return its error"},
		"an error": {of: func(*millracetest.Process) func(context.Context, LabourCompleted) error {
			return func(ctx context.Context, e LabourCompleted) error {
				return exec(ctx, `update labor set told = 1`) // misspelt
			}
		}, mark: "misspelt", want: "without a fault: the handler fails behind "},
	} {
		t.Run(name, func(t *testing.T) {
			f := &failing{TB: t}
			attack(f, c.of, c.opts...)
			t.Log(f.text)
			require.Contains(t, f.text, c.want)
			if c.mark != "" {
				require.Contains(t, f.text, lineOf(t, c.mark))
			}
		})
	}
}
