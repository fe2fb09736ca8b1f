package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"

	"github.com/millrace-go/millrace/console"
	"github.com/millrace-go/millrace/examples/internal/stage"
)

// openConsole serves the operator's page on loopback until stop is called, and prints its address. The page shows payloads, which are
// made up here. It changes nothing, because the verdict counts what the services did.
func openConsole(ctx context.Context, s *stage.Stage, logs io.Writer) (func(), error) {
	page, err := console.New(console.Config{
		Databases: []console.Database{{Name: "quickstart", Pool: s.Pool, Schema: s.Config.Schema}},
		Authorize: console.Loopback(console.Look|console.Payloads, "quickstart"),
		Logger:    slog.New(slog.NewTextHandler(logs, nil)),
	})
	if err != nil {
		return nil, err
	}
	address, shut, err := stage.Provider(ctx, page)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(s.Out, "console: http://%s/\n", address)
	return func() {
		page.Close() // it ends the streams of open pages
		shut()
	}, nil
}
