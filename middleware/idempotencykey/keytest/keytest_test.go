package keytest

import (
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func account(r *http.Request, name string) { r.Header.Set("Account", name) }

// claimed is s with a right server, or one with the faults.
func claimed(s Server, faults ...string) Server {
	m := newMemory(s, faults...)
	s.Handler, s.Authenticate, s.Expire = m.around, account, m.expire
	return s
}

func TestRightServersPass(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]Server{
		"the draft's":          {},
		"Stripe's":             {Keys: Opaque, KeyOptional: true, ReuseStatus: http.StatusBadRequest},
		"one that waits":       {Keys: QuotedOrBare, RetryErrors: true, Waits: true},
		"one that claims less": {Unclaimed: []string{"crowd with one key", "GET is left alone"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			Run(t, claimed(s))
		})
	}
}

// The server at an address hands its requests on to the operation.
func TestServerElsewhere(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	m := newMemory(Server{})
	server := httptest.NewServer(m.around(httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: l.Addr().String()})))
	defer server.Close()
	Run(t, Server{URL: server.URL + "/", Operation: l, Authenticate: account, Expire: m.expire})
}

// failures runs the suite, and returns what each case that failed says.
func failures(t *testing.T, s Server) map[string]string {
	t.Helper()
	require.NoError(t, s.validate())
	x, closeAll := s.start()
	defer closeAll()
	failed := map[string]string{}
	for _, c := range cases {
		if s.claims(c) {
			if err := c.run(x.begin(t.Context())); err != nil {
				failed[c.name] = err.Error()
			}
		}
	}
	return failed
}

func TestWrongServersAreCaught(t *testing.T) {
	t.Parallel()
	for fault, want := range map[string]map[string]string{
		"no lock": {
			"concurrent request is refused":   "executed 2 times: want 1",
			"crowd with one key":              "times: want 1",
			"refusals point to documentation": "executed 2 times: want 1",
		},
		"payload is not compared": {
			"other payload is refused":        `with the body "amount=8", got 201`,
			"refusals point to documentation": "the refusal of another payload",
		},
		"headers are lost":     {"retry gets the first response": "Location: []"},
		"status is lost":       {"retry gets the first response": "got status 200: want that of the first response, 201"},
		"keys of all accounts": {"accounts do not share keys": `of execution "1": want 201 of execution 2`},
		"errors are forgotten": {"server error is replayed": "executed 2 times: want 1"},
		"keys may be missing":  {"missing key is refused": "executed 1 times: want 0", "refusals point to documentation": "the refusal of a missing key"},
		"short keys":           {"every character of a key counts": `of execution "1": want 201 of execution 2`},
		"hang-up forgets":      {"client that hangs up gets the response": `of execution "2": want 201 of execution 1`},
		"body is lost":         {"first request is executed": `received the body ""`},
		"never forgets":        {"expired key is executed again": `of execution "1": want 201 of execution 2`},
		"any key": {
			"bare key is refused":      "executed 1 times: want 0",
			"malformed key is refused": "executed 1 times: want 0",
			"two keys are refused":     "executed 1 times: want 0",
		},
	} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			got := failures(t, claimed(Server{}, fault))
			for name, text := range want {
				assert.Contains(t, got[name], text, name)
				delete(got, name)
			}
			for name, text := range got {
				// A replay that has lost something is lost wherever one is expected. Without a lock, a request that is repeated before
				// the first one has ended is executed again.
				assert.Contains(t, []string{"headers are lost", "status is lost", "no lock"}, fault, "%s fails too: %s", name, text)
			}
		})
	}
}

func TestSettingsAreChecked(t *testing.T) {
	t.Parallel()
	err := Server{Keys: 7, ReuseStatus: 200, Unclaimed: []string{"nonsense"}}.validate()
	for _, text := range []string{
		"Server.Handler and Server.URL are empty", "Server.Keys is 7", "Server.ReuseStatus is 200", `Server.Unclaimed has "nonsense"`,
	} {
		assert.ErrorContains(t, err, text)
	}
	assert.ErrorContains(t, Server{URL: "http://localhost"}.validate(), "Server.Operation is <nil>: want both or neither")
	assert.ErrorContains(t, Server{URL: "http://localhost", Handler: newMemory(Server{}).around}.validate(), "both set")
}

// The package's comment lists the cases, by name.
func TestCommentListsTheCases(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	_, list, _ := strings.Cut(string(doc), "//	case ")
	var names []string
	for line := range strings.Lines(list) {
		if name, ok := strings.CutPrefix(line, "//	"); ok {
			name, _, _ = strings.Cut(name, "   ")
			names = append(names, strings.TrimSpace(name))
		}
	}
	var want []string
	for _, c := range cases {
		want = append(want, c.name)
	}
	assert.Equal(t, want, names)
}
