package push

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"google.golang.org/api/idtoken"

	"github.com/millrace-go/millrace/transport/pubsub/internal/setting"
)

// certificateTimeout bounds the fetch of Google's certificates, which the validator caches for as long as they say.
const certificateTimeout = 10 * time.Second

// errCertificates means that Google's certificates are not available, so that a token cannot be checked.
var errCertificates = errors.New("fetch Google's certificates")

// authenticator checks the OIDC tokens of push requests. It is safe for concurrent use.
type authenticator struct {
	validator *idtoken.Validator
}

// newAuthenticator fetches certificates through client, which is http.DefaultTransport except in tests.
func newAuthenticator(ctx context.Context, client http.RoundTripper) (*authenticator, error) {
	validator, err := idtoken.NewValidator(ctx, idtoken.WithHTTPClient(&http.Client{Transport: certificates{client}}))
	if err != nil {
		return nil, fmt.Errorf("validate push tokens: %w", err)
	}
	return &authenticator{validator}, nil
}

// check returns nil for a request from Pub/Sub in the name of push's account.
func (a *authenticator) check(r *http.Request, push *setting.Push) *answer {
	if push.ServiceAccount == "" { // validated: AllowUnauthenticated
		return nil
	}
	refuse := func(status int, outcome, reason string, err error) *answer {
		return &answer{status: status, outcome: outcome, err: err, reason: fmt.Sprintf(
			"%s: want the OIDC token of %s, its e-mail address verified, for the audience %s", reason, push.ServiceAccount, push.Audience)}
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") || token == "" {
		return refuse(http.StatusUnauthorized, outcomeUnauthorized, "no bearer token", nil)
	}
	if algorithm(token) != "RS256" {
		// Pub/Sub signs with RS256. The check is here because the validator panics at a short ES256 signature (v0.279.0).
		return refuse(http.StatusUnauthorized, outcomeUnauthorized, "the token is not signed with RS256", nil)
	}
	payload, err := a.validator.Validate(r.Context(), token, push.Audience)
	switch {
	case errors.Is(err, errCertificates):
		return &answer{status: http.StatusServiceUnavailable, outcome: outcomeNoCertificates, err: err, reason: "the token cannot be checked now"}
	case err != nil:
		return refuse(http.StatusUnauthorized, outcomeUnauthorized, "the token is not valid", err)
	case payload.Issuer != "accounts.google.com" && payload.Issuer != "https://accounts.google.com":
		return refuse(http.StatusUnauthorized, outcomeUnauthorized, "the token is not from accounts.google.com", nil)
	}
	email, _ := payload.Claims["email"].(string)
	if verified, _ := payload.Claims["email_verified"].(bool); !verified || email != push.ServiceAccount {
		return refuse(http.StatusForbidden, outcomeForbidden, "the token is of another account", nil)
	}
	return nil
}

// algorithm returns the signature algorithm in the token's header.
func algorithm(token string) string {
	header, _, _ := strings.Cut(token, ".")
	text, err := base64.RawURLEncoding.DecodeString(header)
	if err != nil {
		return ""
	}
	var fields struct {
		Algorithm string `json:"alg"`
	}
	if json.Unmarshal(text, &fields) != nil {
		return ""
	}
	return fields.Algorithm
}

// certificates marks errors of fetching certificates, because the validator's errors do not distinguish them from a bad token.
type certificates struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper. It reads the whole answer, which is some kilobytes.
func (c certificates) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithTimeout(r.Context(), certificateTimeout) // a client's own timeout would hide the error's type
	defer cancel()
	response, err := c.next.RoundTrip(r.WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errCertificates, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", errCertificates, err)
	case response.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%w: status %d", errCertificates, response.StatusCode)
	case !json.Valid(body):
		return nil, fmt.Errorf("%w: no JSON", errCertificates)
	}
	response.Body = io.NopCloser(bytes.NewReader(body))
	return response, nil
}
