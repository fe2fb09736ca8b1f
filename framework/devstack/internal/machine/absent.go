// Package machine finds what devstack needs on this machine: users, ports, Java. It also has the error for what is missing.
package machine

import (
	"errors"
	"fmt"
)

// ErrAbsent is wrapped by the error for a source or a program that this machine does not have. Try another one, or install it.
var ErrAbsent = errors.New("not on this machine")

// Absent returns an error that wraps ErrAbsent.
func Absent(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrAbsent, fmt.Errorf(format, args...))
}
