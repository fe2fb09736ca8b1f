package millracetest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/framework/millracetest"
	"github.com/millrace-go/millrace/middleware/effect"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
)

type LabourCompleted struct{ LabourID string }

type FamilyTold struct{ LabourID, Note string }

var (
	Completed = framework.Topic[LabourCompleted]("labour.completed")
	Told      = framework.Topic[FamilyTold]("family.told")
)

const labours = `create table labour (id text primary key, told int not null default 0, note text);
	insert into labour values ('7')`

// author returns a handler as a user would write it, given the process.
type author func(p *millracetest.Process) func(ctx context.Context, e LabourCompleted) error

func setup(of author) func(p *millracetest.Process) error {
	return func(p *millracetest.Process) error {
		return framework.Handle(p.Service, "tell-family", Completed, of(p))
	}
}

func attack(t testing.TB, of author, opts ...millracetest.Option) {
	t.Helper()
	event, err := Completed.Message(t.Context(), "7", LabourCompleted{LabourID: "7"})
	require.NoError(t, err)
	millracetest.Run(t, setup(of), event, append([]millracetest.Option{millracetest.Tables(labours)}, opts...)...)
}

// exec executes a statement in the claim's transaction.
func exec(ctx context.Context, sql string, args ...any) error {
	tx, _ := pgtx.From(ctx)
	_, err := tx.Exec(ctx, sql, args...)
	return err
}

// send is a provider's client.
func send(ctx context.Context, client *http.Client, id, key string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://sms.example/messages", strings.NewReader(`{"to":"family of `+id+`"}`))
	if err != nil {
		return "", err
	}
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	answer, err := client.Do(r)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	var receipt struct{ ID string }
	return receipt.ID, json.NewDecoder(answer.Body).Decode(&receipt)
}

