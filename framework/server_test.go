package framework_test

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework"
)

// issued is a certificate of that number for this machine, and its key, PEM.
func issued(t *testing.T, number int64) (cert, key []byte) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(number), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, k.Public(), k)
	require.NoError(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(k)
	require.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})
}

// Both servers speak HTTPS. Files that are replaced, one after the other, are used without a restart and without a request that fails.
func TestServerTLS(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "memory")
	folder := t.TempDir()
	files := framework.ServerTLS{CertFile: filepath.Join(folder, "tls.crt"), KeyFile: filepath.Join(folder, "tls.key")}
	oldCert, oldKey := issued(t, 1)
	newCert, newKey := issued(t, 2)
	put := func(path string, content []byte) { require.NoError(t, os.WriteFile(path, content, 0o600)) }
	put(files.CertFile, oldCert)
	put(files.KeyFile, oldKey)
	cfg := w.config()
	cfg.HTTP.TLS, cfg.Admin.Address, cfg.Admin.TLS = files, "127.0.0.1:0", files
	svc := w.service(cfg)
	stop := w.start(svc)

	trusted := x509.NewCertPool()
	require.True(t, trusted.AppendCertsFromPEM(append(oldCert, newCert...)))
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: trusted}, DisableKeepAlives: true, ForceAttemptHTTP2: true,
	}}
	number := func(address string) int64 {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+address+"/healthz", http.NoBody)
		require.NoError(t, err)
		res, err := client.Do(req)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		require.Equal(t, http.StatusOK, res.StatusCode)
		assert.Equal(t, 2, res.ProtoMajor)
		return res.TLS.PeerCertificates[0].SerialNumber.Int64()
	}
	for _, address := range []string{svc.Address(), svc.AdminAddress()} {
		assert.Equal(t, int64(1), number(address))
		code, _ := fetch(t, "http://"+address+"/healthz", nil)
		assert.Equal(t, http.StatusBadRequest, code, "without TLS")
	}
	put(files.CertFile, newCert) // beside the old key
	time.Sleep(3 * time.Second)  // the files are read
	assert.Equal(t, int64(1), number(svc.Address()), "half of a pair is not used")
	put(files.KeyFile, newKey)
	for _, address := range []string{svc.Address(), svc.AdminAddress()} {
		w.eventually("the new certificate", func() bool { return number(address) == 2 })
	}
	stop()
}

// TestServerTLSWhoseFilesHang: a file system that hung while a handshake read the certificate held up all other handshakes.
func TestServerTLSWhoseFilesHang(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "memory")
	folder := t.TempDir()
	files := framework.ServerTLS{CertFile: filepath.Join(folder, "tls.crt"), KeyFile: filepath.Join(folder, "tls.key")}
	cert, key := issued(t, 1)
	require.NoError(t, os.WriteFile(files.CertFile, cert, 0o600))
	require.NoError(t, os.WriteFile(files.KeyFile, key, 0o600))
	cfg := w.config()
	cfg.HTTP.TLS = files
	svc := w.service(cfg)
	w.start(svc)
	trusted := x509.NewCertPool()
	require.True(t, trusted.AppendCertsFromPEM(cert))
	handshake := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		defer cancel()
		conn, err := (&tls.Dialer{Config: &tls.Config{RootCAs: trusted}}).DialContext(ctx, "tcp", svc.Address())
		if err != nil {
			return err
		}
		return conn.Close()
	}
	require.NoError(t, handshake())

	pipe := filepath.Join(folder, "pipe") // which blocks its reader until somebody writes
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	require.NoError(t, os.Rename(pipe, files.CertFile))
	hung, opened := make(chan error, 1), make(chan struct{})
	go func() {
		for {
			err := handshake() // until one reads the files again
			select {
			case <-opened:
				hung <- err
				return
			default:
			}
			if err != nil {
				hung <- err
				_, _ = os.ReadFile(files.CertFile) // so that the test does not wait for a handshake that never reads
				return
			}
			time.Sleep(50 * time.Millisecond) // the files are read once a second
		}
	}()
	writer, err := os.OpenFile(files.CertFile, os.O_WRONLY, 0) // returns when a handshake has opened it
	require.NoError(t, err)
	close(opened)
	for range 3 {
		assert.NoError(t, handshake(), "the others go on")
	}
	require.NoError(t, writer.Close()) // an empty file is no certificate
	assert.NoError(t, <-hung, "it gets the certificate that was there")
}

