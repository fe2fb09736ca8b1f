package kafka_test

import (
	"crypto/x509"
	"encoding/pem"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

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
