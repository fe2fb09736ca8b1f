package pgtx

import (
	"iter"
	"regexp"
	"strings"
)

// statements returns the statements of a text, each from its first word on. It knows strings, quoted names, dollar quotes and
// comments. A statement with BEGIN ATOMIC has semicolons in its body, so the rest of the text counts as part of it.
func statements(sql string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for {
			if sql = skipComments(sql); sql == "" {
				return
			}
			n := statementLen(sql)
			if !yield(sql[:n]) {
				return
			}
			sql = sql[n:]
		}
	}
}

// statementLen returns the length of the text's first statement.
func statementLen(sql string) int {
	if strings.IndexByte(sql, ';') < 0 {
		return len(sql)
	}
	word := 0 // where the current word begins
	for i := 0; i < len(sql); {
		c := sql[i]
		if isLetter(c) && (c != '$' || i > word) { // inside a word, a dollar sign is a letter
			i++
			continue
		}
		if strings.EqualFold(sql[word:i], "atomic") {
			return len(sql)
		}
		switch {
		case c == ';':
			return i
		case c == '\'', c == '"':
			i += quotedLen(sql[i:], strings.EqualFold(sql[word:i], "e"))
		case c == '$':
			i += dollarLen(sql[i:])
		case strings.HasPrefix(sql[i:], "--"), strings.HasPrefix(sql[i:], "/*"):
			i += commentLen(sql[i:])
		default:
			i++
		}
		word = i
	}
	return len(sql)
}

func isLetter(c byte) bool {
	return c == '_' || c == '$' || '0' <= c && c <= '9' || 'a' <= c|' ' && c|' ' <= 'z' || c >= 0x80
}

// quotedLen returns the length of a string or a quoted name, with its quotes. It takes a doubled quote for the end of one
// string and the start of the next, which gives the same result.
func quotedLen(sql string, escapes bool) int {
	for i := 1; i < len(sql); i++ {
		switch {
		case sql[i] == '\\' && escapes:
			i++
		case sql[i] == sql[0]:
			return i + 1
		}
	}
	return len(sql)
}

// dollarLen returns the length of the dollar-quoted string that the text begins with, or 1 if it begins with none.
func dollarLen(sql string) int {
	tag := dollarQuote.FindString(sql)
	if tag == "" {
		return 1
	}
	end := strings.Index(sql[len(tag):], tag)
	if end < 0 {
		return len(sql)
	}
	return end + 2*len(tag)
}

var dollarQuote = regexp.MustCompile(`^\$(?:[\pL_][\pL\pN_]*)?\$`)

// commentLen returns the length of the comment that the text begins with. Comments of the form /* … */ nest.
func commentLen(sql string) int {
	if sql[1] == '-' {
		if i := strings.IndexByte(sql, '\n'); i >= 0 {
			return i + 1
		}
		return len(sql)
	}
	depth := 0
	for i := 0; i+1 < len(sql); i++ {
		switch sql[i : i+2] {
		case "/*":
			depth++
			i++
		case "*/":
			depth--
			i++
		}
		if depth == 0 {
			return i + 1
		}
	}
	return len(sql)
}

func skipComments(sql string) string {
	for {
		sql = strings.TrimLeft(sql, " \t\r\n\f\v;")
		if !strings.HasPrefix(sql, "--") && !strings.HasPrefix(sql, "/*") {
			return sql
		}
		sql = sql[commentLen(sql):]
	}
}

// isPlain reports whether the text is one statement that reads or changes rows.
func isPlain(sql string) bool {
	n := 0
	for statement := range statements(sql) {
		n++
		switch word, _ := firstWord(statement); word {
		case "select", "insert", "update", "delete", "merge", "with", "values":
		default:
			return false
		}
	}
	return n == 1
}

// firstWord returns the text's first word in lower case, or "" if the text does not begin with a word. It cuts the word at
// the limit, which no keyword exceeds.
func firstWord(sql string) (word, rest string) {
	const limit = 12
	i := strings.IndexFunc(sql, func(c rune) bool { return c < 'A' || c > 'z' })
	if i < 0 {
		i = len(sql)
	}
	return strings.ToLower(sql[:min(i, limit)]), sql[i:]
}

// nextWord skips comments and returns the first word after them.
func nextWord(sql string) (word, rest string) { return firstWord(skipComments(sql)) }

// ends reports whether one of the text's statements ends the transaction. (ROLLBACK TO does not.)
func ends(sql string) bool {
	for statement := range statements(sql) {
		word, rest := firstWord(statement)
		switch word {
		case "commit", "end", "abort":
			return true
		case "prepare":
			if word, _ := nextWord(rest); word == "transaction" {
				return true
			}
		case "rollback":
			for word == "rollback" || word == "work" || word == "transaction" {
				word, rest = nextWord(rest)
			}
			if word != "to" {
				return true
			}
		}
	}
	return false
}
