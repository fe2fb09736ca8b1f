package push

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/transport/pubsub/internal/setting"
)

const (
	pushAccount  = "push@project.iam.gserviceaccount.com"
	pushAudience = "https://service.example/push"
)

// signer stands in for Google: it signs tokens, and answers for the certificates.
type signer struct {
	key     *rsa.PrivateKey
	answer  func() (*http.Response, error) // nil: the certificates
	fetches int
}

func newSigner(t testing.TB) *signer {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	return &signer{key: key}
}

const keyID = "key-1"

// RoundTrip implements http.RoundTripper.
func (s *signer) RoundTrip(*http.Request) (*http.Response, error) {
	s.fetches++
	if s.answer != nil {
		return s.answer()
	}
	text, err := json.Marshal(map[string]any{"keys": []any{map[string]string{
		"kid": keyID, "kty": "RSA", "alg": "RS256", "use": "sig",
		"n": base64.RawURLEncoding.EncodeToString(s.key.N.Bytes()),
		"e": base64.RawURLEncoding.EncodeToString(big.NewInt(int64(s.key.E)).Bytes()),
	}}})
	response := answered(http.StatusOK, string(text))
	response.Header.Set("Cache-Control", "public, max-age=3600")
	return response, err
}

func answered(status int, body string) *http.Response {
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body))}
}

// claims are those of a token that stands, with changes; a nil removes one.
func claims(changes map[string]any) map[string]any {
	all := map[string]any{
		"iss": "https://accounts.google.com", "aud": pushAudience, "exp": time.Now().Add(time.Hour).Unix(),
		"email": pushAccount, "email_verified": true,
	}
	for name, value := range changes {
		all[name] = value
		if value == nil {
			delete(all, name)
		}
	}
	return all
}

func (s *signer) token(t testing.TB, changes map[string]any) string {
	t.Helper()
	unsigned := unsignedToken(t, "RS256", claims(changes))
	hash := sha256.Sum256([]byte(unsigned))
	signature, err := rsa.SignPKCS1v15(rand.Reader, s.key, crypto.SHA256, hash[:])
	require.NoError(t, err)
	return unsigned + "." + base64.RawURLEncoding.EncodeToString(signature)
}

func unsignedToken(t testing.TB, algorithm string, claims map[string]any) string {
	t.Helper()
	part := func(v any) string {
		text, err := json.Marshal(v)
		require.NoError(t, err)
		return base64.RawURLEncoding.EncodeToString(text)
	}
	return part(map[string]string{"alg": algorithm, "typ": "JWT", "kid": keyID}) + "." + part(claims)
}

func checkToken(t testing.TB, google http.RoundTripper, authorization string) *answer {
	t.Helper()
	auth, err := newAuthenticator(t.Context(), google)
	require.NoError(t, err)
	request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", http.NoBody)
	if authorization != "" {
		request.Header.Set("Authorization", authorization)
	}
	return auth.check(request, &setting.Push{ServiceAccount: pushAccount, Audience: pushAudience})
}

func TestPushTokenThatStands(t *testing.T) {
	t.Parallel()
	google := newSigner(t)
	for _, changes := range []map[string]any{nil, {"iss": "accounts.google.com"}} {
		require.Nil(t, checkToken(t, google, "Bearer "+google.token(t, changes)))
	}
	require.Nil(t, checkToken(t, google, "bearer "+google.token(t, nil)))
}

func TestPushTokenRefused(t *testing.T) {
	t.Parallel()
	google, stranger := newSigner(t), newSigner(t)
	good := google.token(t, nil)
	unsigned := unsignedToken(t, "none", claims(nil))
	// Key confusion: the public key, which everybody has, as the secret of an HMAC. Whatever the signature is, the
	// algorithm alone must be refused. And an ES256 signature that is too short, at which the validator panics.
	confused := unsignedToken(t, "HS256", claims(nil)) + good[strings.LastIndexByte(good, '.'):]
	elliptic := unsignedToken(t, "ES256", claims(nil)) + ".AAAA"
	forged := strings.Split(good, ".")
	forged[1] = strings.Split(unsignedToken(t, "RS256", claims(map[string]any{"sub": "other"})), ".")[1]
	for name, c := range map[string]struct {
		authorization string
		status        int
		reason        string
	}{
		"none":            {"", 401, "no bearer token"},
		"other scheme":    {"Basic " + good, 401, "no bearer token"},
		"empty":           {"Bearer ", 401, "no bearer token"},
		"no JWT":          {"Bearer secret", 401, "not signed with RS256"},
		"no signature":    {"Bearer " + unsigned + ".", 401, "not signed with RS256"},
		"alg none":        {"Bearer " + unsigned + good[strings.LastIndexByte(good, '.'):], 401, "not signed with RS256"},
		"HMAC":            {"Bearer " + confused, 401, "not signed with RS256"},
		"ES256":           {"Bearer " + elliptic, 401, "not signed with RS256"},
		"other key":       {"Bearer " + stranger.token(t, nil), 401, "not valid"},
		"changed":         {"Bearer " + strings.Join(forged, "."), 401, "not valid"},
		"expired":         {"Bearer " + google.token(t, map[string]any{"exp": time.Now().Add(-time.Minute).Unix()}), 401, "not valid"},
		"no expiry":       {"Bearer " + google.token(t, map[string]any{"exp": nil}), 401, "not valid"},
		"other audience":  {"Bearer " + google.token(t, map[string]any{"aud": "https://other"}), 401, "not valid"},
		"no audience":     {"Bearer " + google.token(t, map[string]any{"aud": nil}), 401, "not valid"},
		"other issuer":    {"Bearer " + google.token(t, map[string]any{"iss": "https://accounts.google.com.evil"}), 401, "not from accounts.google.com"},
		"other account":   {"Bearer " + google.token(t, map[string]any{"email": "other@project.iam.gserviceaccount.com"}), 403, "another account"},
		"no account":      {"Bearer " + google.token(t, map[string]any{"email": nil}), 403, "another account"},
		"unverified":      {"Bearer " + google.token(t, map[string]any{"email_verified": false}), 403, "another account"},
		"verified a text": {"Bearer " + google.token(t, map[string]any{"email_verified": "true"}), 403, "another account"},
	} {
		refused := checkToken(t, google, c.authorization)
		require.NotNil(t, refused, name)
		require.Equal(t, c.status, refused.status, name)
		require.Contains(t, refused.reason, c.reason, name)
		require.Contains(t, refused.reason, pushAccount, name)
		require.Contains(t, refused.reason, pushAudience, name)
		if _, token, ok := strings.Cut(c.authorization, " "); ok && token != "" {
			require.NotContains(t, refused.reason, token, name)
		}
	}
}

