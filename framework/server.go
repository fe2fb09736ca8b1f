package framework

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Server configures one of a service's HTTP servers.
type Server struct {
	// ReadHeaderTimeout is how long a request's header may take. Default: 10 s.
	ReadHeaderTimeout time.Duration
	// ReadTimeout is how long a request may take to arrive, header and body. It does not bound its handler. A handler whose clients send
	// for longer switches it off for its request: http.NewResponseController(w).SetReadDeadline(time.Time{}). Default: 1 min.
	ReadTimeout time.Duration
	// WriteTimeout is how long a request may take from the end of its header to the end of its answer: its handler's time counts. The
	// console's live pages and push requests are exempt. A handler that streams sets its own limit, by http.ResponseController.
	// Default: 0, no limit.
	WriteTimeout time.Duration
	// IdleTimeout is how long a connection is kept for the next request. Make it longer than the load balancer's. Default: 2 min.
	IdleTimeout time.Duration
	// TLS makes the server one of HTTPS. Default: the server speaks HTTP.
	TLS ServerTLS
}

// ServerTLS names the files of a server's certificate. Files that are replaced are read again, within a second and without a restart.
type ServerTLS struct {
	// CertFile and KeyFile hold the certificate, with its chain, and its key, PEM. Default: "", no TLS.
	CertFile string
	KeyFile  string
}

// WithDefaults returns the configuration with every zero field set to its default.
func (c Server) WithDefaults() Server {
	c.ReadHeaderTimeout = cmp.Or(c.ReadHeaderTimeout, 10*time.Second)
	c.ReadTimeout = cmp.Or(c.ReadTimeout, time.Minute)
	c.IdleTimeout = cmp.Or(c.IdleTimeout, 2*time.Minute)
	return c
}

// Validate reports everything that is wrong with the configuration. It expects one that has its defaults.
func (c Server) Validate() error {
	var errs []error
	for _, d := range []struct {
		field string
		value time.Duration
	}{{"ReadHeaderTimeout", c.ReadHeaderTimeout}, {"ReadTimeout", c.ReadTimeout}, {"WriteTimeout", c.WriteTimeout}, {"IdleTimeout", c.IdleTimeout}} {
		if d.value < 0 {
			errs = append(errs, fmt.Errorf("Config.%s is %s: want more than 0, or 0 for the default", d.field, d.value))
		}
	}
	if c.TLS.CertFile == "" && c.TLS.KeyFile != "" {
		errs = append(errs, errors.New("Config.TLS.CertFile is empty beside Config.TLS.KeyFile: want the file of the certificate, or neither"))
	}
	if c.TLS.CertFile != "" && c.TLS.KeyFile == "" {
		errs = append(errs, errors.New("Config.TLS.KeyFile is empty beside Config.TLS.CertFile: want the file of the certificate's key, or neither"))
	}
	return errors.Join(errs...)
}

// server returns a server whose certificate is read. The configuration is Config.HTTP, say, and http in a file.
func (c Server) server(field, key string, log *slog.Logger) (*http.Server, error) {
	s := &http.Server{
		ReadHeaderTimeout: c.ReadHeaderTimeout, ReadTimeout: c.ReadTimeout, WriteTimeout: c.WriteTimeout, IdleTimeout: c.IdleTimeout,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	if c.TLS != (ServerTLS{}) {
		files := &certificate{files: c.TLS, log: log}
		if err := files.read(); err != nil {
			return nil, fmt.Errorf("Config.%s.TLS.CertFile (%s.tls.cert_file) is %q, and KeyFile (key_file) %q: want a certificate and its key, PEM: %w",
				field, key, c.TLS.CertFile, c.TLS.KeyFile, err)
		}
		s.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: files.get}
	}
	return s, nil
}

