package web

import (
	"crypto/tls"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// certificateAge is how long a certificate is used before its files are read again.
const certificateAge = time.Second

// certificate is that of a server. It is safe for concurrent use.
type certificate struct {
	certFile, keyFile string
	log               *slog.Logger

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
			c.log.Warn("the server's certificate cannot be read again: it keeps the one that it has", "file", c.certFile, "error", err)
		}
	}
	c.told = told
}

func (c *certificate) read() error {
	c.since = time.Now()
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err == nil {
		c.pair.Store(&pair)
	}
	return err
}
