package kafka

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"

	"github.com/IBM/sarama"
)

// SASL is how this service authenticates itself to the brokers.
type SASL struct {
	// Mechanism is one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 and OAUTHBEARER. PLAIN and OAUTHBEARER send the secret in
	// the clear, so without Config.TLS they are allowed only for brokers on this machine. Default: "", anonymous.
	Mechanism string

	// User and Password are required with PLAIN and SCRAM.
	User     string
	Password string `secret:"true"`

	// Token is asked for a token at each connection and each renewal of one, concurrently. Required with OAUTHBEARER.
	Token sarama.AccessTokenProvider
}

// Format shows no password, whatever the verb.
func (c SASL) Format(f fmt.State, _ rune) {
	fmt.Fprintf(f, "{Mechanism:%s User:%s Password:%s}", c.Mechanism, c.User, c.hidden())
}

// LogValue shows no password.
func (c SASL) LogValue() slog.Value {
	return slog.GroupValue(slog.String("mechanism", c.Mechanism), slog.String("user", c.User), slog.String("password", c.hidden()))
}

// MarshalJSON shows no password.
func (c SASL) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct{ Mechanism, User, Password string }{c.Mechanism, c.User, c.hidden()})
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
		if c.User != "" || c.Password != "" || c.Token != nil {
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
		if c.Token != nil {
			errs = append(errs, fmt.Errorf("Config.SASL.Token is set with %s: it is for OAUTHBEARER", c.Mechanism))
		}
	case sarama.SASLTypeOAuth:
		if c.Token == nil {
			errs = append(errs, errors.New("Config.SASL.Mechanism is OAUTHBEARER without a token, which only Go can give (kafka.NewDriver with Config.SASL.Token): want PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512 in a file"))
		}
		if c.User != "" || c.Password != "" {
			errs = append(errs, errors.New("Config.SASL.User or Password is set with OAUTHBEARER: it wants a Token only"))
		}
	default:
		errs = append(errs, fmt.Errorf("Config.SASL.Mechanism is %q: want PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER", c.Mechanism))
	}
	if open := c.Mechanism == sarama.SASLTypePlaintext || c.Mechanism == sarama.SASLTypeOAuth; open && !encrypted && !local(brokers) {
		errs = append(errs, fmt.Errorf("Config.SASL.Mechanism is %s without Config.TLS: the secret would travel in plain text; set TLS, or use SCRAM-SHA-512", c.Mechanism))
	}
	return errors.Join(errs...)
}

// local tells whether all brokers are on this machine. Their names are not resolved: what they mean may change.
func local(brokers []string) bool {
	for _, broker := range brokers {
		host, _, err := net.SplitHostPort(broker)
		if err != nil {
			return false
		}
		if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			return false
		}
	}
	return true
}
