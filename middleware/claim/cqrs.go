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

// OnEvent is Watermill's cqrs.EventProcessorConfig.OnHandle: the handler runs under a claim in the scope of its name, and
// its context carries the transaction. It takes the place of Middleware, so that event types that nobody handles cost no
// claim: with both of them the handler fails with ErrNestedClaim.
//
// An event's ID is its message's UUID: give the marshaler NewUUID: outbox.NewID.
func (c *Claim) OnEvent(params cqrs.EventProcessorOnHandleParams) error {
	return c.onHandle(params.Message, params.Handler.HandlerName(), params.Handler.Handle, params.Event)
}

// OnCommand is OnEvent for cqrs.CommandProcessorConfig.OnHandle.
func (c *Claim) OnCommand(params cqrs.CommandProcessorOnHandleParams) error {
	return c.onHandle(params.Message, params.Handler.HandlerName(), params.Handler.Handle, params.Command)
}

// OnGroupEvent is OnEvent for cqrs.EventGroupProcessorConfig.OnHandle. Each handler of the group has a scope of its own:
// that of its name where it has one, as those of cqrs.NewEventHandler do, else "<group>.<event's name>". When one of
// them fails, those before it do not run again. Two handlers of one group that would share a scope are an error.
//
// The subscriber of the group may be wrapped by Subscriber once for each of its handlers, one wrapper around the other.
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
	if from := redelivery.From(original); from != nil {
		consumer := c.consumer(name)
		if from.Event != nil && from.Consumer != consumer {
			return nil // it is brought back for another handler of the group
		}
		for from.Inner != nil && from.Consumer != consumer {
			from = from.Inner
		}
		params.Message.SetContext(redelivery.With(original, from))
		defer params.Message.SetContext(original)
	}
	return c.onHandle(params.Message, name, params.Handler.Handle, params.Event)
}

func (c *Claim) onHandle(msg *message.Message, handler string, handle func(context.Context, any) error, event any) error {
	return c.process(msg, handler, func(ctx context.Context) error {
		msg.SetContext(ctx) // as for cqrs.OriginalMessageFromCtx
		return handle(ctx, event)
	})
}

// scopes are handlers of groups by group, event and scope.
type scopes struct{ sync.Map }

// own remembers whose scope that is. The second handler of one scope would find every event processed, and never run.
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
