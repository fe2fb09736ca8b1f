package kafka_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
)

// The files that a configuration names are read when it is checked, and not first when it is used.
func TestFilesOfTLSAreChecked(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	key, err := x509.MarshalPKCS8PrivateKey(server.TLS.Certificates[0].PrivateKey)
	require.NoError(t, err)
	cert := pemFile(t, "CERTIFICATE", server.Certificate().Raw)
	private := pemFile(t, "PRIVATE KEY", key)

	for _, c := range []struct {
		tls  kafka.TLS
		want string // "" for nothing wrong
	}{
		{kafka.TLS{}, ""},
		{kafka.TLS{Enabled: true}, ""},
		{kafka.TLS{Enabled: true, CAFile: cert, CertFile: cert, KeyFile: private, ServerName: "kafka"}, ""},
		{kafka.TLS{ServerName: "kafka"}, "Config.TLS.Enabled is false"},
		{kafka.TLS{Enabled: true, CAFile: private}, "Config.TLS.CAFile is"},
		{kafka.TLS{Enabled: true, CertFile: cert}, "Config.TLS.CertFile is"},
		{kafka.TLS{Enabled: true, CertFile: cert, KeyFile: cert}, "Config.TLS.CertFile is"},
	} {
		s := kafka.NewDriver(kafka.Config{Brokers: []string{"kafka.example:9093"}}).Settings()
		reflect.ValueOf(s).Elem().FieldByName("TLS").Set(reflect.ValueOf(c.tls))
		err := s.WithDefaults(transport.Environment{}).Validate()
		if c.want == "" {
			assert.NoError(t, err, "%+v", c.tls)
			continue
		}
		assert.ErrorContains(t, err, c.want, "%+v", c.tls)
		_, err = s.Open(t.Context(), transport.Environment{})
		assert.ErrorContains(t, err, c.want, "%+v", c.tls)
	}
}

func pemFile(t *testing.T, kind string, der []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file.pem")
	require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
	return path
}

// issued is an authority, and a certificate of it that brokers and clients use.
type issued struct{ authority, certificate, key []byte }

func issue(t *testing.T) issued {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	encoded := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate})
	return issued{encoded, encoded, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})}
}

// broker is the broker's side: it has the certificate, and takes clients of the authority alone.
func (i issued) broker(t *testing.T) *tls.Config {
	t.Helper()
	pair, err := tls.X509KeyPair(i.certificate, i.key)
	require.NoError(t, err)
	clients := x509.NewCertPool()
	require.True(t, clients.AppendCertsFromPEM(i.authority))
	return &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: clients, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS12}
}

// TestFilesOfTLSAreRotated: the brokers get certificates of another authority, and the service new files. New connections use
// them, without a restart. Files that are written halfway change nothing.
func TestFilesOfTLSAreRotated(t *testing.T) {
	t.Parallel()
	former, next := issue(t), issue(t)
	var broker atomic.Pointer[tls.Config]
	broker.Store(former.broker(t))
	brokers := fake(t, kfake.TLS(&tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return broker.Load(), nil }})).ListenAddrs()
	dir := t.TempDir()
	files := kafka.TLS{Enabled: true, CAFile: filepath.Join(dir, "ca.pem"), CertFile: filepath.Join(dir, "cert.pem"), KeyFile: filepath.Join(dir, "key.pem")}
	write := func(i issued) {
		for path, content := range map[string][]byte{files.CAFile: i.authority, files.CertFile: i.certificate, files.KeyFile: i.key} {
			require.NoError(t, os.WriteFile(path, content, 0o600))
		}
	}
	write(former)
	s := kafka.NewDriver(kafka.Config{Brokers: brokers}).Settings()
	reflect.ValueOf(s).Elem().FieldByName("TLS").Set(reflect.ValueOf(files))
	opened, err := s.WithDefaults(transport.Environment{}).Open(t.Context(), transport.Environment{})
	require.NoError(t, err)
	defer func() { require.NoError(t, opened.Close()) }()
	ping := func() error { return opened.(transport.Pinger).Ping(t.Context()) }
	require.NoError(t, ping())

	require.NoError(t, os.WriteFile(files.CertFile, next.certificate, 0o600)) // and not its key yet
	require.NoError(t, ping())

	broker.Store(next.broker(t))
	require.ErrorContains(t, ping(), "Config.TLS.RootCAs lacks")
	write(next)
	require.NoError(t, ping())
	publisher, err := opened.(*kafka.Transport).PlainPublisher()
	require.NoError(t, err)
	x := publisher.(transport.TransactionalPublisher).Transactions("rotated", 0) // over connections of their own
	defer func() { require.NoError(t, x.Close()) }()
	take(t, x)
	require.NoError(t, commit(t, x, "rotated", "note", "a"))

	broker.Store(former.broker(t))
	require.ErrorContains(t, ping(), "Config.TLS.RootCAs lacks", "the former authority is trusted no more")
}
