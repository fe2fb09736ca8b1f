package main

import (
	"fmt"
	"io"
)

// verdict is the result of the orders.
type verdict struct {
	orders  int
	results int
	lost    int // orders without a result
	doubled int // orders with several results
	foreign int // results without an order
}

func (v verdict) good() bool { return v.lost+v.doubled+v.foreign == 0 }

// judge compares the results, counted by order, with the orders that were placed.
func judge(orders int, results map[string]int) verdict {
	v := verdict{orders: orders}
	for _, n := range results {
		v.results += n
	}
	known := 0
	for i := range orders {
		n := results[orderID(i)]
		known += n
		if n == 0 {
			v.lost++
		}
		if n > 1 {
			v.doubled++
		}
	}
	v.foreign = v.results - known
	return v
}

func (v verdict) print(w io.Writer, kills int, source, delivery string) {
	line := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%-20s %s\n", name, fmt.Sprintf(format, args...))
	}
	fmt.Fprintln(w)
	line("orders", "%d", v.orders)
	line("results", "%d", v.results)
	line("kills", "%d", kills)
	line("lost", "%d", v.lost)
	line("doubled", "%d", v.doubled)
	if v.foreign > 0 {
		line("of no order", "%d", v.foreign)
	}
	line("delivery", "%s", delivery)
	line("kafka", "%s", source)
	switch {
	case v.good() && delivery == "transactional":
		line("verdict", "every order has one result")
	case v.good():
		line("verdict", "every order has one result, by luck: at-least-once delivery does not promise it")
	case delivery != "transactional" && v.lost+v.foreign == 0:
		line("verdict", "this is what happens with at-least-once delivery: %d orders were processed more than once", v.doubled)
	default:
		line("verdict", "FAILED")
	}
}
