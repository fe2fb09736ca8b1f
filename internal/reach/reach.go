// Package reach prints commands for people to copy: of "millrace" and psql, for the database that was examined.
package reach

import (
	"cmp"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/millrace-go/millrace/internal/words"
)

// Reach is how a command reached its database.
type Reach struct {
	Config, Database, DSN, Schema string         // as flags; "" if defaults or the environment applied
	Server                        *pgconn.Config // the server that it reached
}

// Command returns a command of this program for the same database, quoted for a shell. The operand is, for example, an event's ID.
func (r Reach) Command(operand string, args ...string) string {
	if operand == "" {
		return r.CommandOf(nil, args...)
	}
	return r.CommandOf([]string{operand}, args...)
}

// CommandOf is Command with several operands. Operands may come from other people, so one that begins with a dash must not become a flag.
func (r Reach) CommandOf(operands []string, args ...string) string {
	for _, flag := range [][2]string{{"--config", r.Config}, {"--database", r.Database}, {"--dsn", WithoutPassword(r.DSN)}, {"--schema", r.Schema}} {
		if flag[1] != "" {
			args = append(args, flag[0], flag[1])
		}
	}
	if slices.ContainsFunc(operands, func(o string) bool { return strings.HasPrefix(o, "-") }) {
		args = append(args, "--")
	}
	return shell("millrace", append(args, operands...)...)
}

// PSQL returns a psql command for the same server, which prompts for the password. An empty database means the same one.
func (r Reach) PSQL(database, sql string) string {
	var args []string
	if s := r.Server; s != nil {
		args = []string{"-h", s.Host, "-p", strconv.Itoa(int(s.Port)), "-U", s.User, "-d", cmp.Or(database, s.Database, s.User)}
	}
	return shell("psql", append(args, "-c", sql)...)
}

func shell(program string, args ...string) string {
	var b strings.Builder
	b.WriteString(program)
	for _, arg := range args {
		b.WriteByte(' ')
		b.WriteString(Quoted(arg))
	}
	return b.String()
}

var (
	plain = regexp.MustCompile(`^[A-Za-z0-9_./:@%+=,-]+$`)
	tame  = regexp.MustCompile("^[^\"$`\\\\!]*$") // between double quotes
)

// Quoted quotes an argument for a shell.
func Quoted(arg string) string {
	switch {
	case plain.MatchString(arg):
		return arg
	case !words.Graphic(arg):
		return "$'" + strings.ReplaceAll(words.OneLine(strings.ReplaceAll(arg, `\`, `\\`)), "'", `\'`) + "'"
	case strings.Contains(arg, "'") && tame.MatchString(arg):
		return `"` + arg + `"`
	}
	return "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
}

// Passwords are an entry of a connection string, or are in a URL: before the host or as a parameter.
var (
	entry  = regexp.MustCompile(`(password[\s\v]*=[\s\v]*)('(\\.|[^'\\])*'|(\\.|[^\s\\])*)`)
	before = regexp.MustCompile(`^([a-z]+://[^:/@]*:)[^@/]*@`)
)

// WithoutPassword returns a valid connection string with its passwords masked.
func WithoutPassword(dsn string) string {
	if !strings.HasPrefix(dsn, "postgres://") && !strings.HasPrefix(dsn, "postgresql://") {
		return entry.ReplaceAllString(dsn, "${1}xxxxx")
	}
	address, query, _ := strings.Cut(before.ReplaceAllString(dsn, "${1}xxxxx@"), "?")
	parameters := strings.Split(query, "&")
	for i, p := range parameters {
		key, _, _ := strings.Cut(p, "=")
		if name, err := url.QueryUnescape(key); err != nil || strings.HasSuffix(name, "password") {
			parameters[i] = key + "=xxxxx"
		}
	}
	if query == "" {
		return address
	}
	return address + "?" + strings.Join(parameters, "&")
}
