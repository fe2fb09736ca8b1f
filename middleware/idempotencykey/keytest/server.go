package keytest

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"
)

// Syntax is the form in which a server accepts the header's value.
type Syntax int

// Forms of the header.
const (
	Quoted       Syntax = iota // a String of structured fields, as in the draft; other values are refused
	QuotedOrBare               // a String, or the same key without quotes
	Opaque                     // the header's value is the key, without parsing, as in Stripe's API
)

// Server is the server under test and its claims. Set either Handler, or URL and Operation.
type Server struct {
	// Handler returns the middleware around operation. Run calls it once and serves it on this machine.
	Handler func(operation http.Handler) http.Handler

	// URL is the address of a running server, such as "http://127.0.0.1:8080". If its middleware accepts a request under /keytest/,
	// the server must pass it to Operation, for instance as a reverse proxy, and return the response.
	URL string

	// Operation is the listener where Run serves the operation for URL. Run closes it.
	Operation net.Listener

	// Keys is the form in which the server accepts the header. Default: Quoted.
	Keys Syntax

	// KeyOptional says that a request without a key is executed. Default: it is refused with 400.
	KeyOptional bool

	// ReuseStatus is the status if a key was used for another request. Default: 422.
	ReuseStatus int

	// RetryErrors says that a 5xx of the operation is not stored: the repeated request is executed. Default: it is replayed.
	RetryErrors bool

	// Waits says that a request whose key is in use waits for the first request and gets its response. Default: it is refused with
	// 409.
	Waits bool

	// Authenticate makes r a request of the account. Default: none; the case about accounts is left out.
	Authenticate func(r *http.Request, account string)

	// Expire expires all stored keys. Default: none; the case about expiry is left out.
	Expire func() error

	// Unclaimed names more cases to leave out. Default: none.
	Unclaimed []string

	patience time.Duration // 0: a minute
}

// Run runs the cases one after the other, each as a subtest with its name.
func Run(t *testing.T, s Server) {
	t.Helper()
	if err := s.validate(); err != nil {
		t.Fatalf("keytest: %v", err)
	}
	x, closeAll := s.start()
	defer closeAll()
	for _, c := range cases {
		if !s.claims(c) {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			if err := c.run(x.begin(t.Context())); err != nil {
				t.Errorf("%v\nsource: %s", err, c.source)
			}
		})
	}
}

func (s Server) validate() error {
	var errs []error
	refuse := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	switch {
	case s.Handler == nil && s.URL == "":
		refuse("Server.Handler and Server.URL are empty: want one of them")
	case s.Handler != nil && s.URL != "":
		refuse("Server.Handler and Server.URL are both set: want one of them")
	case (s.URL != "") != (s.Operation != nil):
		refuse("Server.URL is %q and Server.Operation is %v: want both or neither", s.URL, s.Operation)
	}
	if s.Keys < Quoted || s.Keys > Opaque {
		refuse("Server.Keys is %d: want Quoted, QuotedOrBare or Opaque", s.Keys)
	}
	if s.ReuseStatus != 0 && (s.ReuseStatus < 400 || s.ReuseStatus > 499) {
		refuse("Server.ReuseStatus is %d: want 400 to 499, or 0 for 422", s.ReuseStatus)
	}
	for _, name := range s.Unclaimed {
		if !slices.ContainsFunc(cases, func(c testCase) bool { return c.name == name }) {
			refuse("Server.Unclaimed has %q: want names of cases, which the package's comment lists", name)
		}
	}
	return errors.Join(errs...)
}

func (s Server) claims(c testCase) bool {
	return (c.when == nil || c.when(s)) && !slices.Contains(s.Unclaimed, c.name)
}

func (s Server) reuseStatus() int {
	if s.ReuseStatus == 0 {
		return http.StatusUnprocessableEntity
	}
	return s.ReuseStatus
}

// start serves Handler, or the operation for URL.
func (s Server) start() (*suite, func()) {
	x := &suite{server: s, patience: s.patience, client: &http.Client{
		Transport:     &http.Transport{},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	if x.patience == 0 {
		x.patience = time.Minute
	}
	var served *httptest.Server
	if s.Handler != nil {
		served = httptest.NewServer(x.watched(s.Handler(http.HandlerFunc(x.operate))))
		x.url = served.URL
	} else {
		served = httptest.NewUnstartedServer(http.HandlerFunc(x.operate))
		_ = served.Listener.Close()
		served.Listener = s.Operation
		served.Start()
		x.url = strings.TrimSuffix(s.URL, "/")
	}
	return x, func() {
		x.releaseAll()
		x.client.CloseIdleConnections()
		served.Close()
	}
}
