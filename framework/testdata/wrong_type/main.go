// A program that does not compile: it publishes and handles values that are not of the topic's type.
package main

import (
	"context"

	"github.com/millrace-go/millrace/framework"
)

type OrderPlaced struct{ ID int }

type OrderPaid struct{ ID int }

var Placed = framework.Topic[OrderPlaced]("orders.placed")

func main() {
	var svc *framework.Service
	_ = Placed.Publish(context.Background(), "", OrderPaid{1})
	_ = framework.Handle(svc, "notify", Placed, func(context.Context, OrderPaid) error { return nil })
	_ = framework.Topic[OrderPlaced]("orders.placed", framework.Upcast(1, 2, func(OrderPaid) OrderPlaced { return OrderPlaced{} }))

	_ = Placed.Publish(context.Background(), "", OrderPlaced{1})
	_ = framework.Handle(svc, "notify", Placed, func(context.Context, OrderPlaced) error { return nil })
}
