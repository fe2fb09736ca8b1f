package conn

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestTokensAreRenewed: a token is shared, renewed before it expires, and used until it expires while the endpoint is out.
func TestTokensAreRenewed(t *testing.T) {
	t.Parallel()
	var issued atomic.Int32
	var out atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case out.Load():
			w.WriteHeader(http.StatusBadGateway)
			return
		case r.FormValue("client_secret") != "hunter2": // it takes none in the header
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"access_token": "token-%d", "token_type": "Bearer", "expires_in": 100}`, issued.Add(1))
	}))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(file, []byte("hunter2"), 0o600))
	synctest.Test(t, func(t *testing.T) {
		tokens := newTokens(t.Context(), SASL{TokenURL: server.URL, ClientID: "labour", ClientSecretFile: file})
		is := func(want string) {
			t.Helper()
			got, err := tokens.Token()
			require.NoError(t, err)
			assert.Equal(t, want, got.Token)
		}
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() { is("token-1") })
		}
		all.Wait()
		time.Sleep(79 * time.Second)
		is("token-1")
		time.Sleep(2 * time.Second)
		is("token-2")
		out.Store(true)
		time.Sleep(81 * time.Second)
		is("token-2")
		out.Store(false)
		is("token-2") // the endpoint is not asked at each connection
		time.Sleep(4 * time.Second)
		is("token-3")
		out.Store(true)
		time.Sleep(99 * time.Second)
		is("token-3")
		time.Sleep(2 * time.Second)
		_, err := tokens.Token()
		require.ErrorContains(t, err, "no token: Config.SASL.TokenURL "+server.URL+" answers 502 Bad Gateway, and no error of OAuth 2.0")
	})
}
