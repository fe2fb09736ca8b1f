package effect_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/middleware/effect"
	"github.com/millrace-go/millrace/outbox"
)

func TestList(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, of := range [][2]string{{"e1", "mail:e1"}, {"e1", "sms:e1"}, {"e10", "mail:e10"}, {"", "mail:e1:by-hand"}} {
		require.NoError(t, effect.Once(outbox.WithCause(f.ctx(), of[0]), of[1], func(context.Context, string) error { return nil }))
	}
	list := func(l effect.Listing) (keys []string) {
		found, err := effect.List(t.Context(), f.pool, f.schema, l)
		require.NoError(t, err)
		for _, e := range found {
			keys = append(keys, e.Key)
		}
		return keys
	}
	assert.Equal(t, []string{"labour/mail:e1", "labour/sms:e1"}, list(effect.Listing{State: "all", EventID: "e1"}))
	assert.Equal(t, []string{"labour/mail:e10"}, list(effect.Listing{State: "done", Key: "labour/mail:e10"}))
	assert.Empty(t, list(effect.Listing{State: "all", Key: "labour/mail"}), "the whole key")
	assert.Equal(t, []string{"labour/mail:e1:by-hand", "labour/mail:e10"}, list(effect.Listing{State: "done", Newest: true, Limit: 2}))
	assert.Equal(t, []string{"labour/mail:e1", "labour/mail:e10", "labour/mail:e1:by-hand"}, list(effect.Listing{State: "all", Mentions: "mail:e1"}))
	assert.Empty(t, list(effect.Listing{Newest: true}), "none is open")
}
