package main

import (
	"fmt"

	"github.com/millrace-go/millrace/examples/internal/stage"
)

// newCustomers returns the clients that make the payments, with the mistakes of stage.Clients.
func newCustomers(addresses []string, o options) *stage.Clients {
	return stage.NewClients(addresses, "/payments", o.payments, o.span(), func(i int) (key string, body, other any) {
		wanted := payment{Account: fmt.Sprintf("account-%d", i%50), Cents: int64(100 + i*37%9900)}
		more := wanted
		more.Cents++
		return fmt.Sprintf("payment-%d", i), wanted, more
	})
}
