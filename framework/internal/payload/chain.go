package payload

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Step converts an event from one version to a later one.
type Step struct {
	from, to int
	in, out  reflect.Type
	protobuf string // the name of in's message, "" for JSON
	decode   func(*message.Message) (any, error)
	apply    func(any) (any, error)
	err      error
}

// Upcast returns a step that applies fn. Of returns the errors of a wrong step.
func Upcast[From, To any](from, to int, fn func(From) (To, error)) Step {
	f, err := formatOf[From]()
	u := Step{
		from: from, to: to, in: reflect.TypeFor[From](), out: reflect.TypeFor[To](), protobuf: f.protobuf,
		decode: func(msg *message.Message) (any, error) { return f.decode(msg) },
		apply: func(event any) (any, error) {
			older, _ := event.(From) // chain has checked the type
			return fn(older)
		},
	}
	switch {
	case err != nil:
		u.err = fmt.Errorf("upcast from %d to %d: %w", from, to, err)
	case from < 1 || to <= from:
		u.err = fmt.Errorf("upcast from %d to %d: want a version of 1 or more, and a later one", from, to)
	case fn == nil:
		u.err = fmt.Errorf("upcast from %d to %d: the function is nil", from, to)
	}
	return u
}

// chain checks that the upcasts lead to the version and the type of the topic, and that each step accepts the type that the
// previous one returns.
func chain(upcasts []Step, version int, event reflect.Type) (map[int]Step, error) {
	var errs []error
	steps := make(map[int]Step, len(upcasts))
	for _, u := range upcasts {
		if _, twice := steps[u.from]; twice {
			errs = append(errs, fmt.Errorf("two upcasts lead from version %d: want one", u.from))
		}
		errs = append(errs, u.err)
		steps[u.from] = u
	}
	for _, from := range slices.Sorted(maps.Keys(steps)) {
		u := steps[from]
		next, more := steps[u.to]
		want := next.in
		if u.to == version {
			want = event
		}
		switch {
		case from >= version:
			errs = append(errs, fmt.Errorf("upcast from %d to %d: the topic's own version is %d: want steps from earlier ones", from, u.to, version))
		case u.to != version && !more:
			errs = append(errs, fmt.Errorf("upcast from %d to %d: nothing leads from version %d to the topic's version, %d", from, u.to, u.to, version))
		case u.out != want:
			errs = append(errs, fmt.Errorf("upcast from %d to %d returns %s: want %s, which version %d is here", from, u.to, u.out, want, u.to))
		}
	}
	return steps, errors.Join(errs...)
}
