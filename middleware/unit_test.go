package middleware_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	watermill "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/transport"
)

// list is a unit that names what is staged.
type list struct{ staged []string }

func (l *list) Domain() string { return "list" }

func (l *list) Stage(_ string, msgs ...*message.Message) error {
	for _, msg := range msgs {
		l.staged = append(l.staged, msg.UUID)
	}
	return nil
}

func (l *list) Savepoint() func() {
	n := len(l.staged)
	return func() { l.staged = l.staged[:n] }
}

func consumed(l *list) *message.Message {
	msg := message.NewMessage("in", nil)
	msg.SetContext(transport.WithUnit(context.Background(), l))
	return msg
}

// stage stages one message in the consumed one's unit, as a publisher does.
func stage(t *testing.T, msg *message.Message, id string) {
	t.Helper()
	require.NoError(t, transport.UnitFrom(msg.Context()).Stage("topic", message.NewMessage(id, nil)))
}

func TestUnitCarriesToWhatIsReturned(t *testing.T) {
	t.Parallel()
	l := &list{}
	other := &list{}
	produced, err := middleware.Unit(func(msg *message.Message) ([]*message.Message, error) {
		elsewhere := message.NewMessage("elsewhere", nil)
		elsewhere.SetContext(transport.WithUnit(msg.Context(), other))
		return []*message.Message{message.NewMessage("out", nil), msg, elsewhere}, nil
	})(consumed(l))
	require.NoError(t, err)
	require.Len(t, produced, 3)
	require.Same(t, l, transport.UnitFrom(produced[0].Context()))
	require.Same(t, l, transport.UnitFrom(produced[1].Context()))
	require.Same(t, other, transport.UnitFrom(produced[2].Context()))
}

// Retry runs a handler again that has published a part of its messages and failed. They are published once.
func TestUnitMakesRetrySafe(t *testing.T) {
	t.Parallel()
	l := &list{}
	attempts := 0
	h := watermill.Retry{MaxRetries: 3, InitialInterval: time.Nanosecond}.Middleware(watermill.Recoverer(middleware.Unit(
		func(msg *message.Message) ([]*message.Message, error) {
			attempts++
			stage(t, msg, "first")
			switch attempts {
			case 1:
				return []*message.Message{message.NewMessage("half", nil)}, errors.New("later")
			case 2:
				panic("later")
			}
			stage(t, msg, "second")
			return nil, nil
		})))
	msg := consumed(l)
	stage(t, msg, "before")
	produced, err := h(msg)
	require.NoError(t, err)
	require.Empty(t, produced)
	require.Equal(t, 3, attempts)
	require.Equal(t, []string{"before", "first", "second"}, slices.Clone(l.staged))
}

// PoisonQueue publishes what a failed handler has returned, unless that is gone.
func TestUnitReturnsNothingWithAnError(t *testing.T) {
	t.Parallel()
	produced, err := middleware.Unit(func(*message.Message) ([]*message.Message, error) {
		return []*message.Message{message.NewMessage("half", nil)}, errors.New("no")
	})(consumed(&list{}))
	require.EqualError(t, err, "no")
	require.Empty(t, produced)
}

func TestWithoutUnit(t *testing.T) {
	t.Parallel()
	msg := message.NewMessage("in", nil)
	produced, err := middleware.Unit(message.PassthroughHandler)(msg)
	require.NoError(t, err)
	require.Equal(t, []*message.Message{msg}, produced)
	require.Nil(t, transport.UnitFrom(produced[0].Context()))
}
