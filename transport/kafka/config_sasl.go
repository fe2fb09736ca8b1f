package kafka

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"

	"github.com/IBM/sarama"

	"github.com/millrace-go/millrace/transport/kafka/internal/conn"
)

// SASL is how this service authenticates itself to the brokers.
type SASL struct {
	// Mechanism is one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 and OAUTHBEARER. PLAIN and OAUTHBEARER send the secret in
	// the clear, so without Config.TLS they are allowed only for brokers on this machine. Default: "", anonymous.
	Mechanism string

	// User and Password are required with PLAIN and SCRAM.
	User     string
	Password string `secret:"true"`

	// Token is asked for a token at each connection and each renewal of one, concurrently. OAUTHBEARER wants it, or TokenURL.
	Token sarama.AccessTokenProvider

	// TokenURL is a token endpoint of OAuth 2.0, which gives tokens for client credentials: https, or a port of this machine.
	// A token is renewed when four fifths of its time are over. If that fails, it is used until it expires. Only for
	// OAUTHBEARER. Default: "", Token is asked.
	TokenURL string

	// ClientID and ClientSecretFile, the path of a file with the client's secret, are required with TokenURL. The file is read
	// for each token, so the secret can be rotated.
	ClientID         string
	ClientSecretFile string

	// Scopes are what the tokens are asked for. Default: none, the endpoint's.
	Scopes []string
}

// Format shows no password, whatever the verb.
func (c SASL) Format(f fmt.State, _ rune) {
	fmt.Fprintf(f, "{Mechanism:%s User:%s Password:%s TokenURL:%s ClientID:%s ClientSecretFile:%s Scopes:%s}",
		c.Mechanism, c.User, c.hidden(), c.TokenURL, c.ClientID, c.ClientSecretFile, c.Scopes)
}

// LogValue shows no password.
func (c SASL) LogValue() slog.Value {
	return slog.GroupValue(slog.String("mechanism", c.Mechanism), slog.String("user", c.User), slog.String("password", c.hidden()),
		slog.String("token_url", c.TokenURL), slog.String("client_id", c.ClientID), slog.String("client_secret_file", c.ClientSecretFile), slog.Any("scopes", c.Scopes))
}

// MarshalJSON shows no password.
func (c SASL) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Mechanism, User, Password            string
		TokenURL, ClientID, ClientSecretFile string
		Scopes                               []string
	}{c.Mechanism, c.User, c.hidden(), c.TokenURL, c.ClientID, c.ClientSecretFile, c.Scopes})
}

func (c SASL) hidden() string {
	if c.Password == "" {
		return ""
	}
	return "(hidden)"
}

// validate never shows the password.
func (c SASL) validate(encrypted bool, brokers []string) error {
	var errs []error
	switch c.Mechanism {
	case "":
		if c.User != "" || c.Password != "" || c.Token != nil || c.client() {
			errs = append(errs, errors.New("Config.SASL.Mechanism is empty, and the other fields are not: want PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER"))
		}
		return errors.Join(errs...)
	case sarama.SASLTypePlaintext, sarama.SASLTypeSCRAMSHA256, sarama.SASLTypeSCRAMSHA512:
		if c.User == "" {
			errs = append(errs, fmt.Errorf("Config.SASL.User is empty: %s wants one", c.Mechanism))
		}
		if c.Password == "" {
			errs = append(errs, fmt.Errorf("Config.SASL.Password is empty: %s wants one", c.Mechanism))
		}
		if c.Token != nil || c.client() {
			errs = append(errs, fmt.Errorf("Config.SASL.Token or TokenURL is set with %s: they, ClientID, ClientSecretFile and Scopes are for OAUTHBEARER", c.Mechanism))
		}
	case sarama.SASLTypeOAuth:
		errs = append(errs, c.validateTokens())
		if c.User != "" || c.Password != "" {
			errs = append(errs, errors.New("Config.SASL.User or Password is set with OAUTHBEARER: it wants TokenURL, or a Token"))
		}
	default:
		errs = append(errs, fmt.Errorf("Config.SASL.Mechanism is %q: want PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER", c.Mechanism))
	}
	if open := c.Mechanism == sarama.SASLTypePlaintext || c.Mechanism == sarama.SASLTypeOAuth; open && !encrypted && !local(brokers) {
		errs = append(errs, fmt.Errorf("Config.SASL.Mechanism is %s without Config.TLS: the secret would travel in plain text; set TLS, or use SCRAM-SHA-512", c.Mechanism))
	}
	return errors.Join(errs...)
}

// client tells whether there are client credentials, or a part of them.
func (c SASL) client() bool {
	return c.TokenURL != "" || c.ClientID != "" || c.ClientSecretFile != "" || len(c.Scopes) > 0
}

// validateTokens reads the client's secret, so that a missing one is told before the service starts.
func (c SASL) validateTokens() error {
	switch {
	case c.Token == nil && !c.client():
		return errors.New("Config.SASL.Mechanism is OAUTHBEARER without a token: want Config.SASL.TokenURL, Config.SASL.ClientID and Config.SASL.ClientSecretFile, or in Go a Token (kafka.NewDriver with Config.SASL.Token)")
	case !c.client():
		return nil
	case c.Token != nil:
		return errors.New("Config.SASL.Token and Config.SASL.TokenURL, or a setting that belongs to it, are both set: want one of them")
	}
	var errs []error
	u, err := url.Parse(c.TokenURL)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || u.User != nil:
		errs = append(errs, errors.New("Config.SASL.TokenURL is not the URL of a token endpoint: want one such as https://login.example.com/oauth2/token, without a user"))
	case u.Scheme == "http" && !localHost(u.Hostname()):
		errs = append(errs, fmt.Errorf("Config.SASL.TokenURL is %q: want https, because the client's secret would travel in plain text", c.TokenURL))
	}
	if c.ClientID == "" {
		errs = append(errs, errors.New("Config.SASL.ClientID is empty: Config.SASL.TokenURL wants one"))
	}
	if _, err := conn.SASL(c).ClientSecret(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// local tells whether all brokers are on this machine. Their names are not resolved: what they mean may change.
func local(brokers []string) bool {
	for _, broker := range brokers {
		host, _, err := net.SplitHostPort(broker)
		if err != nil || !localHost(host) {
			return false
		}
	}
	return true
}

func localHost(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
