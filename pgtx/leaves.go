package pgtx

import (
	"cmp"
	"regexp"
)

// A savepoint that is released leaves more than its writes to the rest of the transaction: SET LOCAL, temporary tables and
// cursors last until the transaction ends. One that is rolled back leaves nothing.

// connGiven stands for the statements that are sent on the connection itself.
const connGiven = "Conn()"

// Watch is pgunit.Watch.
func (u *unit) Watch() {
	if u.work != nil {
		u.work.noting = true
	}
}

// Leaves is pgunit.Leaves.
func (u *unit) Leaves() string {
	if x, ok := u.tx.(*tx); ok {
		return x.leaves
	}
	return ""
}

// note tells the open savepoints of statements that leave something behind.
func (t *transaction) note(statements ...string) {
	if !t.noting {
		return
	}
	for _, sql := range statements {
		if sql != connGiven && !leaves(sql) {
			continue
		}
		t.mu.Lock()
		for _, sp := range t.savepoints {
			sp.leaves = cmp.Or(sp.leaves, sql)
		}
		t.mu.Unlock()
	}
}

var intoTemp = regexp.MustCompile(`(?i)\binto\s+(?:local\s+|global\s+)?temp(?:orary)?\s`)

// leaves reports whether the text's statements leave anything to those after them, which a rollback to a savepoint takes away.
// To be wrong in doubt costs time.
func leaves(sql string) bool {
	for statement := range statements(sql) {
		word, rest := firstWord(statement)
		switch word {
		case "set":
			if word, _ := nextWord(rest); word != "constraints" { // whose end a group sees to
				return true
			}
		case "reset", "declare", "fetch", "move", "discard", "do": // the body of DO may be anything
			return true
		case "create":
			for word, rest = nextWord(rest); word == "or" || word == "replace" || word == "local" || word == "global"; {
				word, rest = nextWord(rest)
			}
			if word == "temp" || word == "temporary" {
				return true
			}
		case "select", "with":
			if intoTemp.MatchString(statement) {
				return true
			}
		}
	}
	return mentions(sql, "set_config", "_") || mentions(sql, "pg_temp", "_")
}