// dialed sends text to the server, and returns the connection.
func dialed(t *testing.T, address, text string) net.Conn {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(wait)))
	_, err = io.WriteString(conn, text)
	require.NoError(t, err)
	return conn
}

// A client that sends its request too slowly, or sends none, holds no connection. A handler that takes longer than the request may
// is not told that its client has gone.
func TestServerTimeouts(t *testing.T) {
	t.Parallel()
	const limit = 3 * time.Second
	w := newWorld(t, "memory")
	cfg := w.config()
	cfg.HTTP.Server = framework.Server{ReadHeaderTimeout: limit, ReadTimeout: limit, IdleTimeout: limit}
	svc := w.service(cfg)
	read, outlived := make(chan error, 1), make(chan error, 2)
	svc.HTTP().HandleFunc("POST /read", func(_ http.ResponseWriter, r *http.Request) {
		_, err := io.Copy(io.Discard, r.Body)
		read <- err
	})
	svc.HTTP().HandleFunc("/slow", func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		select {
		case <-r.Context().Done():
		case <-time.After(2 * limit):
		}
		outlived <- r.Context().Err()
	})
	stop := w.start(svc)
	const host = "Host: labour\r\n"
	header := dialed(t, svc.Address(), "GET /healthz HTTP/1.1\r\nHo")
	body := dialed(t, svc.Address(), "POST /read HTTP/1.1\r\n"+host+"Content-Length: 10\r\n\r\nhalf")
	idle := dialed(t, svc.Address(), "GET /healthz HTTP/1.1\r\n"+host+"\r\n")
	for _, request := range []string{"GET /slow HTTP/1.1\r\n" + host + "\r\n", "POST /slow HTTP/1.1\r\n" + host + "Content-Length: 4\r\n\r\nbody"} {
		slow := dialed(t, svc.Address(), request)
		require.NoError(t, next(t, outlived), request)
		line, err := bufio.NewReader(slow).ReadString('\n')
		require.NoError(t, err)
		assert.Equal(t, "HTTP/1.1 200 OK\r\n", line)
	}
	require.ErrorIs(t, next(t, read), os.ErrDeadlineExceeded)
	for _, conn := range []net.Conn{header, body, idle} {
		_, err := io.Copy(io.Discard, conn)
		assert.NoError(t, err, "the server closes the connection")
	}
	stop()
}

// A live page of the console outlives the timeouts of its server, and an answer that takes too long ends with its connection.
func TestServerTimeoutsSpareTheConsole(t *testing.T) {
	t.Parallel()
	const limit = 3 * time.Second // a page hears something every 10 s
	w := newWorld(t, "memory")
	cfg := w.config()
	limits := framework.Server{ReadHeaderTimeout: limit, ReadTimeout: limit, WriteTimeout: limit, IdleTimeout: limit}
	cfg.HTTP.Server, cfg.Admin.Address, cfg.Admin.Server = limits, "127.0.0.1:0", limits
	svc := w.service(cfg)
	svc.HTTP().HandleFunc("GET /slow", func(http.ResponseWriter, *http.Request) { time.Sleep(2 * limit) })
	stop := w.start(svc)
	_, err := io.Copy(io.Discard, dialed(t, svc.Address(), "GET /slow HTTP/1.1\r\nHost: labour\r\n\r\n"))
	require.NoError(t, err)

	events := bufio.NewScanner(dialed(t, svc.AdminAddress(), "GET /console/labour/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"))
	beats := 0
	for beats < 2 && events.Scan() {
		if strings.HasPrefix(events.Text(), "event: ") {
			beats++
		}
	}
	assert.Equal(t, 2, beats, "%v", events.Err())
	stop()
}

// signed is the key of the context's value that the test's login leaves.
type signed struct{}

