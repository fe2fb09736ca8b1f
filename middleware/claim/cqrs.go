package claim

import (
	"context"
	"fmt"
	"reflect"
	"sync"

	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/middleware/claim/internal/redelivery"
)

// OnEvent is for Watermill's cqrs.EventProcessorConfig.OnHandle. The handler runs under a claim of a consumer with the
// handler's name, and its context carries the transaction. Use OnEvent instead of Middleware, so that event types without a
// handler cost no claim. With both of them the handler fails with ErrNestedClaim.
//
// An event's ID is the UUID of its message, so set the marshaler's NewUUID to outbox.NewID.
func (c *Claim) OnEvent(params cqrs.EventProcessorOnHandleParams) error {
	return c.onHandle(params.Message, params.Handler.HandlerName(), params.Handler.Handle, params.Event)
}

// OnCommand is like OnEvent, for cqrs.CommandProcessorConfig.OnHandle.
func (c *Claim) OnCommand(params cqrs.CommandProcessorOnHandleParams) error {
	return c.onHandle(params.Message, params.Handler.HandlerName(), params.Handler.Handle, params.Command)
}

// OnGroupEvent is like OnEvent, for cqrs.EventGroupProcessorConfig.OnHandle. Each handler of the group is a consumer of its
// own. The consumer has the handler's name if there is one (handlers of cqrs.NewEventHandler have one), else "<group>.<event's name>".
// When a handler fails, those before it do not run again. It is an error if two handlers of a group would be the same consumer.
//
// The subscriber of the group may be wrapped by Subscriber once for each handler, one wrapper around the other.
func (c *Claim) OnGroupEvent(params cqrs.EventGroupProcessorOnHandleParams) error {
	var name string
	if named, ok := params.Handler.(interface{ HandlerName() string }); ok {
		name = named.HandlerName()
	}
	if name == "" {
		name = params.GroupName + "." + params.EventName
	}
	if err := c.groups.own(params, name); err != nil {
		return err
	}
	original := params.Message.Context()
	ctx := context.WithValue(original, groupKey{}, true)
	if from := redelivery.From(original); from != nil {
		consumer := c.consumer(name)
		if from.Event != nil && from.Consumer != consumer {
			return nil // it is redelivered for another handler of the group
		}
		for from.Inner != nil && from.Consumer != consumer {
			from = from.Inner
		}
		ctx = redelivery.With(ctx, from)
	}
	params.Message.SetContext(ctx)
	defer params.Message.SetContext(original)
	return c.onHandle(params.Message, name, params.Handler.Handle, params.Event)
}

type groupKey struct{}

// grouped reports whether other handlers of the message may follow, those of a group of Watermill's CQRS.
func grouped(ctx context.Context) bool { return ctx.Value(groupKey{}) != nil }

func (c *Claim) onHandle(msg *message.Message, handler string, handle func(context.Context, any) error, event any) error {
	return c.process(msg, handler, func(ctx context.Context) error {
		msg.SetContext(ctx) // cqrs.OriginalMessageFromCtx must return a message with this context
		return handle(ctx, event)
	})
}

// scopes maps group, event and scope to the handler of the group.
type scopes struct{ sync.Map }

// own records that the handler has the scope. A second handler with the scope would find every event processed, and never run.
func (s *scopes) own(params cqrs.EventGroupProcessorOnHandleParams, name string) error {
	if !reflect.ValueOf(params.Handler).Comparable() {
		return nil
	}
	scope := [3]string{params.GroupName, params.EventName, name}
	if first, known := s.LoadOrStore(scope, params.Handler); known && first != any(params.Handler) {
		return fmt.Errorf("claim event: two handlers of group %q for event %q have the scope %q: give each a name with cqrs.NewEventHandler",
			params.GroupName, params.EventName, name)
	}
	return nil
}
