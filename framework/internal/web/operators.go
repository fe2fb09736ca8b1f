package web

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"time"
)

// operatorsPatience is how long requests of operators may take to end with the service.
const operatorsPatience = 5 * time.Second

// Operators is the server for operators, which a service has beside its own. A nil one serves nothing.
type Operators struct {
	*Routes
	listener net.Listener
	server   *http.Server
	log      *slog.Logger
	closers  []func()
}

// NewOperators listens at the address, Config.Admin.Address.
func NewOperators(ctx context.Context, cfg Config, address string, log *slog.Logger) (*Operators, error) {
	listener, err := Listen(ctx, "Config.Admin.Address (admin.address)", address)
	if err != nil {
		return nil, err
	}
	server, err := NewServer(cfg, "Admin", "admin", log)
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return &Operators{Routes: NewRoutes(), listener: listener, server: server, log: log}, nil
}

// Address is the host:port on which it listens, "" without a server.
func (o *Operators) Address() string {
	if o == nil {
		return ""
	}
	return o.listener.Addr().String()
}

// OnShutdown calls end when the server begins to end: for answers that would not end by themselves.
func (o *Operators) OnShutdown(end func()) { o.server.RegisterOnShutdown(end) }

// OnClose calls closer in Close, the one that was added last at first.
func (o *Operators) OnClose(closer func()) { o.closers = append(o.closers, closer) }

// Serve serves until end is called.
func (o *Operators) Serve() (end func()) {
	if o == nil {
		return func() {}
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := Serve(o.server, o.listener, o.Wrapped()); err != nil {
			o.log.Error("the server for operators has ended", slog.Any("error", err))
		}
	}()
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), operatorsPatience)
		defer cancel()
		if o.server.Shutdown(ctx) != nil {
			_ = o.server.Close() // an operator's request must not hold up the end of the service
		}
		<-ended
	}
}

// Close closes what it was made of.
func (o *Operators) Close() {
	if o == nil {
		return
	}
	_ = o.listener.Close() // which Serve has closed already
	for _, closer := range slices.Backward(o.closers) {
		closer()
	}
}
