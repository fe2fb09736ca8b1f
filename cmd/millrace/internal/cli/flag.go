package cli

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/internal/reach"
	"github.com/millrace-go/millrace/internal/words"
)

// format is the flag that selects JSON output.
type format bool

func (f *format) Type() string { return "format" }

func (f *format) String() string {
	if *f {
		return "json"
	}
	return "table"
}

func (f *format) Set(s string) error {
	if s != "json" && s != "table" {
		return errors.New("want table or json")
	}
	*f = s == "json"
	return nil
}

// OneOf registers a flag's values for shell completion.
func OneOf(c *cobra.Command, flag string, values ...string) {
	if err := c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // there is no such flag
	}
}

// AuditVar adds the flags --actor and --note.
func AuditVar(c *cobra.Command, actor, note *string) {
	c.Flags().StringVar(actor, "actor", Somebody(), "who does it, for the audit log")
	c.Flags().StringVar(note, "note", "", "why, for the audit log")
}

// ReplayID parses the ID of a replay. list is the command that lists IDs.
func ReplayID(text, list string) (int64, error) {
	id, err := strconv.ParseInt(text, 10, 64)
	if err != nil || id <= 0 {
		return 0, Misuse(fmt.Errorf("the ID is %q: want one from %q", text, list))
	}
	return id, nil
}

// LimitVar adds the flag --limit.
func LimitVar(c *cobra.Command, limit *int) {
	c.Flags().IntVar(limit, "limit", 100, "list at most this many")
}

// CheckLimit checks the flag --limit.
func CheckLimit(n int) error {
	if n < 1 {
		return Misuse(fmt.Errorf("--limit is %d: want 1 or more", n))
	}
	return nil
}

// age is a flag with a duration in Go's form, or a number of days such as 90d. 0 means not given.
type age time.Duration

// AgeVar adds a flag with an age.
func AgeVar(c *cobra.Command, a *time.Duration, name, usage string) {
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

// CheckAge returns an error if a required age is missing.
func CheckAge(name string, of time.Duration) error {
	if of != 0 {
		return nil
	}
	return Misuse(fmt.Errorf("--%s is missing: want an age such as 90d or 12h", name))
}

// moment is a flag with a point in time.
type moment struct {
	at   *time.Time
	text string
}

// Set implements pflag.Value.
func (m *moment) Set(text string) (err error) {
	if *m.at, err = words.ParseMoment(text, time.Now()); err != nil {
		return err
	}
	m.text = text
	return nil
}

// String implements pflag.Value.
func (m *moment) String() string { return m.text }

// Type implements pflag.Value.
func (*moment) Type() string { return "time" }

// MomentVar adds a flag with a point in time.
func MomentVar(c *cobra.Command, at *time.Time, name, usage string) {
	c.Flags().Var(&moment{at: at}, name, usage)
}

// TimeFlag formats a time for a flag; "" for the zero time.
func TimeFlag(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Format(time.RFC3339)
}

// NamedStates returns the stored states for the word of --state. may are the allowed ones.
func NamedStates(word string, may ...string) ([]string, error) {
	stored := words.ClaimStates.Named(word, may...)
	if len(stored) == 0 {
		return nil, WrongState(word, words.ClaimStates.Choice(may))
	}
	return stored, nil
}

// WrongState returns the error for a word that --state does not accept.
func WrongState(word string, accepted []string) error {
	return Misuse(fmt.Errorf("--state is %q: want %s", word, words.Either(accepted)))
}

// GivenFlags returns the flags that have a value, quoted for a shell.
func GivenFlags(flags [][2]string) string {
	var given []string
	for _, f := range flags {
		if f[1] != "" {
			given = append(given, f[0]+" "+reach.Quoted(f[1]))
		}
	}
	return strings.Join(given, " ")
}

// Somebody returns user@host of whoever runs the command.
func Somebody() string {
	name := os.Getenv("USER")
	if u, err := user.Current(); name == "" && err == nil {
		name = u.Username
	}
	host, _ := os.Hostname() // an empty name is acceptable
	return name + "@" + host
}
