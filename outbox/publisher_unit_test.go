package outbox_test

import (
	"context"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
)

// unitOfAnotherDomain is what a transactional transport puts into the context of a consumed message.
type unitOfAnotherDomain struct{}

func (unitOfAnotherDomain) Domain() string                          { return "kafka" }
func (unitOfAnotherDomain) Stage(string, ...*message.Message) error { return nil }
func (unitOfAnotherDomain) Savepoint() func()                       { return func() {} }

// A handler on transactional delivery that publishes to the outbox would commit its events without the offset, and again
// when the message comes again.
func TestPublishWithinAUnit(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	within := transport.WithUnit(t.Context(), unitOfAnotherDomain{})
	err := f.publisher.Publish(topic, newMessage(within, "k", "p"))
	require.ErrorIs(t, err, transport.ErrForeignUnit)
	require.ErrorContains(t, err, "kafka")
	require.NoError(t, pgtx.Run(within, f.pool, func(ctx context.Context, _ pgx.Tx) error {
		require.ErrorIs(t, f.publisher.Publish(topic, newMessage(ctx, "k", "p")), transport.ErrForeignUnit)
		return f.publisher.Publish(topic, newMessage(transport.WithUnit(ctx, nil), "k", "p"))
	}))
	require.Equal(t, 1, f.rows())
}
