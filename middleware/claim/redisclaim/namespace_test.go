package redisclaim_test

import (
	"log/slog"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/claim/claimtest"
	"github.com/millrace-go/millrace/middleware/claim/redisclaim"
)

// Two services with a handler "notify" on one Redis swallowed each other's events: the second one's was a duplicate.
func TestNamespaceOfRedisClaims(t *testing.T) {
	t.Parallel()
	for name, fixture := range map[string]func(*testing.T) claimtest.Fixture{
		"alone":                func(t *testing.T) claimtest.Fixture { return alone(t, devtest.Redis(t), redisclaim.Config{}) },
		"in front of a record": func(t *testing.T) claimtest.Fixture { return inFront(t, devtest.Redis(t), redisclaim.Config{}) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := fixture(t)
			handled := map[string]int{}
			for _, service := range []string{"labour", "billing", "labour", "billing"} {
				c, err := claim.New(f.Store, claim.Config{
					Service: service, Consumer: func(string) string { return "notify" }, Logger: slog.New(slog.DiscardHandler),
				})
				require.NoError(t, err)
				msg := message.NewMessage("1", nil)
				_, err = c.Middleware(func(*message.Message) ([]*message.Message, error) {
					handled[service]++
					return nil, nil
				})(msg)
				require.NoError(t, err)
				assert.False(t, nacked(msg))
			}
			assert.Equal(t, map[string]int{"labour": 1, "billing": 1}, handled,
				"each service handles it once, and a second process of it finds a duplicate")
		})
	}
}
