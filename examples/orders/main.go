// Orders is an order processor on Kafka that is killed at random moments. It reads orders and writes order-results: each order has
// exactly one result.
//
// Processor processes read orders and publish their results with transactional delivery: a result and the offset of its order are
// committed in one Kafka transaction. Meanwhile the processes get SIGKILL and are started again. At the end a read_committed reader,
// which shares no code with the processors, counts the results of each order.
//
// Exit status: 0 if each order has one result, 1 if some have none or several, 2 if it could not run. With -delivery at-least-once the
// same processors run without transactions, to show why these are needed.
package main

import (
	"io"

	"github.com/millrace-go/millrace/examples/internal/stage"
	"github.com/millrace-go/millrace/internal/role"
	"github.com/millrace-go/millrace/transport/kafka"
)

var command = stage.Command{Name: "orders", Role: func() int { return role.Play(process) }, Play: play}

func main() { command.Main() }

// deliveries are the values of -delivery.
var deliveries = map[string]kafka.Delivery{
	"transactional": kafka.Transactional,
	"at-least-once": kafka.AtLeastOnce,
}

// options are the command's flags.
type options struct {
	stage.Common
	orders     int
	processors int
	delivery   string
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	f := o.Flags("orders", 10, stderr)
	f.StringVar(&o.Broker, "broker", "kafka", "kafka: no other broker has transactions; see examples/bookings for the others")
	f.IntVar(&o.orders, "orders", 3000, "orders to process")
	f.IntVar(&o.processors, "processors", 2, "processor processes, which share the 4 partitions of the orders")
	f.StringVar(&o.delivery, "delivery", "transactional", "transactional, or at-least-once: see what happens then")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	_, known := deliveries[o.delivery]
	return o, o.Check(
		stage.Wrong(o.Broker == "pubsub" || o.Broker == "memory", "-broker is %q, which has no transactions that this example could show: want kafka, or run examples/bookings, whose manifest projector goes from event to event by claim and outbox", o.Broker),
		stage.Wrong(o.orders < 1 || o.orders > 1_000_000, "-orders is %d: want 1 to 1000000", o.orders),
		stage.Wrong(o.processors < 1 || o.processors > 4, "-processors is %d: want 1 to 4", o.processors),
		stage.Wrong(!known, "-delivery is %q: want transactional or at-least-once", o.delivery),
	)
}
