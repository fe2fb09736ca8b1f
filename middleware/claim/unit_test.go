package claim_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/transport"
)

// unitOfAnotherDomain is what a transactional transport puts into the context of a consumed message.
type unitOfAnotherDomain struct{}

func (unitOfAnotherDomain) Domain() string                          { return "kafka" }
func (unitOfAnotherDomain) Stage(string, ...*message.Message) error { return nil }
func (unitOfAnotherDomain) Savepoint() func()                       { return func() {} }

// A claim commits in the database, transactional delivery in Kafka: one without the other is what neither promises.
func TestClaimWithinAUnit(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	msg, d := deliver(t, "1")
	msg.SetContext(transport.WithUnit(msg.Context(), unitOfAnotherDomain{}))
	_, err := f.middleware(claim.Config{})(f.handler)(msg)
	require.ErrorIs(t, err, transport.ErrForeignUnit)
	require.ErrorContains(t, err, "kafka")
	require.Positive(t, d.retryAfter, "a mistake is no hot loop")
	require.Empty(t, f.effects())
}
