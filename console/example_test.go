package console_test

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/console"
)

// A service mounts the console behind its own login.
func ExampleNew() {
	pool, err := pgxpool.New(context.Background(), "postgres://operator@db/orders")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer pool.Close()
	page, err := console.New(console.Config{
		Databases: []console.Database{{Name: "orders", Pool: pool}},
		Prefix:    "/console",
		Mask:      []string{"email", "card"},
		Authorize: func(r *http.Request) (console.Rights, string) {
			user, _, ok := r.BasicAuth() // which your login has checked
			if !ok {
				return 0, ""
			}
			return console.Look | console.Act, user
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	mux := http.NewServeMux()
	mux.Handle("/console/", page)
	server := &http.Server{Addr: "127.0.0.1:8026", Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	server.RegisterOnShutdown(page.Close)
	fmt.Println(server.ListenAndServe())
}

func ExampleRights() {
	fmt.Println(console.Look)
	fmt.Println(console.Look | console.Payloads | console.Act)
	// Output:
	// may look, payloads hidden
	// may act
}
