package kafka_test

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/internal/wrongtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
)

// use is what a case does with a wrong setting once it is connected.
type use func(ctx context.Context, tr *kafka.Transport, topic string) error

func publishes(ctx context.Context, tr *kafka.Transport, topic string) error {
	p, err := tr.PlainPublisher()
	if err != nil {
		return err
	}
	msg := newMessage("k", strings.Repeat("x", 2000))
	msg.SetContext(ctx)
	return p.Publish(topic, msg)
}

func subscribes(ctx context.Context, tr *kafka.Transport, topic string) error {
	s, err := tr.Subscriber(transport.SubscriberConfig{Consumer: "labour"})
	if err != nil {
		return err
	}
	_, err = s.Subscribe(ctx, topic)
	return err
}

// errOnlyWarns is of a case that is not refused: it goes on trying, and warns.
var errOnlyWarns = errors.New("it only warns")

func warns(ctx context.Context, tr *kafka.Transport, topic string) error {
	return cmp.Or(subscribes(ctx, tr, topic), errOnlyWarns)
}

// firstWarning is a logger's handler that keeps the error of the first warning.
type firstWarning struct {
	slog.Handler
	said chan error
}

func (l *firstWarning) Enabled(_ context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn
}
func (l *firstWarning) WithAttrs([]slog.Attr) slog.Handler { return l }

func (l *firstWarning) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		if err, ok := a.Value.Any().(error); ok {
			select {
			case l.said <- fmt.Errorf("%s: %w", r.Message, err):
			default:
			}
		}
		return true
	})
	return nil
}

func fakeWith(t *testing.T, fault kfake.Fault) []string {
	cluster := fake(t, kfake.SeedTopics(1, "labours"))
	cluster.Fault(fault)
	return cluster.ListenAddrs()
}

// allowed are the rights of the user of the cases about rights, without some.
func allowed(without ...kfake.ACL) kfake.Opt {
	var all []kfake.ACL
	for _, a := range []kfake.ACL{
		{Resource: kmsg.ACLResourceTypeTopic, Name: "*"},
		{Resource: kmsg.ACLResourceTypeGroup, Name: "*"},
		{Resource: kmsg.ACLResourceTypeTransactionalId, Name: "*"},
	} {
		a.Pattern, a.Operation, a.Allow = kmsg.ACLResourcePatternTypeLiteral, kmsg.ACLOperationAll, true
		all = append(all, a)
	}
	for _, a := range without {
		a.Pattern = kmsg.ACLResourcePatternTypeLiteral
		all = append(all, a)
	}
	return kfake.User("PLAIN", "labour", wrongtest.Secret, all...)
}

// connecting knows how long connections may take at most. It is no clock, so it does not depend on how busy the machine is.
type connecting struct {
	mu            sync.Mutex
	begun, latest time.Time // the first dial, and the latest deadline
}

func (c *connecting) dial(ctx context.Context, network, address string) (net.Conn, error) {
	c.mu.Lock()
	if c.begun.IsZero() {
		c.begun = time.Now()
	}
	if deadline, ok := ctx.Deadline(); !ok {
		c.latest = c.begun.Add(time.Hour)
	} else if deadline.After(c.latest) {
		c.latest = deadline
	}
	c.mu.Unlock()
	return new(net.Dialer).DialContext(ctx, network, address)
}

func (c *connecting) longest() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.latest.Sub(c.begun)
}

