package framework_test

import (
	"context"
	"net/http"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/framework"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport/kafka"
	"github.com/millrace-go/millrace/transport/memory"
	"github.com/millrace-go/millrace/transport/pubsub"
)

type LabourCompleted struct {
	LabourID string `json:"labour_id"`
}

var Completed = framework.Topic[LabourCompleted]("labour.completed")

// A whole service. A request completes a labour and publishes an event; a handler records that the family must be notified. Each
// happens exactly once, whichever process is killed. Its configuration is
//
//	service: labour
//	broker: pubsub # or kafka, or memory
//	postgres: {migrate: true}
//
// Run "millrace dev" to start the database and the broker.
func Example() {
	serve := func(ctx context.Context) error {
		svc, err := framework.Open(ctx, "millrace.yaml", pubsub.Driver, kafka.Driver, memory.Driver)
		if err != nil {
			return err
		}
		if _, err := svc.Pool().Exec(ctx, `create table if not exists labour (id text primary key);
		create table if not exists notification (labour_id text not null)`); err != nil {
			return err
		}
		svc.HTTP().HandleFunc("POST /labours/{id}/complete", func(w http.ResponseWriter, r *http.Request) {
			id := r.PathValue("id")
			err := pgtx.Run(r.Context(), svc.Pool(), func(ctx context.Context, tx pgx.Tx) error {
				done, err := tx.Exec(ctx, `insert into labour values ($1) on conflict do nothing`, id)
				if err != nil || done.RowsAffected() == 0 { // the labour was completed before
					return err
				}
				return Completed.Publish(ctx, id, LabourCompleted{LabourID: id})
			})
			if err != nil {
				http.Error(w, "try again", http.StatusServiceUnavailable)
			}
		})
		err = framework.Handle(svc, "notify-family", Completed, func(ctx context.Context, e LabourCompleted) error {
			return pgtx.Queue(ctx, `insert into notification values ($1)`, e.LabourID)
		})
		if err != nil {
			return err
		}
		return svc.RunUntilSignal(ctx)
	}
	_ = serve
}
