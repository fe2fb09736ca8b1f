package framework

import (
	"fmt"
	"reflect"
)

// Parse is Load without its surroundings.
var Parse = parse

// Patience is when an event is retried that waits for a new version of its consumer.
var Patience = patience

// KindOfMessage is the type and the version that a protobuf message of that name has.
func KindOfMessage(name string) string {
	k := kindOf(reflect.TypeFor[*struct{}](), name)
	return fmt.Sprint(k.name, " ", k.version)
}
