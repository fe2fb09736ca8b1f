package fleet_test

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/outbox/fleet"
)

// A control database says which tenants there are.
func Example() {
	t := devtest.Example()
	defer t.End()
	control, schema := t.Database()
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := control.Exec(ctx, `create table `+schema+`.tenant (name text primary key, dsn text not null)`); err != nil {
		t.Fatal(err)
	}
	if _, err := control.Exec(ctx, `insert into `+schema+`.tenant values ('acme', $1)`, control.Config().ConnString()); err != nil {
		t.Fatal(err)
	}
	if err := outbox.Migrate(ctx, control, schema); err != nil {
		t.Fatal(err)
	}

	provider := func(ctx context.Context) ([]fleet.Database, error) {
		rows, err := control.Query(ctx, `select name, dsn from `+schema+`.tenant order by name`)
		if err != nil {
			return nil, err
		}
		return pgx.CollectRows(rows, pgx.RowToStructByPos[fleet.Database])
	}
	f, err := fleet.New(provider, newBroker(), fleet.Config{Relay: outbox.RelayConfig{Schema: schema, Logger: slog.New(slog.DiscardHandler)}})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	for len(f.Status()) == 0 { // until it has asked the provider
		time.Sleep(10 * time.Millisecond)
	}
	fmt.Println(f.Status()[0].Name)
	cancel()
	fmt.Println(<-ended)
	// Output:
	// acme
	// <nil>
}
