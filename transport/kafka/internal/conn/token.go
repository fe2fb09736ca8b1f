package conn

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"
	"golang.org/x/sync/singleflight"
)

// tokenTimeout bounds one token request. It is shorter than probeTimeout, so that the error is the token endpoint's.
const tokenTimeout = 4 * time.Second

// tokens implements sarama.AccessTokenProvider with a token endpoint. It is safe for concurrent use.
type tokens struct {
	life   context.Context
	sasl   SASL
	asking singleflight.Group
	client clientcredentials.Config // this client's identity at the endpoint

	mu      sync.Mutex
	latest  *oauth2.Token
	renewAt time.Time
}

func newTokens(life context.Context, sasl SASL) *tokens {
	// Requests are rare, so connections are not kept.
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true}
	life = context.WithValue(life, oauth2.HTTPClient, &http.Client{
		Transport: transport,
		// The secret is sent only to the configured endpoint.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	})
	return &tokens{life: life, sasl: sasl, client: clientcredentials.Config{
		ClientID: sasl.ClientID, TokenURL: sasl.TokenURL, Scopes: sasl.Scopes, AuthStyle: oauth2.AuthStyleInHeader,
	}}
}

// Token implements sarama.AccessTokenProvider.
func (t *tokens) Token() (*sarama.AccessToken, error) {
	kept, renewAt := t.kept()
	if kept != nil && time.Now().Before(renewAt) {
		return &sarama.AccessToken{Token: kept.AccessToken}, nil
	}
	found, err, _ := t.asking.Do("", func() (any, error) { return t.renew() })
	if err == nil {
		return &sarama.AccessToken{Token: found.(*oauth2.Token).AccessToken}, nil
	}
	if kept == nil || time.Until(kept.Expiry) <= 0 {
		return nil, err
	}
	t.mu.Lock()
	if t.latest == kept { // no other goroutine has got a new one meanwhile
		t.renewAt = time.Now().Add(time.Until(kept.Expiry) / 5) // otherwise each connection would wait for an endpoint that does not answer
	}
	t.mu.Unlock()
	return &sarama.AccessToken{Token: kept.AccessToken}, nil
}

func (t *tokens) kept() (*oauth2.Token, time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.latest, t.renewAt
}

func (t *tokens) keep(token *oauth2.Token, until time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.latest, t.renewAt = token, time.Now().Add(until)
}

// renew requests a token. It is used for four fifths of its lifetime: clients authenticate again a little later, and the new session must
// not end with the old token.
func (t *tokens) renew() (token *oauth2.Token, err error) {
	if t.client.ClientSecret, err = t.sasl.ClientSecret(); err != nil {
		return nil, &tokenError{err}
	}
	ctx, cancel := context.WithTimeout(t.life, tokenTimeout)
	defer cancel()
	if token, err = t.ask(ctx); err != nil {
		return nil, &tokenError{t.sasl.adviceOnEndpoint(err)}
	}
	if !token.Expiry.IsZero() { // otherwise its lifetime is unknown
		t.keep(token, time.Until(token.Expiry)/5*4)
	}
	return token, nil
}

// ask calls the token endpoint. Some endpoints want the client's secret in the form instead of the header. If both are refused, the first
// error is returned.
func (t *tokens) ask(ctx context.Context) (*oauth2.Token, error) {
	token, err := t.client.Token(ctx)
	refused := (*oauth2.RetrieveError)(nil)
	if !errors.As(err, &refused) || refused.ErrorCode != "" && refused.ErrorCode != "invalid_client" && refused.ErrorCode != "invalid_request" {
		return token, err
	}
	former := t.client.AuthStyle
	t.client.AuthStyle = oauth2.AuthStyleInHeader + oauth2.AuthStyleInParams - former
	if token, err := t.client.Token(ctx); err == nil {
		return token, nil
	}
	t.client.AuthStyle = former
	return nil, err
}

// ClientSecret reads the secret's file.
func (s SASL) ClientSecret() (string, error) {
	content, err := os.ReadFile(s.ClientSecretFile)
	secret := bytes.TrimSpace(content)
	switch {
	case err != nil:
		return "", fmt.Errorf("Config.SASL.ClientSecretFile is %q: want a file with the client's secret: %w", s.ClientSecretFile, err)
	case len(secret) == 0:
		return "", fmt.Errorf("Config.SASL.ClientSecretFile is %q: want a file with the client's secret, and it is empty", s.ClientSecretFile)
	}
	return string(secret), nil
}

// tokenError is an error of the token endpoint that already says how to fix it.
type tokenError struct{ error }

// Unwrap returns the wrapped error.
func (e *tokenError) Unwrap() error { return e.error }

// adviceOnEndpoint adds the setting to check to an error of the token endpoint. Of the endpoint's answer it repeats only the error code
// and its description.
func (s SASL) adviceOnEndpoint(err error) error {
	refused := (*oauth2.RetrieveError)(nil)
	switch {
	case !errors.As(err, &refused):
		return fmt.Errorf("no token: look whether Config.SASL.TokenURL is right, and whether this machine reaches it: %w", err)
	case refused.ErrorCode == "":
		return fmt.Errorf("no token: Config.SASL.TokenURL %s answers %s, and no error of OAuth 2.0: look whether it is a token endpoint", s.TokenURL, refused.Response.Status)
	}
	answer := fmt.Sprintf("%s answers %s: %s", s.TokenURL, refused.ErrorCode, refused.ErrorDescription)
	switch refused.ErrorCode {
	case "invalid_client", "unauthorized_client":
		return fmt.Errorf("no token: look at Config.SASL.ClientID and Config.SASL.ClientSecretFile: %s", answer)
	case "invalid_scope":
		return fmt.Errorf("no token: look at Config.SASL.Scopes: %s", answer)
	}
	return fmt.Errorf("no token: look at Config.SASL.TokenURL, Config.SASL.ClientID and Config.SASL.Scopes: %s", answer)
}