// Middleware sees each request of the routes, from the outside in, before the key of an idempotent route is looked at, and with the
// service in its context. It sees no probe. The server for operators has its own.
func TestMiddleware(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "memory")
	cfg := w.config()
	cfg.Admin.Address, cfg.Outbox.Relay = "127.0.0.1:0", framework.Apart
	cfg.Health.Timeout = 20 * time.Second // of a busy machine
	svc := w.service(cfg)
	var mu sync.Mutex
	var seen []string
	saw := func(what string) {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, what)
	}
	tell := func(name string) framework.Middleware {
		return func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				saw(name + " " + r.Pattern)
				h.ServeHTTP(rw, r)
				saw("/" + name)
			})
		}
	}
	login := func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			user := r.Header.Get("User")
			if user == "" {
				http.Error(rw, "who are you?", http.StatusUnauthorized)
				return
			}
			assert.NoError(t, svc.Tx(r.Context(), func(ctx context.Context, _ pgx.Tx) error { return publish(ctx, "logins", user, user) }))
			h.ServeHTTP(rw, r.WithContext(context.WithValue(r.Context(), signed{}, user)))
		})
	}
	svc.Use(tell("log"))
	svc.Use(tell("login"), login)
	svc.UseAdmin(tell("admin"))
	keys, err := svc.Keys(func(r *http.Request) (string, error) {
		saw("key")
		return r.Context().Value(signed{}).(string), nil
	})
	require.NoError(t, err)
	svc.HTTP().Handle("POST /payments", keys.Middleware(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		saw("pay")
		_, _ = fmt.Fprintf(rw, "paid by %s", r.Context().Value(signed{}))
	})))
	stop := w.start(svc)

	ask := func(method, url, user string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), method, url, http.NoBody)
		require.NoError(t, err)
		req.Header.Set("Idempotency-Key", "1")
		if user != "" {
			req.Header.Set("User", user)
		}
		mu.Lock()
		seen = nil
		mu.Unlock()
		res, err := (&http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}).Do(req)
		require.NoError(t, err)
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		return res.StatusCode, string(text)
	}
	had := func() []string { // the server ends a request after its answer
		var all []string
		w.eventually("the end of the request", func() bool {
			mu.Lock()
			defer mu.Unlock()
			all = seen
			return len(all) == 0 || len(all) > 1 && all[len(all)-1] == "/"+strings.Fields(all[0])[0]
		})
		return all
	}
	public, admin := "http://"+svc.Address(), "http://"+svc.AdminAddress()
	const route = "POST /payments"
	code, _ := ask(http.MethodPost, public+"/payments", "")
	assert.Equal(t, http.StatusUnauthorized, code)
	assert.Equal(t, []string{"log " + route, "login " + route, "/login", "/log"}, had(), "no key is looked at")
	code, text := ask(http.MethodPost, public+"/payments", "ann")
	assert.Equal(t, http.StatusOK, code)
	assert.Equal(t, "paid by ann", text)
	assert.Equal(t, []string{"log " + route, "login " + route, "key", "pay", "/login", "/log"}, had())
	_, text = ask(http.MethodPost, public+"/payments", "ann")
	assert.Equal(t, "paid by ann", text)
	assert.Equal(t, []string{"log " + route, "login " + route, "key", "/login", "/log"}, had(), "replayed")
	code, _ = ask(http.MethodGet, public+"/nowhere", "")
	assert.Equal(t, http.StatusUnauthorized, code)
	assert.Equal(t, []string{"log ", "login ", "/login", "/log"}, had())
	for _, url := range []string{public + "/healthz", public + "/readyz", admin + "/healthz", admin + "/readyz", admin + "/metrics"} {
		code, _ = ask(http.MethodGet, url, "")
		assert.Equal(t, http.StatusOK, code, url)
		assert.Empty(t, had(), url)
	}
	for url, pattern := range map[string]string{"/console/": "/console/", "/catalog": "GET /catalog"} {
		code, _ = ask(http.MethodGet, admin+url, "")
		assert.Less(t, code, http.StatusBadRequest, url)
		assert.Equal(t, []string{"admin " + pattern, "/admin"}, had(), url)
	}
	assert.Equal(t, 2, w.get(`select count(*) from {s}.outbox`), "what middleware has published")
	stop()
}
