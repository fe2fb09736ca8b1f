package framework_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/millrace-go/millrace/framework"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/deadletter"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/memory"
)

// The three versions of an event.
type (
	orderPlaced struct {
		ID, Dollars int
	}
	orderPlacedV2 struct {
		ID, Cents int
	}
	orderPlacedV3 struct {
		ID, Cents int
		Currency  string
	}
)

func toCents(e orderPlaced) (orderPlacedV2, error) { return orderPlacedV2{e.ID, 100 * e.Dollars}, nil }

func toCurrency(e orderPlacedV2) (orderPlacedV3, error) {
	return orderPlacedV3{e.ID, e.Cents, "USD"}, nil
}

// A value that is not of the topic's type does not compile.
func TestTypedTopicsDoNotCompileWithAnotherType(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", os.DevNull, "./testdata/wrong_type").CombinedOutput()
	require.Error(t, err)
	var wrong []string
	for line := range strings.Lines(string(out)) {
		if file, message, found := strings.Cut(line, ": "); found && strings.HasPrefix(file, "framework/testdata") || strings.HasPrefix(file, "testdata") {
			wrong = append(wrong, strings.Split(file, ":")[1]+": "+message)
		}
	}
	require.Len(t, wrong, 3, string(out))
	assert.Contains(t, wrong[0], "18: cannot use OrderPaid")
	assert.Contains(t, wrong[1], "19: ")
	assert.Contains(t, wrong[2], "20: ")
}

// An event says which type and version it is of, and its handler finds that. Events of other libraries say nothing.
func TestTypedTopicsCarryTypeAndVersion(t *testing.T) {
	t.Parallel()
	carried := func(msg *message.Message, err error) string {
		require.NoError(t, err)
		return msg.Metadata.Get(framework.TypeMetadata) + " " + msg.Metadata.Get(framework.VersionMetadata)
	}
	ctx := t.Context()
	assert.Equal(t, "orderPlaced 1", carried(framework.Topic[orderPlaced]("o").Message(ctx, "", orderPlaced{})))
	assert.Equal(t, "orderPlaced 2", carried(framework.Topic[orderPlacedV2]("o").Message(ctx, "", orderPlacedV2{})))
	assert.Equal(t, "orderPlaced 2", carried(framework.Topic[*orderPlacedV2]("o").Message(ctx, "", nil)))
	assert.Equal(t, "Order 7", carried(framework.Topic[orderPlacedV2]("o", framework.EventType("Order", 7)).Message(ctx, "", orderPlacedV2{})))
	assert.Equal(t, "google.protobuf.Int64Value 1", carried(framework.Topic[*wrapperspb.Int64Value]("o").Message(ctx, "", wrapperspb.Int64(1))))
	assert.Equal(t, " ", carried(framework.Topic[json.RawMessage]("o").Message(ctx, "", json.RawMessage("{}"))))
	assert.Equal(t, " ", carried(framework.Topic[struct{ A int }]("o").Message(ctx, "", struct{ A int }{})))
}

// A consumer of version 3 handles events of versions 1 to 3, whatever they were written in, and those without a version.
func TestUpcastChain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "memory")
	svc := w.service(w.config())
	name := w.topic("orders")
	got, said := make(chan orderPlacedV3, 10), make(chan string, 10)
	latest := framework.Topic[orderPlacedV3](name, framework.Upcast(2, 3, toCurrency), framework.Upcast(1, 2, toCents))
	require.NoError(t, framework.Handle(svc, w.name("bill"), latest, func(ctx context.Context, e orderPlacedV3) error {
		event := framework.EventFrom(ctx)
		said <- fmt.Sprint(e.ID, ": ", event.Type, " ", event.Version)
		got <- e
		return nil
	}))
	asMessage := framework.Topic[string](w.topic("amounts"), framework.EventType("Amount", 2),
		framework.Upcast(1, 2, func(v *wrapperspb.Int64Value) (string, error) { return v.String(), nil }))
	amounts := make(chan string, 10)
	require.NoError(t, framework.Handle(svc, w.name("amount"), asMessage, func(_ context.Context, e string) error {
		amounts <- e
		return nil
	}))
	w.start(svc)
	w.publish(svc, func(ctx context.Context) {
		require.NoError(t, publish(ctx, name, "", orderPlaced{1, 1}))
		require.NoError(t, publish(ctx, name, "", orderPlacedV2{2, 200}))
		require.NoError(t, publish(ctx, name, "", orderPlacedV3{3, 300, "USD"}))
		require.NoError(t, svc.Outbox().Publish(name, message.NewMessageWithContext(ctx, outbox.NewID(), []byte(`{"ID": 4, "Dollars": 4}`))))
		amount := framework.Topic[*wrapperspb.Int64Value](w.topic("amounts"), framework.EventType("Amount", 1))
		require.NoError(t, amount.Publish(ctx, "", wrapperspb.Int64(7)))
	})
	var all []orderPlacedV3
	var kinds []string
	for range 4 {
		all, kinds = append(all, next(t, got)), append(kinds, next(t, said))
	}
	assert.ElementsMatch(t, []string{"1: orderPlaced 1", "2: orderPlaced 2", "3: orderPlaced 3", "4:  1"}, kinds)
	assert.ElementsMatch(t, []orderPlacedV3{{1, 100, "USD"}, {2, 200, "USD"}, {3, 300, "USD"}, {4, 400, "USD"}}, all)
	assert.Contains(t, next(t, amounts), "7")
}

