package idempotencykey_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/middleware/idempotencykey"
	"github.com/millrace-go/millrace/middleware/idempotencykey/keytest"
)

// What anybody's middleware can be asked, ours is asked.
func TestConformance(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	keys := f.keys(idempotencykey.Config{Scope: func(r *http.Request) (string, error) { return r.Header.Get("Account"), nil }})
	keytest.Run(t, keytest.Server{
		Handler:      keys.Middleware,
		Keys:         keytest.QuotedOrBare,
		RetryErrors:  true,
		Authenticate: func(r *http.Request, account string) { r.Header.Set("Account", account) },
		Expire:       f.expire,
	})
}

// Stored answers become three days old, and retention removes them.
func (f *fixture) expire() error {
	day := time.Now().UTC().AddDate(0, 0, -3)
	f.exec(fmt.Sprintf(`create table {schema}.idempotency_key_%s partition of {schema}.idempotency_key for values from ('%s') to ('%s');
		update {schema}.idempotency_key set day = '%[2]s'`,
		day.Format("20060102"), day.Format(time.DateOnly), day.AddDate(0, 0, 1).Format(time.DateOnly)))
	done, err := idempotencykey.Retain(f.t.Context(), f.pool, f.schema, 24*time.Hour)
	require.Contains(f.t, done.Days, "idempotency_key_"+day.Format("20060102"))
	return err
}