// serve serves h until the server is shut down.
func serve(s *http.Server, l net.Listener, h http.Handler) (err error) {
	s.Handler = received(h)
	if s.TLSConfig != nil {
		err = s.ServeTLS(l, "", "")
	} else {
		err = s.Serve(l)
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// received lifts the read timeout from a request that has arrived: net/http would take its client for gone, and cancel the context of
// a handler that takes longer.
func received(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		lift := func() { _ = http.NewResponseController(w).SetReadDeadline(time.Time{}) }
		if r.Body == http.NoBody {
			lift()
		} else {
			r.Body = &body{r.Body, lift}
		}
		h.ServeHTTP(w, r)
	})
}

// body calls end at its end.
type body struct {
	io.ReadCloser
	end func()
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF { // which readers return as it is
		b.end()
	}
	return n, err
}

// certificateAge is how long a certificate is used before its files are read again.
const certificateAge = time.Second

// certificate is that of a server. It is safe for concurrent use.
type certificate struct {
	files ServerTLS
	log   *slog.Logger

	pair atomic.Pointer[tls.Certificate]

	mu    sync.Mutex // held by the handshake that reads the files
	since time.Time
	told  string // the error that was logged last
}

// get implements tls.Config.GetCertificate. While the files are wrong, as those that are being replaced may be, the server keeps
// the certificate that it has. While one handshake reads the files, which may take as long as their file system hangs, the others use
// that certificate, too.
func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if c.mu.TryLock() {
		defer c.mu.Unlock()
		if time.Since(c.since) > certificateAge {
			c.readAgain()
		}
	}
	return c.pair.Load(), nil
}

func (c *certificate) readAgain() {
	told := ""
	if err := c.read(); err != nil {
		if told = err.Error(); told != c.told {
			c.log.Warn("the server's certificate cannot be read again: it keeps the one that it has", "file", c.files.CertFile, "error", err)
		}
	}
	c.told = told
}

func (c *certificate) read() error {
	c.since = time.Now()
	pair, err := tls.LoadX509KeyPair(c.files.CertFile, c.files.KeyFile)
	if err == nil {
		c.pair.Store(&pair)
	}
	return err
}

// Middleware wraps a handler of HTTP requests.
type Middleware = func(http.Handler) http.Handler

// routes are those of a server: the framework's own, and others, which have middleware.
type routes struct {
	*http.ServeMux
	own        []string // patterns
	middleware []Middleware
}

func newRoutes() *routes { return &routes{ServeMux: http.NewServeMux()} }

// handleOwn adds a route that goes without middleware, which might ask a probe, Prometheus or the broker for a login.
func (r *routes) handleOwn(pattern string, h http.Handler) {
	r.Handle(pattern, h)
	r.own = append(r.own, pattern)
}

// handler is what serves the routes.
func (r *routes) handler() http.Handler {
	wrapped := http.Handler(r.ServeMux)
	for _, m := range slices.Backward(r.middleware) {
		wrapped = m(wrapped)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		_, req.Pattern = r.Handler(req) // for middleware, and for the span, which does not see the request that middleware passes on
		if slices.Contains(r.own, req.Pattern) {
			r.ServeHTTP(w, req)
			return
		}
		wrapped.ServeHTTP(w, req)
	})
}

// Use wraps the routes of HTTP in middleware, the first one outermost. Each request passes the trace, which is begun outside of all
// middleware; then the middleware, whose context Publish, Tx and effects work with and whose request has the route in its Pattern;
// then the route with what is put around it, such as Keys: a login in middleware comes before the scope of a key is asked for, and a
// request that middleware refuses leaves its key unused. The answer goes the other way.
//
// The framework's own routes pass no middleware: /healthz, /readyz, /metrics, and those of push subscriptions. Nor does the server for
// operators, which has UseAdmin. Call Use before Run.
func (s *Service) Use(middleware ...Middleware) {
	s.mux.middleware = append(s.mux.middleware, middleware...)
}

// UseAdmin wraps the routes of the server for operators in middleware, the first one outermost: the console and /catalog, before
// Console.Authorize is asked, but not /healthz, /readyz and /metrics. Without Config.Admin.Address it does nothing. Call it before Run.
func (s *Service) UseAdmin(middleware ...Middleware) {
	if s.admin != nil {
		s.admin.mux.middleware = append(s.admin.mux.middleware, middleware...)
	}
}
