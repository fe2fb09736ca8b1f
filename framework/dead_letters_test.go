package framework_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/deadletter"
)

// Dead letters of three handlers grow ten days old while the service is away. The next one discards those of the handler that keeps them
// for a week, and counts them; those of the one that keeps them longer, or forever, stay, as all do without the setting.
func TestDeadLettersExpire(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "memory")
	run := func(week, year time.Duration) (svc *framework.Service, stop func()) {
		cfg := w.config()
		cfg.DeadLetters.Keep = week
		cfg.Handlers = map[string]framework.Handler{w.name("year"): {DeadLetters: framework.DeadLetters{Keep: year}}, w.name("ever"): {DeadLetters: framework.DeadLetters{Forever: true}}}
		svc = w.service(cfg)
		for _, name := range []string{"week", "year", "ever"} {
			require.NoError(t, handle(svc, w.name(name), w.topic("number"), func(context.Context, int) error { return claim.Permanent(errors.New("no")) }))
		}
		return svc, w.start(svc)
	}
	dead := func() int { return w.get(`select count(*) from {s}.claim_failed where state = 'dead'`) }
	svc, stop := run(0, 0)
	require.NoError(t, svc.Tx(t.Context(), func(ctx context.Context, _ pgx.Tx) error { return publish(ctx, w.topic("number"), "", 1) }))
	w.eventually("a dead letter of each handler", func() bool { return dead() == 3 })
	stop()
	_, err := w.pool.Exec(t.Context(), `update `+w.schema+`.claim_failed set failed_at = now() - interval '10 days'`)
	require.NoError(t, err)
	_, stop = run(0, 0)
	stop()
	require.Equal(t, 3, dead(), "nothing expires by default")

	svc, stop = run(7*24*time.Hour, 365*24*time.Hour)
	w.eventually("it is counted", func() bool {
		_, body := get(t, svc, "/metrics", nil)
		return strings.Contains(body, `millrace_claim_expired_total{millrace_consumer="labour/`+w.name("week")+`"} 1`)
	})
	stop()
	left, err := deadletter.List(t.Context(), w.pool, w.schema, deadletter.Listing{})
	require.NoError(t, err)
	var kept []string
	for _, e := range left {
		kept = append(kept, e.Consumer)
	}
	assert.ElementsMatch(t, []string{"labour/" + w.name("year"), "labour/" + w.name("ever")}, kept)
	audit, err := deadletter.ListAudit(t.Context(), w.pool, w.schema, deadletter.AuditListing{})
	require.NoError(t, err)
	require.Len(t, audit, 1)
	assert.Equal(t, "expire by service labour of labour/"+w.name("week"), audit[0].Action+" by "+audit[0].Actor+" of "+audit[0].Consumer)
}
