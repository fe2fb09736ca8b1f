package claim_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/deadletter"
	"github.com/millrace-go/millrace/outbox"
)

// An event that cannot be proved new becomes a dead letter, which absorbs its redeliveries; an operator who replays it
// vouches for it, and it runs once.
func TestEventsOutsideOfTheWindow(t *testing.T) { perMode(t, testEventsOutsideOfTheWindow) }

func testEventsOutsideOfTheWindow(t *testing.T, f *fixture) {
	old, future := mintedAt(-time.Hour), mintedAt(50*365*24*time.Hour)
	require.NoError(t, f.claimNow(claim.Key{Consumer: "labour/notify", EventID: outbox.NewID()}))
	f.exec(`update ` + f.schema + `.consumer set floor = now()`)
	m := f.broker()
	f.serve(m, claim.Config{MaxAttempts: 3}, f.take)
	for range 2 {
		f.publish(m, keyed(old, ""), keyed(future, ""))
		f.eventually(func() bool { return f.count("claim_failed where state = 'dead'") == 2 }, "both are dead letters")
	}
	reasons := map[string]string{}
	for _, row := range f.failed() {
		reasons[row.EventID] = row.Reason
	}
	assert.Equal(t, map[string]string{old: "window", future: "clock"}, reasons)
	assert.Len(t, f.effects(), 1)

	_, err := deadletter.Replay(t.Context(), f.pool, f.schema, deadletter.Selection{}, deadletter.By{Actor: "somebody"})
	require.NoError(t, err)
	f.eventually(func() bool { return len(f.effects()) == 3 && len(f.failed()) == 0 }, "both are handled")
	f.publish(m, keyed(old, ""), keyed(future, ""), keyed("last", ""))
	f.eventually(func() bool { return f.effects()["last"] == 1 }, "the redeliveries are absorbed")
	assert.Zero(t, doubled(f.effects()))
	assert.Empty(t, f.failed())
}
