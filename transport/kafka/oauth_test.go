package kafka_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/internal/wrongtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
)

// tokenServer is a token endpoint, which gives unsecured tokens to the client "labour" for the scope "kafka".
type tokenServer struct {
	*httptest.Server
	lifetime time.Duration

	mu     sync.Mutex
	secret string
	issued int
}

func newTokenServer(t *testing.T, lifetime time.Duration) *tokenServer {
	s := &tokenServer{lifetime: lifetime, secret: wrongtest.Secret}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *tokenServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	fail := func(status int, code string) {
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"error": %q, "error_description": "that is so"}`, code)
	}
	switch user, password, _ := r.BasicAuth(); {
	case user != "labour" || password != s.secret:
		fail(http.StatusUnauthorized, "invalid_client")
	case r.FormValue("grant_type") != "client_credentials":
		fail(http.StatusBadRequest, "unsupported_grant_type")
	case r.FormValue("scope") != "kafka":
		fail(http.StatusBadRequest, "invalid_scope")
	default:
		s.issued++
		now := time.Now()
		part := func(v map[string]any) string {
			text, _ := json.Marshal(v)
			return base64.RawURLEncoding.EncodeToString(text)
		}
		token := part(map[string]any{"alg": "none"}) + "." + part(map[string]any{"sub": "labour", "iat": now.Unix(), "exp": now.Add(s.lifetime).Unix(), "scope": "kafka"}) + "."
		_ = json.NewEncoder(w).Encode(map[string]any{"access_token": token, "token_type": "Bearer", "expires_in": int(s.lifetime.Seconds())})
	}
}

// count is how many tokens were issued. From then on the secret is this one.
func (s *tokenServer) count(secret string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.secret = secret
	return s.issued
}

// sasl are the client's credentials, with the secret in a file.
func (s *tokenServer) sasl(t *testing.T) kafka.SASL {
	file := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(file, []byte(wrongtest.Secret+"\n"), 0o600))
	return kafka.SASL{Mechanism: "OAUTHBEARER", TokenURL: s.URL + "/token", ClientID: "labour", ClientSecretFile: file, Scopes: []string{"kafka"}}
}

// TestClientCredentials: Apache Kafka takes the tokens, and ends each session with its token. So what is published and consumed
// over four tokens goes on with tokens that were renewed in time, also after the client's secret was rotated.
func TestClientCredentials(t *testing.T) {
	t.Parallel()
	devtest.Real(t, devstack.Kafka)
	cluster, err := devstack.StartKafka(t.Context(), devstack.KafkaConfig{Brokers: 1, Listener: "SASL_PLAINTEXT", Settings: map[string]string{
		"listener.name.extra.sasl.enabled.mechanisms":               "OAUTHBEARER",
		"listener.name.extra.oauthbearer.sasl.jaas.config":          `org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker" unsecuredValidatorAllowableClockSkewMs="3000";`,
		"listener.name.extra.oauthbearer.connections.max.reauth.ms": "3600000",
	}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, cluster.Stop()) })
	server := newTokenServer(t, 12*time.Second)
	config := kafka.Config{Brokers: cluster.ListenerBrokers(), SASL: server.sasl(t)}
	topic, consumer := devtest.Topic(t), consumerName(t)
	tr := connect(t, config)
	_, messages := subscribe(t, tr, topic, transport.SubscriberConfig{Consumer: consumer, Ordered: true})
	secret := wrongtest.Secret
	for i := 0; server.count(secret) < 4; i++ {
		if server.count(secret) >= 2 && secret == wrongtest.Secret {
			secret = "rotated"
			require.NoError(t, os.WriteFile(config.SASL.ClientSecretFile, []byte(secret), 0o600))
		}
		payload := fmt.Sprint(i)
		assertNoError(t, batcher(t, tr).Publish(topic, newMessage("k", payload)))
		msg := next(t, messages)
		require.Equal(t, payload, string(msg.Payload))
		msg.Ack()
	}
	assert.LessOrEqual(t, server.count(secret), 8, "connections share a token")
}

// TestWrongClientCredentials: each of them is an error that names the setting.
func TestWrongClientCredentials(t *testing.T) {
	t.Parallel()
	local := kafka.Config{Brokers: []string{"127.0.0.1:9092"}}.WithDefaults()
	server := newTokenServer(t, time.Hour)
	require.NoError(t, func() error { c := local; c.SASL = server.sasl(t); return c.Validate() }())
	for says, change := range map[string]func(*kafka.SASL){
		"Config.SASL.TokenURL is not the URL of a token endpoint":          func(s *kafka.SASL) { s.TokenURL = "login.example.com" },
		"Config.SASL.TokenURL is \"http://example.com/token\": want https": func(s *kafka.SASL) { s.TokenURL = "http://example.com/token" },
		"Config.SASL.TokenURL is not the URL of a token endpoint: want":    func(s *kafka.SASL) { s.TokenURL = "https://labour:" + wrongtest.Secret + "@example.com/token" },
		"Config.SASL.ClientID is empty":                                    func(s *kafka.SASL) { s.ClientID = "" },
		"Config.SASL.ClientSecretFile is \"\"":                             func(s *kafka.SASL) { s.ClientSecretFile = "" },
		"want a file with the client's secret, and it is empty":            func(s *kafka.SASL) { s.ClientSecretFile = os.DevNull },
		"are both set: want one of them":                                   func(s *kafka.SASL) { s.Token = &countedToken{} },
		"they, ClientID, ClientSecretFile and Scopes are for OAUTHBEARER":  func(s *kafka.SASL) { s.Mechanism, s.User, s.Password = "PLAIN", "u", "p" },
		"Config.SASL.Mechanism is empty, and the other fields are not":     func(s *kafka.SASL) { s.Mechanism = "" },
		"Config.SASL.User or Password is set with OAUTHBEARER":             func(s *kafka.SASL) { s.User = "labour" },
	} {
		c := local
		c.SASL = server.sasl(t)
		change(&c.SASL)
		err := c.Validate()
		if assert.ErrorContains(t, err, says) {
			assert.NotContains(t, err.Error(), wrongtest.Secret)
		}
	}
}
