// Bookings is Harbor Point, a cruise line, as a service on package framework. Each booking over HTTP gets one entry in the manifest of
// its sailing and one confirmation by e-mail, while instances of the service are killed.
//
//	POST /bookings, Idempotency-Key → booking and event booking.confirmed, one transaction
//	booking.confirmed → manifest projector → passenger manifest and event manifest.updated, one transaction
//	booking.confirmed → confirm by mail    → an e-mail, through the ledger of effects
//	manifest.updated  → embarkation        → passengers of the sailing
//	booking.confirmed → careless bridge    → the same event once more: duplicates on purpose
//
// Two instances of the service run (service.go, handlers.go), each with API, relay and handlers. One line of millrace.yaml names the
// broker; -broker replaces it, and -migrate changes the broker while they run (voyage.go).
//
// Exit status: 0 if each booking, manifest entry, passenger and e-mail exists once and every guest has an answer, 1 if not, 2 if it could
// not run. -without shows why each part is needed.
package main

import (
	"context"
	_ "embed"
	"errors"
	"io"
	"slices"
	"time"

	"github.com/millrace-go/millrace/examples/internal/stage"
	"github.com/millrace-go/millrace/examples/internal/swap"
	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/effect"
	"github.com/millrace-go/millrace/middleware/idempotencykey"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/outbox/schedule"
)

var roles = stage.Roles{"instance": instance}

var command = stage.Command{Name: "bookings", Role: roles.Main, Play: play}

func main() { command.Main() }

// options are the command's flags.
type options struct {
	stage.Common
	bookings int
	migrate  bool
	without  string
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	f := o.Flags("bookings", 8, stderr)
	f.StringVar(&o.Broker, "broker", swap.Named(millraceYAML), "pubsub, kafka, or memory: one instance in this process, without kills")
	f.IntVar(&o.bookings, "bookings", 1000, "bookings to make")
	f.BoolVar(&o.migrate, "migrate", false, "take the instances to the other broker while guests book: from pubsub to kafka, or from kafka to pubsub")
	f.StringVar(&o.without, "without", "", "leave a part out to see what happens then: key, id (the broker's stands in for the event's), ledger, or with -migrate drain")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	return o, o.Check(
		stage.Wrong(o.bookings < 1 || o.bookings > 1_000_000, "-bookings is %d: want 1 to 1000000", o.bookings),
		stage.Wrong(!slices.Contains([]string{"", "key", "id", "ledger", "drain"}, o.without), "-without is %q: want key, id, ledger or drain", o.without),
		stage.Wrong(o.without == "drain" && !o.migrate, "-without drain: only a change of the broker has one; add -migrate"),
		stage.Wrong(o.migrate && o.Broker == "memory", "-migrate with -broker memory: want pubsub or kafka, which outlive a process"),
		stage.Wrong(o.without == "ledger" && o.Broker == "memory", "-without ledger: an e-mail is sent twice when an instance is killed behind it, and with -broker memory nothing can be killed; use -broker pubsub or kafka"),
	)
}

// span is how long the bookings take: about a second for each kill, and longer for a change of the broker.
func (o options) span() time.Duration {
	if o.migrate {
		return max(30*time.Second, time.Duration(o.Kills)*2*time.Second)
	}
	return time.Duration(max(float64(o.Kills)*0.9, float64(o.bookings)/300) * float64(time.Second))
}

//go:embed schema.sql
var schemaSQL string

func play(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	mails, address, stop, err := startMailer(ctx)
	if err != nil {
		return err
	}
	defer stop()
	instances := 2
	if o.Broker == "memory" {
		instances = 1
	}
	var needs []devstack.Service
	if o.migrate {
		needs = append(needs, devstack.Service(other(o.Broker)))
	}
	s, err := stage.SetUp(ctx, stage.Setting{
		Name: "bookings", Args: args, Broker: o.Broker, Needs: needs, Addresses: instances, Tables: stage.Tables(schemaSQL, outbox.Migrate, claim.Migrate, idempotencykey.Migrate, effect.Migrate, schedule.Migrate), Logs: o.Logs(stderr),
	}, stdout)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.TearDown()) }()
	s.Config.Extra = address
	cast, err := s.NewCast(ctx, roles)
	if err != nil {
		return err
	}
	defer cast.Close()
	cast.Start("instance", instances)
	if err := cast.Await(ctx, "running", instances); err != nil {
		return err
	}
	guests := stage.NewClients(s.Config.Addresses, "/bookings", o.bookings, o.span(), wanted)
	watching := stage.Watching{
		Kills: o.Kills, Roles: []string{"instance"}, Span: o.span(), Moment: mails.unanswered, Act: guests.Act, Loses: o.without == "drain",
		State: func(ctx context.Context) (string, bool, error) { return readState(ctx, s.Pool, o, mails) },
	}
	var way *voyage
	if o.migrate {
		if way, err = newVoyage(ctx, s, o); err != nil {
			return err
		}
		defer way.close()
		way.embark(&watching)
	}
	err = cast.Watch(ctx, watching)
	if err != nil {
		return err
	}
	v, err := judge(ctx, s.Pool, o, guests, mails)
	if err != nil {
		return err
	}
	v.underway = way != nil && !way.over()
	v.print(stage.Table{Out: stdout}, o, cast)
	if !v.good() {
		return stage.ErrVerdict
	}
	return nil
}