// publish runs fn in a transaction in which topics publish.
func (w *world) publish(svc *framework.Service, fn func(ctx context.Context)) {
	w.t.Helper()
	require.NoError(w.t, svc.Tx(w.t.Context(), func(ctx context.Context, _ pgx.Tx) error {
		fn(ctx)
		return nil
	}))
}

// A handler never guesses at an event whose version or type it does not know: the event waits, is dead or is ignored, and no
// function is called. What waits, and what is replayed, the next version of the service handles.
func TestUpcastOfUnknownVersions(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "memory")
	cfg := w.config()
	cfg.Handlers = map[string]framework.Handler{
		w.name("dead"):   {UnknownVersions: framework.Dead},
		w.name("ignore"): {UnknownVersions: framework.Ignore},
	}
	name, handlers := w.topic("orders"), []string{"wait", "dead", "ignore"}
	old := w.service(cfg)
	for _, handler := range handlers {
		require.NoError(t, handle(old, w.name(handler), name, func(_ context.Context, e orderPlaced) error {
			assert.Fail(t, "it guesses", "%s: %v", handler, e)
			return nil
		}))
	}
	stop := w.start(old)
	w.publish(old, func(ctx context.Context) {
		require.NoError(t, publish(ctx, name, "", orderPlacedV2{1, 100}))
		require.NoError(t, publish(ctx, name, "", labourCompleted{LabourID: 1}))
	})
	failed := func(handler, state, reason string) int {
		return w.get(`select count(*) from {s}.claim_failed join {s}.consumer c on c.id = consumer where c.name = 'labour/` + w.name(handler) + `' and state = '` + state + `' and reason = '` + reason + `'`)
	}
	w.eventually("each policy", func() bool {
		return failed("wait", "retrying", "retry") == 2 && failed("dead", "dead", "permanent") == 2 &&
			w.get(`select count(*) from {s}.processed join {s}.consumer c on c.id = consumer where c.name = 'labour/`+w.name("ignore")+`'`) == 2
	})
	stop()
	assert.Equal(t, 4, w.get(`select count(*) from {s}.claim_failed`), "nothing is kept of what is ignored")
	assert.Equal(t, 2, w.get(`select count(*) from {s}.claim_failed where error like '%the event is version 2 of orderPlaced, and this handler knows only version 1 of orderPlaced%'`))
	assert.Equal(t, 2, w.get(`select count(*) from {s}.claim_failed where error like '%the event is version 1 of labourCompleted%'`))

	_, err := deadletter.Replay(t.Context(), w.pool, w.schema, deadletter.Selection{}, deadletter.By{Actor: "test"})
	require.NoError(t, err)
	got := make(chan string, 10)
	svc := w.service(cfg)
	for _, handler := range handlers {
		require.NoError(t, handle(svc, w.name(handler), name, func(_ context.Context, e orderPlacedV2) error {
			assert.Equal(t, orderPlacedV2{1, 100}, e)
			got <- handler
			return nil
		}))
	}
	w.start(svc)
	assert.ElementsMatch(t, []string{"wait", "dead"}, []string{next(t, got), next(t, got)})
	assert.Empty(t, got)
}

// A dead letter that is replayed, and an event that was delayed, go through the upcasts of the service that handles them.
func TestUpcastReachesDeadLettersAndDelayedEvents(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "memory")
	old := framework.Topic[orderPlaced](w.topic("orders"))
	svc := w.service(w.config())
	require.NoError(t, framework.Handle(svc, w.name("bill"), old, func(context.Context, orderPlaced) error {
		return claim.Permanent(assert.AnError)
	}))
	stop := w.start(svc)
	w.publish(svc, func(ctx context.Context) { require.NoError(t, old.Publish(ctx, "", orderPlaced{1, 1})) })
	w.eventually("a dead letter", func() bool { return w.get(`select count(*) from {s}.claim_failed where state = 'dead'`) == 1 })
	stop()

	second := framework.Topic[orderPlacedV2](w.topic("orders"), framework.Upcast(1, 2, toCents))
	svc = w.service(w.config())
	w.publish(svc, func(ctx context.Context) {
		msg, err := old.Message(ctx, "", orderPlaced{2, 2})
		require.NoError(t, err)
		outbox.SetDeliverAfter(msg, time.Second)
		require.NoError(t, svc.Outbox().Publish(old.Name(), msg))
	})
	_, err := deadletter.Replay(t.Context(), w.pool, w.schema, deadletter.Selection{}, deadletter.By{Actor: "test"})
	require.NoError(t, err)
	got := make(chan orderPlacedV2, 10)
	require.NoError(t, framework.Handle(svc, w.name("bill"), second, func(ctx context.Context, e orderPlacedV2) error {
		assert.Equal(t, e.ID == 2, framework.EventFrom(ctx).Metadata.Get(outbox.DueMetadata) != "", "the delayed one")
		got <- e
		return nil
	}))
	w.start(svc)
	assert.ElementsMatch(t, []orderPlacedV2{{1, 100}, {2, 200}}, []orderPlacedV2{next(t, got), next(t, got)})
}

