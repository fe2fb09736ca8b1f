package framework_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/framework"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/memory"
)

// orderLog prints selected log records of the router and the claim.
type orderLog struct{}

func (orderLog) Enabled(context.Context, slog.Level) bool { return true }
func (l orderLog) WithAttrs([]slog.Attr) slog.Handler     { return l }
func (l orderLog) WithGroup(string) slog.Handler          { return l }
func (orderLog) Handle(ctx context.Context, r slog.Record) error {
	switch r.Message {
	case "Handler returned error":
		fmt.Println("router: an error, as the recoverer makes of the claim's panic")
	case "event failed and will be tried again":
		fmt.Println("claim: rolled back, in the event's context:", framework.EventFrom(ctx).ID != "")
	}
	return nil
}

// A message passes the recoverer, the context, the claim, the caller's middleware and the handler, in this order. The recoverer
// catches even a panic of the claim. The claim has the event's context. Middleware that the caller adds runs in the claim's
// transaction: it sees no duplicates and no contended events, and its writes are rolled back with the handler's.
func ExampleService_Router() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	postgres, drop := database(ctx)
	defer drop()
	var claimPanics, handlerPanics atomic.Bool
	svc, err := patientNew(ctx, framework.Config{
		Service: "labour", Broker: "memory", Drivers: []transport.Driver{memory.Driver},
		HTTP:     framework.HTTP{Address: "127.0.0.1:0"},
		Postgres: postgres,
		Log:      framework.Log{Handler: orderLog{}},
		Claim: framework.Claim{Config: claim.Config{
			Backoff: func(int) time.Duration { return time.Millisecond },
			Consumer: func(handler string) string {
				if claimPanics.Swap(false) {
					panic("the claim")
				}
				return handler
			},
		}},
	})
	if err != nil {
		panic(err)
	}
	svc.Router().AddMiddleware(func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			_, within := pgtx.From(msg.Context())
			fmt.Println("middleware, in a transaction:", within)
			return h(msg)
		}
	})
	arrived := framework.Topic[string]("guest.arrived")
	handled := make(chan struct{})
	err = framework.Handle(svc, "greet", arrived, func(ctx context.Context, name string) error {
		if handlerPanics.Swap(false) {
			panic("the handler")
		}
		_, within := pgtx.From(ctx)
		fmt.Printf("handler of %s, in a transaction: %t\n", name, within)
		close(handled)
		return nil
	})
	if err != nil {
		panic(err)
	}
	ended := make(chan error, 1)
	running, end := context.WithCancel(ctx)
	go func() { ended <- svc.Run(running) }()
	select {
	case <-svc.Running():
	case err := <-ended:
		panic(err)
	}

	claimPanics.Store(true)
	handlerPanics.Store(true)
	err = svc.Tx(ctx, func(ctx context.Context, _ pgx.Tx) error {
		return arrived.Publish(ctx, "", "Ada")
	})
	if err != nil {
		panic(err)
	}
	<-handled
	end()
	fmt.Println("ended:", <-ended)
	// Output:
	// router: an error, as the recoverer makes of the claim's panic
	// middleware, in a transaction: true
	// claim: rolled back, in the event's context: true
	// middleware, in a transaction: true
	// handler of Ada, in a transaction: true
	// ended: <nil>
}
