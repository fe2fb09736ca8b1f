// Package reach writes commands for people to copy: those of "millrace" and of psql, for the database that was looked at.
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

// Reach is how a command reached what it looked at.
type Reach struct {
	Config, Database, DSN, Schema string         // as flags: "" where it went by defaults and the environment
	Server                        *pgconn.Config // where that was
}

// Command is one of this program's for the same database, as a shell takes it. The operand is what it is about, such as an event's ID.
func (r Reach) Command(operand string, args ...string) string {
	if operand == "" {
		return r.CommandOf(nil, args...)
	}
	return r.CommandOf([]string{operand}, args...)
}

// CommandOf is a Command about several. Others may have chosen the operands: one that begins with a dash must not become a flag.
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

// PSQL is a call of psql for the same server, which asks for the password itself. "" stands for the same database.
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

// Quoted is an argument as a shell takes it.
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

// Passwords are an entry of a connection string, or stand in a URL before the host or as a parameter.
var (
	entry  = regexp.MustCompile(`(password[\s\v]*=[\s\v]*)('(\\.|[^'\\])*'|(\\.|[^\s\\])*)`)
	before = regexp.MustCompile(`^([a-z]+://[^:/@]*:)[^@/]*@`)
)

// WithoutPassword is a connection string, one that the driver takes, as it may be shown.
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
