// Package web has the common parts of a service's HTTP servers: sockets, certificates and routes.
package web

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"time"
)

// Listen listens on the address. field is the name of its setting, for errors.
func Listen(ctx context.Context, field, address string) (net.Listener, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("listen at %s: another process does: stop that one, or change %s: %w", address, field, err)
	case err != nil:
		return nil, fmt.Errorf("listen at %s: want %s to be host:port of this machine: %w", address, field, err)
	}
	return l, nil
}

// NotImplemented answers all requests with 501 and the reason.
func NotImplemented(what string, err error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, what+": "+err.Error(), http.StatusNotImplemented)
	})
}

// Config configures a server. The framework's Server documents the fields; WithDefaults has set them.
type Config struct {
	ReadHeaderTimeout, ReadTimeout, WriteTimeout, IdleTimeout time.Duration
	CertFile, KeyFile                                         string
}

// Validate reports everything that is wrong with the configuration.
func (c Config) Validate() error {
	var errs []error
	for _, d := range []struct {
		field string
		value time.Duration
	}{{"ReadHeaderTimeout", c.ReadHeaderTimeout}, {"ReadTimeout", c.ReadTimeout}, {"WriteTimeout", c.WriteTimeout}, {"IdleTimeout", c.IdleTimeout}} {
		if d.value < 0 {
			errs = append(errs, fmt.Errorf("Config.%s is %s: want more than 0, or 0 for the default", d.field, d.value))
		}
	}
	if c.CertFile == "" && c.KeyFile != "" {
		errs = append(errs, errors.New("Config.TLS.CertFile is empty beside Config.TLS.KeyFile: want the file of the certificate, or neither"))
	}
	if c.CertFile != "" && c.KeyFile == "" {
		errs = append(errs, errors.New("Config.TLS.KeyFile is empty beside Config.TLS.CertFile: want the file of the certificate's key, or neither"))
	}
	return errors.Join(errs...)
}

// NewServer makes a server, and reads its certificate if it has one. field and key name the configuration's section in errors,
// such as HTTP and http.
func NewServer(c Config, field, key string, log *slog.Logger) (*http.Server, error) {
	s := &http.Server{
		ReadHeaderTimeout: c.ReadHeaderTimeout, ReadTimeout: c.ReadTimeout, WriteTimeout: c.WriteTimeout, IdleTimeout: c.IdleTimeout,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	if c.CertFile != "" || c.KeyFile != "" {
		files := &certificate{certFile: c.CertFile, keyFile: c.KeyFile, log: log}
		if err := files.read(); err != nil {
			return nil, fmt.Errorf("Config.%s.TLS.CertFile (%s.tls.cert_file) is %q, and KeyFile (key_file) %q: want a certificate and its key, PEM: %w",
				field, key, c.CertFile, c.KeyFile, err)
		}
		s.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: files.get}
	}
	return s, nil
}

// Serve serves h until the server is shut down.
func Serve(s *http.Server, l net.Listener, h http.Handler) (err error) {
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

// received removes the read timeout once the request has arrived completely. Otherwise net/http would take the client for gone
// when a handler takes longer, and cancel the request's context.
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

// body calls end when it has been read completely.
type body struct {
	io.ReadCloser
	end func()
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF { // not errors.Is: readers return io.EOF unwrapped
		b.end()
	}
	return n, err
}

// IsAddress reports whether hostport is an address to listen on.
func IsAddress(hostport string) bool {
	_, port, err := net.SplitHostPort(hostport)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	return err == nil
}
