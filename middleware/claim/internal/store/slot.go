package store

import (
	"context"
	"errors"
	"strconv"

	"github.com/millrace-go/millrace/middleware/internal/inbox"
	"github.com/millrace-go/millrace/pgtx"
)

// TakeSlot takes one of the slots of a consumer's key, until the transaction in ctx ends. It returns false if other transactions
// have all of them.
func (s *Postgres) TakeSlot(ctx context.Context, consumer, key string, slots int) (got bool, err error) {
	tx, ok := pgtx.From(ctx)
	if !ok {
		return false, errors.New("the handler's context carries no transaction")
	}
	locks := make([]int64, slots)
	for i := range locks {
		locks[i] = inbox.Lock(s.Schema, consumer, "\x00"+strconv.Itoa(i)+"\x00"+key) // no event ID starts like that
	}
	err = tx.QueryRow(ctx, s.sql.slot, locks).Scan(&got)
	return got, err
}
