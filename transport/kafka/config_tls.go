package kafka

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

// TLS is, in a configuration file, how connections are encrypted. In Go that is Config.TLS.
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
