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

// certificate is the certificate of a server, which it reads again when the files change. It is safe for concurrent use.
type certificate struct {
	certFile, keyFile string
	log               *slog.Logger

	pair atomic.Pointer[tls.Certificate]

	mu    sync.Mutex // held by the handshake that reads the files
	since time.Time
	told  string // the last logged error; "" if reading worked
}

// get implements tls.Config.GetCertificate. If the files are wrong, for example because they are being replaced, the server keeps
// its current certificate. Only one handshake reads the files, which can block if the file system hangs; other handshakes use the
// current certificate.
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