func TestRightHandlersPass(t *testing.T) {
	t.Parallel()
	devtest.Long(t)
	for name, c := range map[string]struct {
		of   author
		opts []millracetest.Option
	}{
		"a lazy claim": {of: func(*millracetest.Process) func(context.Context, LabourCompleted) error {
			return func(ctx context.Context, e LabourCompleted) error {
				if err := exec(ctx, `update labour set told = told + 1 where id = $1`, e.LabourID); err != nil {
					return err
				}
				return Told.Publish(ctx, e.LabourID, FamilyTold{LabourID: e.LabourID})
			}
		}, opts: []millracetest.Option{millracetest.Config(func(cfg *framework.Config) { cfg.Claim.Lazy = true })}},
		"a delayed event": {of: func(p *millracetest.Process) func(context.Context, LabourCompleted) error {
			return func(ctx context.Context, e LabourCompleted) error {
				msg, err := Told.Message(ctx, e.LabourID, FamilyTold{LabourID: e.LabourID})
				if err != nil {
					return err
				}
				outbox.SetDeliverAfter(msg, time.Hour)
				return p.Service.Outbox().Publish(Told.Name(), msg)
			}
		}},
		"five statements, an event and a text": {of: func(p *millracetest.Process) func(context.Context, LabourCompleted) error {
			return func(ctx context.Context, e LabourCompleted) error {
				for i := range 4 {
					if err := exec(ctx, fmt.Sprintf(`update labour set told = told + %d where id = $1`, i), e.LabourID); err != nil {
						return err
					}
				}
				if err := effect.Once(ctx, "sms:"+framework.EventFrom(ctx).ID, func(ctx context.Context, key string) error {
					_, err := send(ctx, p.HTTP, e.LabourID, key)
					return err
				}, effect.Idempotent()); err != nil {
					return err
				}
				if err := Told.Publish(ctx, e.LabourID, FamilyTold{LabourID: e.LabourID}); err != nil {
					return err
				}
				return pgtx.Queue(ctx, `update labour set note = 'told' where id = $1`, e.LabourID)
			}
		}},
		"a read, then a write": {of: func(*millracetest.Process) func(context.Context, LabourCompleted) error {
			return func(ctx context.Context, e LabourCompleted) error {
				tx, _ := pgtx.From(ctx)
				var told int
				if err := tx.QueryRow(ctx, `select told from labour where id = $1 for update`, e.LabourID).Scan(&told); err != nil {
					return err
				}
				return exec(ctx, `update labour set told = $2 where id = $1`, e.LabourID, told+1)
			}
		}},
		"an effect whose provider is asked": {of: func(p *millracetest.Process) func(context.Context, LabourCompleted) error {
			return func(ctx context.Context, e LabourCompleted) error {
				sms := "the SMS to " + e.LabourID
				return effect.Once(ctx, "sms:"+framework.EventFrom(ctx).ID, func(context.Context, string) error { return p.Effect(sms, "") },
					effect.Reconcile(func(context.Context, effect.Intent) (effect.Outcome, error) {
						if p.Happened(sms) {
							return effect.WasDone(nil), nil
						}
						return effect.WasNotDone(), nil
					}))
			}
		}},
		"an effect with a response, of a provider that honours keys": {of: func(p *millracetest.Process) func(context.Context, LabourCompleted) error {
			return func(ctx context.Context, e LabourCompleted) error {
				receipt, err := effect.Value(ctx, "sms:"+framework.EventFrom(ctx).ID, func(ctx context.Context, key string) (string, error) {
					return send(ctx, p.HTTP, e.LabourID, key)
				}, effect.Idempotent())
				if err != nil {
					return err
				}
				return exec(ctx, `update labour set note = $2 where id = $1`, e.LabourID, receipt)
			}
		}, opts: []millracetest.Option{millracetest.Provider(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = fmt.Fprintf(w, `{"ID":%q}`, "receipt "+r.Header.Get("Idempotency-Key"))
		}))}},
		"a response that a person adds": {of: func(p *millracetest.Process) func(context.Context, LabourCompleted) error {
			return func(ctx context.Context, e LabourCompleted) error {
				receipt, err := effect.Value(ctx, "sms:"+framework.EventFrom(ctx).ID, func(ctx context.Context, _ string) (string, error) {
					return send(ctx, p.HTTP, e.LabourID, "")
				})
				if err != nil {
					return err
				}
				return exec(ctx, `update labour set note = $2 where id = $1`, e.LabourID, receipt)
			}
		}},
		"a provider that makes one effect of an event's calls": {of: func(p *millracetest.Process) func(context.Context, LabourCompleted) error {
			return func(ctx context.Context, e LabourCompleted) error {
				if _, err := send(ctx, p.HTTP, e.LabourID, framework.EventFrom(ctx).ID); err != nil {
					return err
				}
				return exec(ctx, `update labour set told = told + 1 where id = $1`, e.LabourID)
			}
		}},
		"values that the database makes": {of: func(*millracetest.Process) func(context.Context, LabourCompleted) error {
			return func(ctx context.Context, e LabourCompleted) error {
				tx, _ := pgtx.From(ctx)
				var id int64
				if err := tx.QueryRow(ctx, `insert into letter (labour_id) values ($1) returning id`, e.LabourID).Scan(&id); err != nil {
					return err
				}
				return exec(ctx, `insert into page (letter_id, number) values ($1, 1)`, id)
			}
		}, opts: []millracetest.Option{millracetest.Tables(`
			create table letter (id bigserial primary key, labour_id text not null, at timestamptz not null default now(), token uuid default gen_random_uuid());
			create table page (letter_id bigint references letter, number int)`)}},
		"a time that is ignored": {of: func(*millracetest.Process) func(context.Context, LabourCompleted) error {
			return func(ctx context.Context, e LabourCompleted) error {
				return exec(ctx, `update labour set told = told + 1, note = $2 where id = $1`, e.LabourID, time.Now().String())
			}
		}, opts: []millracetest.Option{millracetest.Ignore("labour.note")}},
		"a nested transaction": {of: func(p *millracetest.Process) func(context.Context, LabourCompleted) error {
			return func(ctx context.Context, e LabourCompleted) error {
				return pgtx.Run(ctx, p.Service.Pool(), func(ctx context.Context, tx pgx.Tx) error {
					_, err := tx.Exec(ctx, `update labour set told = told + 1 where id = $1`, e.LabourID)
					return err
				})
			}
		}},
		"an idempotent write outside of the transaction": {of: func(p *millracetest.Process) func(context.Context, LabourCompleted) error {
			return func(ctx context.Context, e LabourCompleted) error {
				if _, err := p.Service.Pool().Exec(ctx, `insert into seen values ($1) on conflict do nothing`, framework.EventFrom(ctx).ID); err != nil {
					return err
				}
				return exec(ctx, `update labour set told = told + 1 where id = $1`, e.LabourID)
			}
		}, opts: []millracetest.Option{millracetest.Tables(`create table seen (event_id text primary key)`)}},
	} {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			attack(t, c.of, c.opts...)
			t.Log(time.Since(began))
		})
	}
}
