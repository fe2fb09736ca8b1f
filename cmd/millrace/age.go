package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/internal/words"
)

// age is a flag's duration in Go's form, or a number of days: 90d. 0 is one that was not given.
type age time.Duration

func ageVar(c *cobra.Command, a *time.Duration, name, usage string) {
	c.Flags().Var((*age)(a), name, usage)
}

// Set implements pflag.Value.
func (a *age) Set(text string) error {
	d, err := words.ParseAge(text)
	if err == nil {
		*a = age(d)
	}
	return err
}

// String implements pflag.Value.
func (a *age) String() string {
	if *a == 0 {
		return ""
	}
	return time.Duration(*a).String()
}

// Type implements pflag.Value.
func (*age) Type() string { return "age" }

// checkAge is for commands that are of no use without the flag.
func checkAge(name string, of time.Duration) error {
	if of != 0 {
		return nil
	}
	return usageError{fmt.Errorf("--%s is missing: want an age such as 90d or 12h", name)}
}
