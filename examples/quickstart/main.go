// Quickstart sends events from HTTP requests to their effects, while processes are killed and messages are delivered twice.
//
// An API process completes labours (POST /labours/{id}/complete): it writes the labour and the event labour.completed in one
// PostgreSQL transaction. A relay process forwards the event to the broker. Consumer processes claim the event, write a
// notification, and send a text message to the family. In the same transaction they publish notification.sent, which a second
// consumer counts. Processes get SIGKILL at random moments, and a share of the events is published twice.
//
// At the end an independent reader compares the tables and the texts of the SMS provider, and counts lost and doubled effects.
// Exit status: 0 if there were none and every request was answered, 1 otherwise, 2 if the example could not run.
package main

import (
	"io"

	"github.com/millrace-go/millrace/examples/internal/stage"
	"github.com/millrace-go/millrace/examples/internal/swap"
	"github.com/millrace-go/millrace/internal/role"
)

var command = stage.Command{Name: "quickstart", Role: func() int { return role.Play(playRole) }, Play: play}

func main() { command.Main() }

// options are the command's flags.
type options struct {
	stage.Common
	events     int
	consumers  int
	duplicates float64
	push       bool
	console    bool
	without    string
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	f := o.Flags("quickstart", 20, stderr)
	f.IntVar(&o.events, "events", 2000, "labours to complete, one event each")
	f.IntVar(&o.consumers, "consumers", 2, "consumer processes")
	f.Float64Var(&o.duplicates, "duplicates", 0.3, "share of the events that is published twice, 0 to 1")
	f.StringVar(&o.Broker, "broker", swap.Named(millraceYAML), "pubsub, kafka, or memory: everything in this process, without kills")
	f.BoolVar(&o.push, "push", false, "Pub/Sub pushes the events to the consumers over HTTP, instead of their pulling them")
	f.BoolVar(&o.console, "console", false, "serve the operator's page beside the kills, on this machine, and print its address")
	f.StringVar(&o.without, "without", "", "leave a part out to see what happens then: claim or outbox")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	return o, o.Check(
		stage.Wrong(o.events < 1 || o.events > 1_000_000, "-events is %d: want 1 to 1000000", o.events),
		stage.Wrong(o.consumers < 1 || o.consumers > 16, "-consumers is %d: want 1 to 16", o.consumers),
		stage.Wrong(!(o.duplicates >= 0 && o.duplicates <= 1), "-duplicates is %v: want 0 to 1", o.duplicates),
		stage.Wrong(o.Broker == "memory" && o.without == "outbox", "-without outbox: an event is lost when the API is killed between commit and publish, and with -broker memory nothing can be killed; use -broker pubsub or kafka"),
		stage.Wrong(o.push && o.Broker != "pubsub", "-push is Pub/Sub's: with -broker %s there is none; leave -push out or use -broker pubsub", o.Broker),
		stage.Wrong(o.without != "" && o.without != "claim" && o.without != "outbox", "-without is %q: want claim or outbox", o.without),
	)
}