// An event whose upcast fails, and one whose version is no number, is dead at once.
func TestUpcastThatFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "memory")
	svc := w.service(w.config())
	name := w.topic("orders")
	refuse := func(orderPlaced) (orderPlacedV2, error) { return orderPlacedV2{}, assert.AnError }
	require.NoError(t, framework.Handle(svc, w.name("bill"), framework.Topic[orderPlacedV2](name, framework.Upcast(1, 2, refuse)),
		func(context.Context, orderPlacedV2) error { return nil }))
	w.start(svc)
	w.publish(svc, func(ctx context.Context) {
		require.NoError(t, publish(ctx, name, "", orderPlaced{1, 1}))
		msg, err := framework.Topic[orderPlaced](name).Message(ctx, "", orderPlaced{2, 2})
		require.NoError(t, err)
		msg.Metadata.Set(framework.VersionMetadata, "two")
		require.NoError(t, svc.Outbox().Publish(name, msg))
	})
	w.eventually("two dead letters", func() bool {
		return w.get(`select count(*) from {s}.claim_failed where state = 'dead' and reason = 'permanent'`) == 2
	})
	assert.Equal(t, 1, w.get(`select count(*) from {s}.claim_failed where error like '%upcast version 1 of orderPlaced to version 2: `+assert.AnError.Error()+`%'`))
	assert.Equal(t, 1, w.get(`select count(*) from {s}.claim_failed where error like '%metadata millrace_version is "two": want a number, 1 or more%'`))
}

// What is wrong with a topic is told when it is used.
func TestUpcastMistakes(t *testing.T) {
	t.Parallel()
	var svc *framework.Service // which is not asked
	for want, topic := range map[string]*framework.TopicOf[orderPlacedV3]{
		"the topic is empty": framework.Topic[orderPlacedV3](""),
		`EventType("o", 1000000000): want a name, and a version of 1 to 999999999`:                         framework.Topic[orderPlacedV3]("o", framework.EventType("o", 1_000_000_000)),
		`EventType("", 1): want a name`:                                                                    framework.Topic[orderPlacedV3]("o", framework.EventType("", 1)),
		"nothing leads from version 2 to the topic's version, 3":                                           framework.Topic[orderPlacedV3]("o", framework.Upcast(1, 2, toCents)),
		"returns framework_test.orderPlacedV2: want framework_test.orderPlacedV3, which version 3 is here": framework.Topic[orderPlacedV3]("o", framework.Upcast(1, 3, toCents)),
		"two upcasts lead from version 2":                                                                  framework.Topic[orderPlacedV3]("o", framework.Upcast(2, 3, toCurrency), framework.Upcast(2, 3, toCurrency)),
		"want a version of 1 or more, and a later one":                                                     framework.Topic[orderPlacedV3]("o", framework.Upcast(2, 2, toCurrency)),
		"the topic's own version is 3":                                                                     framework.Topic[orderPlacedV3]("o", framework.Upcast(3, 4, toCurrency)),
		"the function is nil":                                                                              framework.Topic[orderPlacedV3]("o", framework.Upcast[orderPlacedV2, orderPlacedV3](2, 3, nil)),
		"want *wrapperspb.Int64Value":                                                                      framework.Topic[orderPlacedV3]("o", framework.Upcast[wrapperspb.Int64Value, orderPlacedV3](2, 3, nil)),
	} {
		require.ErrorContains(t, framework.Handle(svc, "bill", topic, func(context.Context, orderPlacedV3) error { return nil }), want)
		_, err := topic.Message(t.Context(), "", orderPlacedV3{})
		require.ErrorContains(t, err, want)
	}
	_, err := framework.New(t.Context(), framework.Config{
		Service: "labour", Broker: "memory", Drivers: []transport.Driver{memory.Driver},
		Handlers: map[string]framework.Handler{"bill": {UnknownVersions: 7}},
	})
	require.ErrorContains(t, err, `Config.Handlers["bill"].UnknownVersions is Refusal(7): want Wait, Dead or Ignore`)
}
