package main

import (
	"cmp"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"
)

// reach is how a command reached what it looked at.
type reach struct {
	config, dsn, schema string         // as flags: "" where it went by defaults and the environment
	server              *pgconn.Config // where that was
}

// command is one of this program's for the same database, as a shell takes it. The operand, such as an event's ID, may be
// of others: one that begins with a dash must not become a flag.
func (r reach) command(operand string, words ...string) string {
	for _, flag := range [][2]string{{"--config", r.config}, {"--dsn", withoutPassword(r.dsn)}, {"--schema", r.schema}} {
		if flag[1] != "" {
			words = append(words, flag[0], flag[1])
		}
	}
	if strings.HasPrefix(operand, "-") {
		words = append(words, "--")
	}
	if operand != "" {
		words = append(words, operand)
	}
	return shell("millrace", words...)
}

// psql is a call of psql for the same server, which asks for the password itself. "" stands for the same database.
func (r reach) psql(database, sql string) string {
	var words []string
	if s := r.server; s != nil {
		words = []string{"-h", s.Host, "-p", strconv.Itoa(int(s.Port)), "-U", s.User, "-d", cmp.Or(database, s.Database, s.User)}
	}
	return shell("psql", append(words, "-c", sql)...)
}

func shell(program string, words ...string) string {
	var b strings.Builder
	b.WriteString(program)
	for _, word := range words {
		b.WriteByte(' ')
		b.WriteString(quoted(word))
	}
	return b.String()
}

var (
	plain = regexp.MustCompile(`^[A-Za-z0-9_./:@%+=,-]+$`)
	tame  = regexp.MustCompile("^[^\"$`\\\\!]*$") // between double quotes
)

// quoted is an argument as a shell takes it.
func quoted(arg string) string {
	switch {
	case plain.MatchString(arg):
		return arg
	case !graphic(arg):
		return "$'" + strings.ReplaceAll(oneLine(strings.ReplaceAll(arg, `\`, `\\`)), "'", `\'`) + "'"
	case strings.Contains(arg, "'") && tame.MatchString(arg):
		return `"` + arg + `"`
	}
	return "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
}

func graphic(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsGraphic(r) })
}

// oneLine is text of others that cannot disturb a terminal; text that cannot do so anyway stays as it is.
func oneLine(text string) string {
	if graphic(text) {
		return text
	}
	var b strings.Builder
	for len(text) > 0 {
		r, size := utf8.DecodeRuneInString(text)
		switch {
		case r == utf8.RuneError && size == 1:
			b.WriteString(`\x` + strconv.FormatUint(uint64(text[0])+0x100, 16)[1:])
		case unicode.IsGraphic(r):
			b.WriteRune(r)
		default:
			q := strconv.QuoteRuneToGraphic(r)
			b.WriteString(q[1 : len(q)-1])
		}
		text = text[size:]
	}
	return b.String()
}

// Passwords are an entry of a connection string, or stand in a URL before the host or as a parameter.
var (
	entry  = regexp.MustCompile(`(password[\s\v]*=[\s\v]*)('(\\.|[^'\\])*'|(\\.|[^\s\\])*)`)
	before = regexp.MustCompile(`^([a-z]+://[^:/@]*:)[^@/]*@`)
)

// withoutPassword is a connection string, one that the driver takes, as it may be shown.
func withoutPassword(dsn string) string {
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

// lines is text of several lines that cannot disturb a terminal.
func lines(text string) string {
	if readable([]byte(text)) {
		return text
	}
	all := strings.Split(text, "\n")
	for i := range all {
		all[i] = oneLine(all[i])
	}
	return strings.Join(all, "\n")
}
