package writer

import (
	"context"
	"database/sql"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/pgtx"
)

// Owner is the transaction that a context carries.
type Owner struct {
	Pgx pgx.Tx
	SQL *sql.Tx
}

// OwnerOf returns the transaction of the context.
func OwnerOf(ctx context.Context) (o Owner, ok bool) {
	if o.Pgx, ok = pgtx.From(ctx); !ok {
		o.SQL, ok = pgtx.SQLFrom(ctx)
	}
	return o, ok
}

// Count is a backlog.Count.
func (o Owner) Count(ctx context.Context, statement string, limit int64) (counted, estimate int64, err error) {
	if o.SQL != nil {
		err = o.SQL.QueryRowContext(ctx, statement, limit).Scan(&counted, &estimate)
	} else {
		err = o.Pgx.QueryRow(ctx, statement, limit).Scan(&counted, &estimate)
	}
	return counted, estimate, err
}

func (o Owner) exec(ctx context.Context, c call) (err error) {
	if o.SQL != nil {
		_, err = o.SQL.ExecContext(ctx, c.sql, c.literals()...)
	} else {
		_, err = o.Pgx.Exec(ctx, c.sql, c.args()...)
	}
	return err
}