// An outage of Google's certificates says nothing against the sender, so it is no 401.
func TestPushCertificatesUnavailable(t *testing.T) {
	t.Parallel()
	google := newSigner(t)
	token := "Bearer " + google.token(t, nil)
	for name, outage := range map[string]func() (*http.Response, error){
		"no connection": func() (*http.Response, error) { return nil, errors.New("no route to host") },
		"status":        func() (*http.Response, error) { return answered(http.StatusBadGateway, "{}"), nil },
		"cut short":     func() (*http.Response, error) { return answered(http.StatusOK, `{"keys": [`), nil },
	} {
		google.answer = outage
		refused := checkToken(t, google, token)
		require.NotNil(t, refused, name)
		require.Equal(t, http.StatusServiceUnavailable, refused.status, name)
		require.Equal(t, outcomeNoCertificates, refused.outcome, name)
	}
	google.answer = nil
	require.Nil(t, checkToken(t, google, token))
}

func TestPushCertificatesAreKept(t *testing.T) {
	t.Parallel()
	google := newSigner(t)
	auth, err := newAuthenticator(t.Context(), google)
	require.NoError(t, err)
	for range 5 {
		request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", http.NoBody)
		request.Header.Set("Authorization", "Bearer "+google.token(t, nil))
		require.Nil(t, auth.check(request, &setting.Push{ServiceAccount: pushAccount, Audience: pushAudience}))
	}
	require.Equal(t, 1, google.fetches)
}

func TestPushUnauthenticated(t *testing.T) {
	t.Parallel()
	auth, err := newAuthenticator(t.Context(), newSigner(t))
	require.NoError(t, err)
	request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", http.NoBody)
	require.Nil(t, auth.check(request, &setting.Push{}))
	require.NotNil(t, auth.check(request, &setting.Push{ServiceAccount: pushAccount}), "an account that is named is asked for")
}

// The answer to a push without a valid token named the account and the audience that are wanted, and told consumers from
// names that nobody has.
func TestPushTellsNothingToTheUnauthenticated(t *testing.T) {
	t.Parallel()
	b := newPushBench(t, &setting.Push{Endpoint: pushAudience, ServiceAccount: pushAccount, Audience: pushAudience})
	stranger := newSigner(t)
	for name, authorization := range map[string]string{
		"none": "", "no JWT": "Bearer secret", "other key": "Bearer " + stranger.token(t, nil),
		"other audience": "Bearer " + b.google.token(t, map[string]any{"aud": "https://other"}),
		"expired":        "Bearer " + b.google.token(t, map[string]any{"exp": time.Now().Add(-time.Minute).Unix()}),
	} {
		for _, path := range []string{"/push/topic.c", "/push/other.c", "/push/topic.pulls", "/push/topic.nobody", "/push", "/"} {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, strings.NewReader("hello"))
			if authorization != "" {
				r.Header.Set("Authorization", authorization)
			}
			w := b.serve(r)
			require.Equal(t, http.StatusUnauthorized, w.Code, "%s to %s", name, path)
			require.Equal(t, "unauthorized\n", w.Body.String(), "%s to %s", name, path)
			require.Equal(t, "Bearer", w.Header().Get("WWW-Authenticate"))
		}
	}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/push/topic.c", http.NoBody)
	r.Header.Set("Authorization", "Bearer "+b.google.token(t, map[string]any{"email": "other@x"}))
	w := b.serve(r)
	require.Equal(t, http.StatusForbidden, w.Code)
	require.Equal(t, "forbidden\n", w.Body.String())
	require.Contains(t, b.logged.String(), pushAccount, "the log says what is wanted")
	require.Contains(t, b.logged.String(), pushAudience)
}
