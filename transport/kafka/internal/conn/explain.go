package conn

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"

	"github.com/IBM/sarama"
)

// explain adds advice to an error of connecting.
func (c Config) explain(err error, found port) error {
	advice := c.adviceOnSASL(err)
	for _, other := range []func() string{
		func() string { return adviceOnTLS(err) },
		func() string { return c.adviceOnPort(found) },
		func() string { return adviceOnAddress(err) },
		func() string { return c.adviceOnHangUp(err, found) },
	} {
		advice = cmp.Or(advice, other())
	}
	if advice == "" {
		return err
	}
	return fmt.Errorf("%s: %w", advice, err)
}

// adviceOnPort gives advice if the port speaks another protocol than the one configured.
func (c Config) adviceOnPort(found port) string {
	switch {
	case c.TLS == nil && found.tls:
		return "it may want Config.TLS, which is not set: this port speaks TLS"
	case c.TLS != nil && found.plain:
		return "Config.TLS is set, and this port does not speak TLS"
	case found.anonymous:
		return "Config.SASL is set, and this port takes no SASL"
	}
	return ""
}

// adviceOnAddress gives advice on errors of a port that is not a broker's.
func adviceOnAddress(err error) string {
	var (
		name   *net.DNSError
		packet sarama.PacketDecodingError
		dial   *net.OpError
	)
	switch {
	case errors.Is(err, sarama.ErrUnsupportedVersion):
		return "the broker is older than Apache Kafka 2.8: upgrade it, or change Config.Brokers"
	case errors.As(err, &name):
		return "Config.Brokers has a host whose name is not known"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "nothing listens there: look whether the broker runs, and whether host and port in Config.Brokers are right"
	case errors.As(err, &packet):
		return "Config.Brokers has a port that does not speak Kafka's protocol"
	case isTimeout(err) && errors.As(err, &dial) && dial.Op == "dial":
		return "no connection: look at host and port in Config.Brokers, and at firewalls"
	case isTimeout(err), errors.Is(err, net.ErrClosed): // the time for all brokers was over
		return "the port accepts connections and keeps silent: look whether the broker is stopped, and whether the port in Config.Brokers is a broker's"
	}
	return ""
}

func isTimeout(err error) bool {
	var network net.Error
	return errors.As(err, &network) && network.Timeout()
}

// adviceOnSASL gives advice on SASL errors. Some brokers only close the connection.
func (c Config) adviceOnSASL(err error) string {
	refused := errors.Is(err, sarama.ErrSASLAuthenticationFailed)
	switch {
	case errors.Is(err, sarama.ErrUnsupportedSASLMechanism):
		return fmt.Sprintf("Config.SASL.Mechanism is %s: the broker offers others", c.SASL.Mechanism)
	case errors.Is(err, sarama.ErrIllegalSASLState) && c.SASL.Mechanism != "":
		return "Config.SASL is set, and this port takes no SASL"
	case refused && c.SASL.Mechanism == sarama.SASLTypeOAuth:
		return c.SASL.adviceOnToken()
	case refused:
		return c.adviceOnUser()
	}
	return ""
}

func (s SASL) adviceOnToken() string {
	if s.TokenURL != "" {
		return "look whether the broker takes tokens from Config.SASL.TokenURL for Config.SASL.ClientID and Config.SASL.Scopes: their issuer, audience and expiry"
	}
	return "look whether the broker takes what Config.SASL.Token returns"
}

func (c Config) adviceOnUser() string {
	return fmt.Sprintf("look at Config.SASL.User and Config.SASL.Password, whether the broker knows them for %s", c.SASL.Mechanism)
}

// adviceOnTLS gives advice on errors of the TLS handshake.
func adviceOnTLS(err error) string {
	var (
		plain     tls.RecordHeaderError
		authority x509.UnknownAuthorityError
		host      x509.HostnameError
		invalid   x509.CertificateInvalidError
	)
	switch {
	case errors.As(err, &plain):
		return "Config.TLS is set, and this port does not speak TLS"
	case errors.As(err, &authority):
		return "Config.TLS.RootCAs lacks the authority of the broker's certificate: add it"
	case errors.As(err, &host):
		return "Config.TLS.ServerName, or else the address in Config.Brokers, must be in the broker's certificate"
	case errors.As(err, &invalid):
		return "the broker's certificate is not valid: it has to be replaced at the broker"
	case strings.Contains(err.Error(), "remote error: tls: "): // crypto/tls has no type for it
		return "set Config.TLS.Certificates: the broker wants a client's certificate, or another one"
	}
	return ""
}

// hungUp reports whether the broker has closed the connection without an answer.
func hungUp(err error) bool {
	for _, cause := range []error{io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.EPIPE} {
		if errors.Is(err, cause) {
			return true
		}
	}
	return false
}

// adviceOnHangUp gives advice if the broker closed the connection without an answer.
func (c Config) adviceOnHangUp(err error, found port) string {
	switch {
	case !hungUp(err):
		return ""
	case c.SASL.Mechanism == sarama.SASLTypeOAuth:
		return c.SASL.adviceOnToken()
	case c.SASL.Mechanism != "":
		return c.adviceOnUser()
	case c.TLS == nil && found.plain:
		return "the broker hung up: it may want Config.SASL"
	case c.TLS == nil:
		return "the broker hung up: it may want Config.TLS, or Config.SASL"
	case len(c.TLS.Certificates) == 0 && c.TLS.GetClientCertificate == nil:
		return "the broker hung up: it may want Config.SASL, or a client's certificate in Config.TLS.Certificates"
	}
	return "the broker hung up: it may want Config.SASL, or another certificate in Config.TLS.Certificates"
}
