// Package machine is what devstack finds on this machine: users, ports, Java; and the error for what it lacks.
package machine

import (
	"errors"
	"fmt"
)

// ErrAbsent is wrapped by the error of a source, or of a program, that this machine does not have: try another, or install
// it.
var ErrAbsent = errors.New("not on this machine")

// Absent is an error that wraps ErrAbsent.
func Absent(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrAbsent, fmt.Errorf(format, args...))
}
