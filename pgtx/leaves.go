package pgtx

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
)

// A released savepoint leaves more than its writes to the rest of the transaction: SET LOCAL, temporary tables and cursors
// last until the transaction ends. A savepoint that was rolled back leaves nothing.

// connGiven stands for the unknown statements that a caller sends on the connection after tx.Conn.
const connGiven = "Conn()"

// Watch implements pgunit.Watch.
func (u *unit) Watch() {
	if u.work != nil {
		u.work.noting = true
	}
}

// Leaves implements pgunit.Leaves.
func (u *unit) Leaves() string {
	if x, ok := u.tx.(*tx); ok {
		return x.leaves
	}
	return ""
}

// note records in each open savepoint the first statement that leaves something behind, and whether a statement changes the session.
func (t *transaction) note(statements ...string) {
	if slices.ContainsFunc(statements, outlives) {
		t.session.Store(true)
	}
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

// localConfig matches the end of a call of set_config whose change ends with the transaction.
var localConfig = regexp.MustCompile(`(?i),\s*(?:is_local\s*(?:=>|:=)\s*)?'?t(?:rue)?'?\s*\)`)

// outlives reports whether a statement of the text may change a setting of the session for later transactions. Whether a parameter of
// set_config is true is not known, so it may be false.
func outlives(sql string) bool {
	for statement := range statements(sql) {
		if word, rest := firstWord(statement); word == "set" {
			if word, _ := nextWord(rest); word != "local" && word != "constraints" && word != "transaction" {
				return true
			}
		}
	}
	if !mentions(sql, "set_config", "_") {
		return false
	}
	return strings.Count(strings.ToLower(sql), "set_config") > len(localConfig.FindAllStringIndex(sql, -1))
}

var intoTemp = regexp.MustCompile(`(?i)\binto\s+(?:local\s+|global\s+)?temp(?:orary)?\s`)

// leaves reports whether a statement of the text changes more than rows for later statements, in a way that a rollback to a
// savepoint undoes. In doubt it returns true: a false positive only costs time.
func leaves(sql string) bool {
	for statement := range statements(sql) {
		word, rest := firstWord(statement)
		switch word {
		case "set":
			if word, _ := nextWord(rest); word != "constraints" { // a group resets SET CONSTRAINTS itself
				return true
			}
		case "reset", "declare", "fetch", "move", "discard", "do", "execute": // the body of DO, and a prepared statement, may be anything
			return true
		case "create":
			for word, rest = nextWord(rest); word == "or" || word == "replace" || word == "local" || word == "global"; {
				word, rest = nextWord(rest)
			}
			if word == "temp" || word == "temporary" {
				return true
			}
		case "update": // which sets
			if mentions(rest, "pg_settings", "_") {
				return true
			}
		case "select", "with":
			if intoTemp.MatchString(statement) {
				return true
			}
		}
	}
	return mentions(sql, "set_config", "_") || mentions(sql, "pg_temp", "_") ||
		sql != "" && !strings.ContainsAny(sql, " \t\r\n") // it may be the name of a prepared statement
}
