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

// operatorsPatience bounds how long a stopping service waits for requests of operators.
const operatorsPatience = 5 * time.Second

// Operators is the HTTP server for operators. A nil Operators serves nothing.
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

// Address returns the host:port on which the server listens, or "" for a nil server.
func (o *Operators) Address() string {
	if o == nil {
		return ""
	}
	return o.listener.Addr().String()
}

// OnShutdown registers end to be called when the shutdown begins. It is for responses that would otherwise not end, such as
// streams.
func (o *Operators) OnShutdown(end func()) { o.server.RegisterOnShutdown(end) }

// OnClose registers closer to be called by Close. Closers run in reverse order of registration.
func (o *Operators) OnClose(closer func()) { o.closers = append(o.closers, closer) }

// Serve starts to serve. end stops the server and waits for it.
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

// Close closes the listener and calls the registered closers.
func (o *Operators) Close() {
	if o == nil {
		return
	}
	_ = o.listener.Close() // Serve may have closed it already
	for _, closer := range slices.Backward(o.closers) {
		closer()
	}
}
