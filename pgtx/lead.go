package pgtx

import (
	"context"
	"hash/maphash"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// owes returns the statements that must be sent before the next statement: BEGIN and the opening, the release of a savepoint
// that has ended, the mark, and the open savepoints that were not sent yet. They travel with that statement if possible.
func (t *transaction) owes() (lead []statement) {
	if t.begun && status(t.conn) == 'E' {
		return nil // the server would refuse it, and skip the statements after it
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

// told is called when the server has executed the statements of owes.
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

// tell sends the statements of owes in a round trip of their own.
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

// lead returns the statements that must be sent in front of the given ones, in the same round trip. If they cannot share a
// round trip, lead sends them at once and returns none. If unknown is true, the caller should call learn once the server has
// accepted the statements.
//
// A savepoint cannot travel with a statement that the server may refuse before it executes anything: pgx prepares new
// statements before it sends the rest, and the server parses the whole of a text first. The refusal would fail the
// transaction, without a savepoint to roll back to.
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

// statement is an SQL statement that is about to be sent.
type statement struct {
	sql  string
	args []any
	text bool // sql is sent as it is, and may hold several statements
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

// fitsBatch reports whether pgx can send the statement in a batch: of pgx's options, a batch supports only QueryRewriter.
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

// same reports whether equal texts lead to equal statements on the server. A custom QueryRewriter may change the text.
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

// taken holds the statements that the server has accepted on a connection before. If a table was dropped since, and pgx has
// evicted the statement from its cache, its refusal fails the whole transaction instead of a savepoint.
type taken struct {
	mode   pgx.QueryExecMode
	hashes map[uint64]struct{}
}

// maxTaken is less than the default size of pgx's statement cache.
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

// knows reports whether the server will execute the lead even if it refuses the statements after it.
func (t *transaction) knows(statements []statement) bool {
	if t.conn == nil || t.conn.IsClosed() {
		return false
	}
	k := takenBy(t.conn)
	return !slices.ContainsFunc(statements, func(s statement) bool {
		if !s.text {
			switch k.mode {
			case pgx.QueryExecModeExec: // pgx prepares nothing in advance
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

// settleText finds out whether the server has executed the lead of a text. err is the error of the text's round trip.
func (t *transaction) settleText(err error) {
	if !t.begun {
		t.settle(err)
	}
	if err == nil || status(t.conn) == 'E' { // after an error, a transaction that has not failed shows that nothing was sent
		t.told()
	}
}

// failed returns the error that the server returns for any statement of a failed transaction.
func failed() error {
	return &pgconn.PgError{
		Severity: "ERROR", SeverityUnlocalized: "ERROR", Code: "25P02",
		Message: "current transaction is aborted, commands ignored until end of transaction block",
	}
}
