package catalog_test

import (
	"fmt"
	"reflect"

	"github.com/millrace-go/millrace/catalog"
)

// What a field breaks that is no longer published.
func ExampleDiff() {
	describe := func(payload reflect.Type) *catalog.Document {
		b := catalog.New("shop")
		if err := b.Publishes("orders.placed", catalog.Event{Type: "OrderPlaced", Version: 1, Go: payload}); err != nil {
			panic(err)
		}
		return b.Document()
	}
	before := describe(reflect.TypeFor[struct{ ID, Cents int }]())
	after := describe(reflect.TypeFor[struct{ ID int }]())
	for _, change := range catalog.Diff(before, after) {
		fmt.Println(change.What, change.Breaks)
	}
	// Output:
	// OrderPlaced.v1, published to orders.placed: Cents was removed [each consumer of orders.placed]
}
