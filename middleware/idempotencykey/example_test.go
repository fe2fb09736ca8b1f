package idempotencykey_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/idempotencykey"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
)

// An API that takes orders: the order, its event and the answer are one transaction. However often a client repeats the
// request, there is one of each.
func ExampleKeys_Middleware() {
	t := devtest.Example()
	defer t.End()
	pool, schema := t.Database()
	for _, migrate := range []func(context.Context, pgtx.DB, string) error{outbox.Migrate, idempotencykey.Migrate} {
		if err := migrate(t.Context(), pool, schema); err != nil {
			panic(err)
		}
	}
	if _, err := pool.Exec(t.Context(), `create table orders (id text, article text)`); err != nil {
		panic(err)
	}
	events, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: schema})
	if err != nil {
		panic(err)
	}

	keys, err := idempotencykey.New(pool, idempotencykey.Config{
		Service: "shop",
		Schema:  schema,
		Scope:   func(r *http.Request) (string, error) { return r.Header.Get("Account"), nil }, // for you: what authentication found
	})
	if err != nil {
		panic(err)
	}
	handler := keys.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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
	}))

	for range 2 {
		request := httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader(`{"ID": "o-7", "Article": "anvil"}`))
		request.Header.Set("Account", "wile")
		request.Header.Set("Idempotency-Key", "a-key-of-the-client")
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, request)
		fmt.Println(answer.Code, answer.Header().Get("Location"))
	}
	var orders, staged int
	if err := pool.QueryRow(t.Context(), `select (select count(*) from orders), (select count(*) from outbox)`).
		Scan(&orders, &staged); err != nil {
		panic(err)
	}
	fmt.Println(orders, "order,", staged, "event")
	// Output:
	// 201 /orders/o-7
	// 201 /orders/o-7
	// 1 order, 1 event
}

// Beside the server, the days of stored answers come and go.
func ExampleKeys_Run() {
	serve := func(ctx context.Context, pool *pgxpool.Pool, api http.Handler) error {
		if err := idempotencykey.Migrate(ctx, pool, ""); err != nil {
			return err
		}
		keys, err := idempotencykey.New(pool, idempotencykey.Config{Service: "shop", Scope: idempotencykey.Shared})
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
