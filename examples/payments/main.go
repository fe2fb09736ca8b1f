// Payments takes payments over HTTP and books each of them once, while clients repeat requests and processes are killed.
//
// POST /payments with an Idempotency-Key writes the payment and the event payment.made in one PostgreSQL transaction (api.go). A relay
// publishes the event to Kafka. Two consumers book it: balances with a claim in PostgreSQL, points with a claim in Redis (consumer.go).
// The claim in Redis is in front of a record in PostgreSQL or, with -window, alone. Clients send requests twice, hang up before the
// answer, repeat every request until it is answered, and use keys again for other payments. API, relay and consumers get SIGKILL, the
// relay publishes a share of the events twice, and at the end a share of the events is delivered again.
//
// Exit status: 0 if every payment was made, answered and booked once, 1 if not, 2 if it could not run. -without and -window show why each
// part is needed.
package main

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/millrace-go/millrace/examples/internal/stage"
	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/idempotencykey"
	"github.com/millrace-go/millrace/outbox"
)

var roles = stage.Roles{"api": api, "relay": relay, "consumer": consumer}

// killable are the roles that are killed in turn.
var killable = []string{"api", "relay", "consumer"}

var command = stage.Command{Name: "payments", Role: roles.Main, Play: play}

func main() { command.Main() }

// options are the command's flags.
type options struct {
	stage.Common
	payments int
	window   time.Duration
	without  string
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	f := o.Flags("payments", 12, stderr)
	f.StringVar(&o.Broker, "broker", "kafka", "kafka, pubsub, or memory: everything in this process, without kills")
	f.IntVar(&o.payments, "payments", 2000, "payments to make")
	f.DurationVar(&o.window, "window", 0, "let Redis claim alone and remember events for so long; 0: in front of a record in PostgreSQL")
	f.StringVar(&o.without, "without", "", "leave a part out to see what happens then: key or claim")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	return o, o.Check(
		stage.Wrong(o.payments < 1 || o.payments > 1_000_000, "-payments is %d: want 1 to 1000000", o.payments),
		stage.Wrong(o.window < 0 || o.window > 0 && o.window < 100*time.Millisecond || o.window > time.Minute, "-window is %v: want 0, or 100ms to 1m", o.window),
		stage.Wrong(o.without != "" && o.without != "key" && o.without != "claim", "-without is %q: want key or claim", o.without),
	)
}

// span is how long the payments take: about a second for each kill.
func (o options) span() time.Duration {
	return time.Duration(max(float64(o.Kills)*0.9, float64(o.payments)/400) * float64(time.Second))
}

func play(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	s, err := stage.SetUp(ctx, stage.Setting{
		Name: "payments", Args: args, Broker: o.Broker, Needs: []devstack.Service{devstack.Redis}, Addresses: 1,
		Duplicates: 0.3, Tables: stage.Tables(schemaSQL, outbox.Migrate, claim.Migrate, idempotencykey.Migrate), Logs: o.Logs(stderr),
	}, stdout)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.TearDown()) }()
	cast, err := s.NewCast(ctx, roles)
	if err != nil {
		return err
	}
	defer cast.Close()
	cast.Start("consumer", 2)
	cast.Start("api", 1)
	cast.Start("relay", 1)
	if err := cast.Await(ctx, "subscribed", 2); err != nil {
		return err
	}
	customers := newCustomers(s.Config.Addresses, o)
	looks := func(ctx context.Context) (string, bool, error) { return readState(ctx, s.Pool, o) }
	err = cast.Watch(ctx, stage.Watching{
		Kills: o.Kills, Roles: killable, Span: o.span(), Act: customers.Act, State: looks,
	})
	if err != nil {
		return err
	}
	again, err := playLate(ctx, cast, o, looks)
	if err != nil {
		return err
	}
	v, err := judge(ctx, s.Pool, o, customers, again)
	if err != nil {
		return err
	}
	v.print(stage.Table{Out: stdout}, o, cast)
	if !v.good() {
		return stage.ErrVerdict
	}
	return nil
}
