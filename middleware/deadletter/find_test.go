package deadletter_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/deadletter"
	"github.com/millrace-go/millrace/outbox"
)

func TestFind(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	find := func(key claim.Key) deadletter.Location {
		t.Helper()
		found, err := deadletter.Find(t.Context(), f.pool, f.schema, key)
		require.NoError(t, err)
		require.Len(t, found, 1)
		assert.Equal(t, "labour/notify", found[0].Consumer)
		return found[0]
	}
	done, held := outbox.NewID(), outbox.NewID()
	_, err := f.claim(claim.Config{}).Middleware(f.handler)(message.NewMessageWithContext(t.Context(), done, nil))
	require.NoError(t, err)
	end := f.hold(held)

	at := find(claim.Key{EventID: done})
	require.NotNil(t, at.Claimed)
	assert.WithinDuration(t, at.Now, *at.Claimed, time.Minute)
	assert.False(t, at.Kept)
	assert.Nil(t, at.Holder)
	at = find(claim.Key{EventID: held})
	assert.Nil(t, at.Claimed)
	require.NotNil(t, at.Holder)
	assert.Positive(t, at.Holder.PID)
	assert.WithinDuration(t, at.Now, *at.Holder.Since, time.Minute)
	end()
	assert.Nil(t, find(claim.Key{EventID: held}).Holder)

	f.keep("e1", "labour/notify", "k", "dead", "attempts", "oops")
	f.keep("e2", "labour/notify", "k", "blocked", "blocked", "")
	at = find(claim.Key{EventID: "e1"})
	assert.Equal(t, "dead", at.Failed.State)
	assert.Equal(t, "oops", at.Failed.History[0].Error)
	assert.Empty(t, at.Behind)
	assert.Equal(t, "e1", find(claim.Key{EventID: "e2"}).Behind)
	at = find(claim.Key{EventID: "e3", Order: "k"})
	assert.Equal(t, "e1 dead", at.Behind+" "+at.BehindState, "it would be blocked when it comes")
	assert.Empty(t, find(claim.Key{EventID: "e3"}).Behind)

	record, consumer := f.record("labour/notify", "e4")
	f.sql(`insert into {schema}.claim_start values ($1, $2, 1, 2)`, consumer, record)
	assert.Equal(t, 2, *find(claim.Key{EventID: "e4"}).Starts)
	suspects, err := claim.Suspects(t.Context(), f.pool, f.schema, 10)
	require.NoError(t, err)
	require.Len(t, suspects, 1)
	assert.Equal(t, "labour/notify 2 "+record.String(), fmt.Sprint(suspects[0].Consumer, " ", suspects[0].Starts, " ", suspects[0].Record))
	assert.Equal(t, 2, *find(claim.Key{EventID: record.String()}).Starts, "what Suspects tells can be looked up")

	// A suspicious process notes each event before it handles it: that is no death.
	record, consumer = f.record("labour/notify", "e5")
	f.sql(`insert into {schema}.claim_run (service, name) values ('labour', 'alive')`)
	f.sql(`insert into {schema}.claim_start select $1, $2, id, 0 from {schema}.claim_run`, consumer, record)
	assert.Nil(t, find(claim.Key{EventID: "e5"}).Starts)
	f.sql(`update {schema}.claim_run set beat_at = now() - interval '11 s'`)
	assert.Zero(t, *find(claim.Key{EventID: "e5"}).Starts, "it was in hand when its process was killed")

	kept, _ := f.record("labour/notify", "e1")
	at = find(claim.Key{EventID: kept.String()})
	require.NotNil(t, at.Failed, "what was kept is found by its record, too")
	assert.Equal(t, "e1 dead", at.Failed.EventID+" "+at.Failed.State)
	assert.Empty(t, at.Audit)

	_, err = deadletter.Discard(t.Context(), f.pool, f.schema, deadletter.Selection{EventIDs: []string{"e1"}}, deadletter.By{Actor: "ada", Note: "test data"})
	require.NoError(t, err)
	at = find(claim.Key{EventID: "e1"})
	assert.NotNil(t, at.Claimed)
	assert.Nil(t, at.Failed)
	require.Len(t, at.Audit, 1)
	assert.Equal(t, "discard ada", at.Audit[0].Action+" "+at.Audit[0].Actor)
	assert.Empty(t, find(claim.Key{EventID: "e2"}).Audit)
	odd := outbox.NewID()
	f.keep(odd, "labour/notify", "", "dead", "attempts", "oops")
	assert.Equal(t, "dead", find(claim.Key{EventID: strings.ToUpper(odd)}).Failed.State)
	_, err = deadletter.Discard(t.Context(), f.pool, f.schema, deadletter.Selection{EventIDs: []string{odd}}, deadletter.By{Actor: "ada"})
	require.NoError(t, err)
	assert.Len(t, find(claim.Key{EventID: "{" + odd + "}"}).Audit, 1, "a UUID is one in every spelling")

	f.sql(`update {schema}.consumer set floor = now() + interval '1 hour'`)
	assert.True(t, find(claim.Key{EventID: outbox.NewID()}).TooOld)
	assert.False(t, find(claim.Key{EventID: "e4"}).TooOld, "nobody knows when it was minted")
	due := claim.Key{EventID: done, Due: time.Now().Add(3 * time.Hour)}
	assert.False(t, find(due).TooOld, "it counts from when it was due")
}
