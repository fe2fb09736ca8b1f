package idempotencykey_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/middleware/idempotencykey"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
)

// accountOf returns the account that authentication, which stands outside, has found.
func accountOf(r *http.Request) (string, error) {
	account, ok := r.Context().Value(accountKey{}).(string)
	if !ok {
		return "", errors.New("nobody is authenticated")
	}
	return account, nil
}

type accountKey struct{}

// An API that takes orders: the order, its event and the answer are one transaction. However often a client repeats the
// request, there is one of each.
func ExampleKeys_Middleware() {
	routes := func(pool *pgxpool.Pool, events *outbox.Publisher) (http.Handler, error) {
		keys, err := idempotencykey.New(pool, idempotencykey.Config{Scope: accountOf})
		if err != nil {
			return nil, err
		}
		mux := http.NewServeMux()
		mux.Handle("POST /orders", keys.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ctx := r.Context()
			var order struct{ ID, Article string }
			if err := json.NewDecoder(r.Body).Decode(&order); err != nil || order.ID == "" {
				http.Error(w, "want an order with an ID", http.StatusBadRequest) // rolled back, and stored
				return
			}
			tx, ok := pgtx.From(ctx)
			if !ok {
				http.Error(w, "no transaction", http.StatusInternalServerError) // rolled back, and not stored
				return
			}
			if _, err := tx.Exec(ctx, `insert into orders (id, article) values ($1, $2)`, order.ID, order.Article); err != nil {
				http.Error(w, "the order was not placed", http.StatusInternalServerError)
				return
			}
			placed := message.NewMessageWithContext(ctx, outbox.NewID(), []byte(order.ID))
			transport.SetKey(placed, order.ID)
			if err := events.Publish("order.placed", placed); err != nil {
				http.Error(w, "the order was not placed", http.StatusInternalServerError)
				return
			}
			w.Header().Set("Location", "/orders/"+order.ID)
			w.WriteHeader(http.StatusCreated) // sent once all of it is committed
		})))
		return mux, nil
	}
	_ = routes
}

// Beside the server, the days of stored answers come and go.
func ExampleKeys_Run() {
	serve := func(ctx context.Context, pool *pgxpool.Pool, api http.Handler) error {
		if err := idempotencykey.Migrate(ctx, pool, ""); err != nil {
			return err
		}
		keys, err := idempotencykey.New(pool, idempotencykey.Config{Scope: idempotencykey.Shared})
		if err != nil {
			return err
		}
		server := &http.Server{Addr: ":8080", Handler: keys.Middleware(api)}
		ended := make(chan error, 1)
		go func() { ended <- server.ListenAndServe() }()
		_ = keys.Run(ctx) // until ctx ends
		if err := server.Shutdown(context.WithoutCancel(ctx)); err != nil {
			return err
		}
		return <-ended
	}
	_ = serve
}
