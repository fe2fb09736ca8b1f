// Package fanout asks several at once, because one may be slow.
package fanout

import (
	"fmt"
	"runtime/debug"
	"sync"
)

// All returns the answers, in the order of those who are asked. If ask panics, All panics in the goroutine of its caller.
func All[A, T any](asked []A, ask func(A) T) []T {
	answers := make([]T, len(asked))
	panics := make(chan string, len(asked))
	var asking sync.WaitGroup
	for i, a := range asked {
		asking.Go(func() {
			defer func() {
				if bug := recover(); bug != nil {
					panics <- fmt.Sprintf("%v\n\n%s", bug, debug.Stack())
				}
			}()
			answers[i] = ask(a)
		})
	}
	asking.Wait()
	if len(panics) > 0 {
		panic(<-panics)
	}
	return answers
}
