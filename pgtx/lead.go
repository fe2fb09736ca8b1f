package pgtx

import (
	"context"
	"hash/maphash"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// owes returns what the server must be told before the next statement: BEGIN and the opening, that a savepoint has ended,
// those that are open. Nothing of it has a round trip of its own where it can travel with that statement.
func (t *transaction) owes() (lead []statement) {
	if t.begun && status(t.conn) == 'E' {
		return nil // it would be refused, and what follows it not even read
	}
	lead = t.beginning()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.owed != "" {
		lead = append(lead, statement{sql: "release savepoint " + t.owed})
	}
	if t.watched && t.marked < 0 {
		lead = append(lead, statement{sql: setMark})
	}
	for _, sp := range t.savepoints {
		if !sp.made {
			lead = append(lead, statement{sql: "savepoint " + sp.name})
		}
	}
	return lead
}

// told is called when the server has executed what it was owed.
func (t *transaction) told() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.owed = ""
	if t.watched && t.marked < 0 {
		t.marked = t.made()
	}
	for _, sp := range t.savepoints {
		sp.made = true
	}
}

// tell spends a round trip on what the server is owed.
func (t *transaction) tell(ctx context.Context) error {
	lead := t.owes()
	switch {
	case len(lead) == 0:
		return nil
	case t.opens():
		return t.sendAfter(ctx, lead, &pgx.Batch{}).Close()
	}
	_, err := t.q.Exec(ctx, textOf(lead))
	t.settleText(err)
	return err
}

// lead returns what the statements must bring along, after telling it right now where they cannot. unknown means that the
// caller should call learn once the server has taken the statements.
//
// A savepoint cannot travel with a statement that the server may refuse before it executes anything: pgx prepares what
// it does not know before it sends the rest, and of a text the server reads all of it first. That would fail the
// transaction and leave no savepoint to go back to.
func (t *transaction) lead(ctx context.Context, statements ...statement) (lead []statement, unknown bool, err error) {
	lead = t.owes()
	switch {
	case len(lead) == 0:
		return nil, false, nil
	case len(statements) == 0 || slices.ContainsFunc(statements, func(s statement) bool { return !s.fitsBatch() || s.text && t.opens() }):
		return nil, false, t.tell(ctx)
	case strings.HasPrefix(lead[len(lead)-1].sql, "savepoint ") && !t.knows(statements):
		return nil, true, t.tell(ctx)
	}
	return lead, false, nil
}

// statement is one that is about to be sent.
type statement struct {
	sql  string
	args []any
	text bool // it is sent as it is, and may be several
}

func textOf(all []statement) string {
	texts := make([]string, len(all))
	for i, s := range all {
		texts[i] = s.sql
	}
	return strings.Join(texts, "; ")
}

func statementsOf(b *pgx.Batch) []statement {
	all := make([]statement, len(b.QueuedQueries))
	for i, q := range b.QueuedQueries {
		all[i] = statement{sql: q.SQL, args: q.Arguments}
	}
	return all
}

// fitsBatch reports whether pgx can send the statement in a batch, which knows no options but a rewriter.
func (s statement) fitsBatch() bool {
	if s.sql == "" {
		return false
	}
	for _, arg := range s.args {
		switch arg.(type) {
		case pgx.QueryExecMode, pgx.QueryResultFormats, pgx.QueryResultFormatsByOID:
			return false
		case pgx.QueryRewriter:
		default:
			return true
		}
	}
	return true
}

// same reports whether the text tells what the server will get.
func (s statement) same() bool {
	if len(s.args) == 0 {
		return true
	}
	switch s.args[0].(type) {
	case pgx.NamedArgs, pgx.StrictNamedArgs:
		return true
	case pgx.QueryRewriter:
		return false
	}
	return true
}

var seed = maphash.MakeSeed()

func (s statement) hash() uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	if s.text {
		_ = h.WriteByte('t')
	}
	_, _ = h.WriteString(s.sql)
	return h.Sum64()
}

// taken is what a connection's server has taken before. A table may be gone since, and then the whole transaction fails
// in place of a savepoint if pgx has forgotten the statement too.
type taken struct {
	mode   pgx.QueryExecMode
	hashes map[uint64]struct{}
}

// maxTaken is below the number of statements that pgx remembers by default.
const maxTaken = 256

func takenBy(conn *pgx.Conn) *taken {
	const name = "github.com/millrace-go/millrace/pgtx"
	data := conn.PgConn().CustomData()
	k, ok := data[name].(*taken)
	if !ok {
		k = &taken{mode: conn.Config().DefaultQueryExecMode, hashes: map[uint64]struct{}{}}
		data[name] = k
	}
	return k
}

// knows reports whether the server executes what comes before the statements, whatever it thinks of them.
func (t *transaction) knows(statements []statement) bool {
	if t.conn == nil || t.conn.IsClosed() {
		return false
	}
	k := takenBy(t.conn)
	return !slices.ContainsFunc(statements, func(s statement) bool {
		if !s.text {
			switch k.mode {
			case pgx.QueryExecModeExec: // nothing is prepared before
				return false
			case pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe:
			default:
				return true
			}
		}
		_, ok := k.hashes[s.hash()]
		return !ok
	})
}

func (t *transaction) learn(statements []statement) {
	if t.conn == nil {
		return
	}
	k := takenBy(t.conn)
	for _, s := range statements {
		if !s.same() {
			continue
		}
		if len(k.hashes) >= maxTaken {
			clear(k.hashes)
		}
		k.hashes[s.hash()] = struct{}{}
	}
}

// settleText finds out what became of a text that began with what the server was owed, and ended with err.
func (t *transaction) settleText(err error) {
	if !t.begun {
		t.settle(err)
	}
	if err == nil || status(t.conn) == 'E' { // with an error and a sound transaction nothing was sent
		t.told()
	}
}

// failed is what the server answers to any statement of a failed transaction.
func failed() error {
	return &pgconn.PgError{
		Severity: "ERROR", SeverityUnlocalized: "ERROR", Code: "25P02",
		Message: "current transaction is aborted, commands ignored until end of transaction block",
	}
}
