package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"time"

	"github.com/millrace-go/millrace/examples/internal/stage"
	"github.com/millrace-go/millrace/internal/quietport"
)

// pushPath is where the consumers mount Pub/Sub's push requests.
const pushPath = "/events"

// push has the addresses that Pub/Sub uses with -push.
type push struct {
	Endpoint string   // of the balancer, for Pub/Sub
	Backends []string // addresses, one for each consumer process
}

// startBalancer serves one URL for all consumer processes, as Cloud Run or a load balancer does. A request goes to a running
// process. If that process is killed, the request fails, and Pub/Sub sends its message again.
func startBalancer(ctx context.Context, consumers int) (*push, func(), error) {
	p := &push{}
	for range consumers {
		address, err := quietport.Address(ctx)
		if err != nil {
			return nil, nil, err
		}
		p.Backends = append(p.Backends, address)
	}
	way := &http.Transport{DialContext: p.dial, MaxIdleConnsPerHost: 100}
	address, stop, err := stage.Provider(ctx, &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: "consumers"}) },
		Transport: way,
		ErrorLog:  slog.NewLogLogger(slog.DiscardHandler, 0), // kills are what this example is about
	})
	p.Endpoint = "http://" + address + pushPath
	return p, func() {
		stop()
		way.CloseIdleConnections()
	}, err
}

// dial connects to a running consumer process.
func (p *push) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	var errs []error
	for _, i := range rand.Perm(len(p.Backends)) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, p.Backends[i])
		if err == nil {
			return conn, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// listen takes over the address of a killed process.
func (p *push) listen(ctx context.Context) (net.Listener, error) {
	var errs []error
	for _, address := range p.Backends {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
		if err == nil {
			return l, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// servePush serves Pub/Sub's push requests until ctx ends. Without -push there are none.
func (s *service) servePush(ctx context.Context) error {
	if s.cfg.Push == nil {
		return nil
	}
	broker, ok := s.broker.(interface{ PushHandler() http.Handler })
	if !ok {
		return fmt.Errorf("-push: %s has no push", s.broker.Name())
	}
	l, err := s.cfg.Push.listen(ctx)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("POST "+pushPath+"/", broker.PushHandler())
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	closed := make(chan error, 1)
	defer context.AfterFunc(ctx, func() {
		// Close the broker first: it waits for running handlers until their answers are sent.
		closed <- errors.Join(s.broker.Close(), server.Close())
	})()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-closed
}
