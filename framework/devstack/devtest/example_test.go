package devtest_test

import (
	"fmt"
	"testing"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
)

// A test has a PostgreSQL and a schema of its own in it, without anything to install or to clean up.
func Example() {
	test := func(t testing.TB) { // for you: func TestOrders(t *testing.T)
		pool, schema := devtest.Pool(t), devtest.Schema(t)
		if _, err := pool.Exec(t.Context(), `create table `+schema+`.orders (id text primary key)`); err != nil {
			t.Fatal(err)
		}
		tag, err := pool.Exec(t.Context(), `insert into `+schema+`.orders values ('o-1'), ('o-2')`)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Println(tag.RowsAffected(), "orders")
	}

	t := devtest.Example()
	defer t.End()
	test(t)
	// Output: 2 orders
}