// TestWrongSettings: each of them is an error within 5 s that names the setting, or the right, and the remedy.
func TestWrongSettings(t *testing.T) {
	t.Parallel()
	brokerTLS, clientTLS := certified()
	mutual := brokerTLS.Clone()
	mutual.ClientAuth, mutual.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
	otherName := clientTLS.Clone()
	otherName.ServerName = "kafka.elsewhere"
	scram := kafka.SASL{Mechanism: "SCRAM-SHA-512", User: "labour", Password: wrongtest.Secret}
	plain := kafka.SASL{Mechanism: "PLAIN", User: "labour", Password: wrongtest.Secret}
	known := []kfake.Opt{kfake.EnableSASL(), kfake.Superuser("SCRAM-SHA-512", "labour", wrongtest.Secret)}
	at := func(options ...kfake.Opt) []string { return fake(t, options...).ListenAddrs() }
	denied := func(kind kmsg.ACLResourceType, name string, op kmsg.ACLOperation) kafka.Config {
		return kafka.Config{SASL: plain, Brokers: at(kfake.EnableSASL(), kfake.EnableACLs(), kfake.Superuser("PLAIN", "root", wrongtest.Secret),
			kfake.SeedTopics(1, "labours"), allowed(kfake.ACL{Resource: kind, Name: name, Operation: op}))}
	}
	transactional := func(c kafka.Config) kafka.Config {
		c.Delivery = kafka.Transactional
		return c
	}
	noGroup := kfake.Fault{Keys: []kmsg.Key{kmsg.FindCoordinator}, Group: "labour", Err: kerr.GroupAuthorizationFailed, Count: -1}
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	web := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(web.Close)
	endpoint := newTokenServer(t, time.Hour)
	bearer := func(change func(*kafka.SASL)) kafka.Config {
		sasl := endpoint.sasl(t)
		change(&sasl)
		return kafka.Config{Brokers: bearing(t, func(string) bool { return false }).ListenAddrs(), SASL: sasl}
	}
	for name, c := range map[string]struct {
		config kafka.Config
		use    use // nil: connecting fails
	}{
		"port_where_nothing_listens":       {kafka.Config{Brokers: []string{closed.Addr().String()}}, nil},
		"port_that_keeps_silent":           {kafka.Config{Brokers: []string{silentBroker(t)}}, nil},
		"port_that_keeps_silent_with_tls":  {kafka.Config{Brokers: []string{silentBroker(t)}, TLS: clientTLS}, nil},
		"port_of_a_web_server":             {kafka.Config{Brokers: []string{web.Listener.Addr().String()}}, nil},
		"host_without_a_name":              {kafka.Config{Brokers: []string{"nowhere.invalid:9092"}}, nil},
		"tls_at_a_plain_port":              {kafka.Config{Brokers: at(), TLS: clientTLS}, nil},
		"plain_at_a_tls_port":              {kafka.Config{Brokers: at(kfake.TLS(brokerTLS))}, nil},
		"tls_of_an_unknown_authority":      {kafka.Config{Brokers: at(kfake.TLS(brokerTLS)), TLS: &tls.Config{RootCAs: x509.NewCertPool()}}, nil},
		"tls_of_another_name":              {kafka.Config{Brokers: at(kfake.TLS(brokerTLS)), TLS: otherName}, nil},
		"tls_without_a_client_certificate": {kafka.Config{Brokers: at(kfake.TLS(mutual)), TLS: clientTLS}, nil},
		"sasl_is_wanted":                   {kafka.Config{Brokers: at(known...)}, nil},
		"sasl_is_wanted_behind_tls":        {kafka.Config{Brokers: at(append(known, kfake.TLS(brokerTLS))...), TLS: clientTLS}, nil},
		"sasl_at_a_port_without":           {kafka.Config{Brokers: at(), SASL: scram}, nil},
		"sasl_at_a_tls_port":               {kafka.Config{Brokers: at(append(known, kfake.TLS(brokerTLS))...), SASL: scram}, nil},
		"sasl_of_another_mechanism":        {kafka.Config{Brokers: at(kfake.EnableSASL(), kfake.Superuser("PLAIN", "labour", wrongtest.Secret)), SASL: scram}, nil},
		"sasl_with_another_password":       {kafka.Config{Brokers: at(known...), SASL: kafka.SASL{Mechanism: "SCRAM-SHA-512", User: "labour", Password: "wrong"}}, nil},
		"sasl_with_another_user":           {kafka.Config{Brokers: at(known...), SASL: kafka.SASL{Mechanism: "SCRAM-SHA-512", User: "labor", Password: wrongtest.Secret}}, nil},
		"token_endpoint_where_nothing_is":  {bearer(func(s *kafka.SASL) { s.TokenURL = "http://" + closed.Addr().String() }), nil},
		"token_endpoint_that_keeps_silent": {bearer(func(s *kafka.SASL) { s.TokenURL = "http://" + silentBroker(t) }), nil},
		"token_endpoint_of_a_web_server":   {bearer(func(s *kafka.SASL) { s.TokenURL = web.URL }), nil},
		"token_for_an_unknown_client":      {bearer(func(s *kafka.SASL) { s.ClientID = "labor" }), nil},
		"token_for_another_scope":          {bearer(func(s *kafka.SASL) { s.Scopes = nil }), nil},
		"token_that_the_broker_refuses":    {bearer(func(*kafka.SASL) {}), nil},
		"token_without_its_secret":         {bearer(func(s *kafka.SASL) { s.ClientSecretFile = "/nowhere/secret" }), nil},
		"broker_too_old":                   {kafka.Config{Brokers: at(kfake.MaxVersions(kversion.V0_10_0()))}, publishes},

		"publish_to_a_missing_topic":   {kafka.Config{Brokers: at(), Topics: kafka.Topics{Missing: kafka.CheckOnly}}, publishes},
		"subscribe_to_a_missing_topic": {kafka.Config{Brokers: at(), Topics: kafka.Topics{Missing: kafka.CheckOnly}}, subscribes},
		"topic_setting":                {kafka.Config{Topics: kafka.Topics{Settings: kafka.TopicSettings{"retention.sm": "1"}}}, publishes},
		"more_replicas_than_brokers":   {kafka.Config{Topics: kafka.Topics{ReplicationFactor: 7}}, publishes},
		"fewer_replicas_than_must_be_in_sync": {
			kafka.Config{Brokers: fakeWith(t, kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.NotEnoughReplicas, Count: -1}), Producer: kafka.ProducerConfig{Timeout: 2 * time.Second}}, publishes,
		},
		"messages_larger_than_the_topic_takes": {kafka.Config{Topics: kafka.Topics{Settings: kafka.TopicSettings{"max.message.bytes": "1000"}}}, publishes},

		"no_right_to_create_a_topic":         {denied(kmsg.ACLResourceTypeTopic, "new", kmsg.ACLOperationCreate), publishes},
		"no_right_to_describe_a_topic":       {denied(kmsg.ACLResourceTypeTopic, "labours", kmsg.ACLOperationDescribe), subscribes},
		"no_right_to_write_a_topic":          {denied(kmsg.ACLResourceTypeTopic, "labours", kmsg.ACLOperationWrite), publishes},
		"no_right_to_read_a_topic":           {kafka.Config{Brokers: fakeWith(t, kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Topic: "labours", Err: kerr.TopicAuthorizationFailed, Count: -1})}, warns},
		"no_right_to_read_as_a_group":        {kafka.Config{Brokers: fakeWith(t, noGroup)}, subscribes},
		"no_right_to_read_as_a_group_in_txn": {transactional(kafka.Config{Brokers: fakeWith(t, noGroup)}), subscribes},
		"no_right_to_a_transactional_id":     {transactional(denied(kmsg.ACLResourceTypeTransactionalId, "*", kmsg.ACLOperationWrite)), subscribes},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			topic := "labours"
			switch name {
			case "no_right_to_create_a_topic":
				topic = "new"
			case "topic_setting", "more_replicas_than_brokers", "messages_larger_than_the_topic_takes":
				topic, c.config.Brokers = devtest.Topic(t), devtest.Real(t, devstack.Kafka).KafkaBrokers()
			}
			log := &firstWarning{Handler: slog.DiscardHandler, said: make(chan error, 1)}
			c.config.Logger = slog.New(log)
			wrongtest.Refused(t, func() error {
				ctx, cancel := context.WithTimeout(t.Context(), wait)
				defer cancel()
				var connecting connecting
				c.config.Dial = connecting.dial
				tr, err := kafka.New(ctx, c.config)
				assert.LessOrEqual(t, connecting.longest(), 4500*time.Millisecond, "half a second is left for the rest")
				if err != nil || c.use == nil {
					return err
				}
				defer func() { require.NoError(t, tr.Close()) }()
				if err := c.use(ctx, tr, topic); !errors.Is(err, errOnlyWarns) {
					return err
				}
				select {
				case err := <-log.said:
					return err
				case <-ctx.Done():
					return nil
				}
			}, topic, "TOPIC")
		})
	}
}
