package kafka

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
)

// TLS is, in a configuration file, how connections are encrypted. In Go that is Config.TLS. The files are read again for each new
// connection, so certificates are rotated without a restart.
type TLS struct {
	// Enabled encrypts the connections. Default: false.
	Enabled bool
	// CAFile holds the certificates, PEM, that brokers' are checked against. Default: "", the system's.
	CAFile string
	// CertFile and KeyFile hold this service's own certificate and its key, PEM. Default: "", none.
	CertFile string
	KeyFile  string
	// ServerName is what the brokers' certificates must be for. Default: "", the host of each broker's address.
	ServerName string
}

// config returns base with what t says; beside an error, maybe less.
func (t TLS) config(base *tls.Config) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if base != nil {
		c = base.Clone()
	}
	if !t.Enabled {
		return base, errors.New("Config.TLS.Enabled is false, and other settings of TLS are there: want true, or none of them")
	}
	if t.ServerName != "" {
		c.ServerName = t.ServerName
	}
	var errs []error
	if t.CAFile != "" {
		pem, err := os.ReadFile(t.CAFile)
		pool := x509.NewCertPool()
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("Config.TLS.CAFile is %q: want a file of certificates: %w", t.CAFile, err))
		case !pool.AppendCertsFromPEM(pem):
			errs = append(errs, fmt.Errorf("Config.TLS.CAFile is %q: want a file of certificates, and there is none in it", t.CAFile))
		}
		c.RootCAs = pool
	}
	if t.CertFile != "" || t.KeyFile != "" {
		pair, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
		if err != nil {
			errs = append(errs, fmt.Errorf("Config.TLS.CertFile is %q, and Config.TLS.KeyFile %q: want a certificate and its key: %w", t.CertFile, t.KeyFile, err))
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, errors.Join(errs...)
}

// reader returns what reads the files again. While they cannot be used, as in the middle of a rotation, it returns the former TLS.
func (t TLS) reader(base, former *tls.Config, log *slog.Logger) func() *tls.Config {
	var mu sync.Mutex
	return func() *tls.Config {
		mu.Lock()
		defer mu.Unlock()
		if next, err := t.config(base); err != nil {
			log.Warn("the files of TLS cannot be used: new connections use what was in them before", slog.Any("error", err))
		} else {
			former = next
		}
		return former
	}
}
