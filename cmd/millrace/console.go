package main

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/cmd/millrace/internal/cli"
	"github.com/millrace-go/millrace/console"
	"github.com/millrace-go/millrace/transport"
)

const consoleUsage = `Serves the operator's console, a page in the browser, until SIGTERM or Ctrl-C: what is wrong and what helps, the
outbox, dead letters, each event's way, effects in doubt, keys, and the audit.

With the configuration of a fleet it serves all databases that the fleet has now, side by side, or the one that --database
names.

It answers requests from this machine alone. Without --act nobody can change anything by it, and without --payloads nobody
sees payloads. With one of them the printed address has a secret, and only a browser that was opened with it has access.
Without them everybody who can log in to this machine can see the console. To give it to a team, mount package console in a
service, behind a login.`

// consoleConns is the number of connections that pages and one action use at once, and one to spare.
const consoleConns = 6

func consoleCommand(a *cli.App) *cobra.Command {
	var address, actor, traceURL string
	var act, payloads bool
	var mask []string
	c := a.Database(&cobra.Command{
		Use: "console", Short: "Serve the operator's page on this machine", Long: consoleUsage, Args: cobra.NoArgs,
		Example: "  millrace console --config millrace.yaml\n  millrace console --config fleet.yaml\n  millrace console --config millrace.yaml --act --payloads --mask email,card",
	})
	f := c.Flags()
	f.StringVar(&address, "address", "127.0.0.1:8026", "host and port to listen at; the host must be this machine's own")
	f.BoolVar(&act, "act", false, "allow to replay, discard, pause, resume, forget and decide")
	f.BoolVar(&payloads, "payloads", false, "show payloads and responses to those who ask for one; the audit log notes each")
	f.StringSliceVar(&mask, "mask", nil, "JSON fields and headers whose values nobody sees, separated by commas")
	f.StringVar(&traceURL, "trace-url", "", "address of a trace, with {trace_id} in place of its ID, for a link on the page of an event, such as https://tempo.example/trace/{trace_id}")
	f.StringVar(&actor, "actor", cli.Somebody(), "who acts, for the audit log")
	serve := func(ctx context.Context, databases []console.Database) error {
		a.Progress.Say("")
		rights := console.Look
		if act {
			rights |= console.Act
		}
		if payloads {
			rights |= console.Payloads
		}
		page, err := console.New(console.Config{Databases: databases, Brokers: consoleBrokers(a), Authorize: console.Loopback(rights, actor), Mask: mask, TraceURL: traceURL, Logger: a.Logger()})
		if err != nil {
			return err
		}
		secret := ""
		if act || payloads {
			secret = rand.Text()
		}
		return serveConsole(ctx, a, address, page, secret)
	}
	one := a.Connected(func(ctx context.Context, pool *pgxpool.Pool, _ []string) error {
		return serve(ctx, []console.Database{{Name: consoleName(pool.Config().ConnConfig.Database, nil), Pool: pool, Schema: a.Schema, ConfigFile: a.File, Fleet: a.Name, DSN: a.Reach.DSN}})
	})
	all := func(c *cobra.Command) error {
		ctx, stop := cli.UntilSignal()
		defer stop()
		defer a.ShowProgress(c.CommandPath())()
		databases, err := fleetDatabases(ctx, a)
		for _, db := range databases {
			defer db.Pool.Close()
		}
		if err != nil {
			return err
		}
		return serve(ctx, databases)
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		host, _, err := net.SplitHostPort(address)
		if ip := net.ParseIP(host); err != nil || host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			return cli.Misuse(fmt.Errorf("--address is %q: want the host 127.0.0.1, [::1] or localhost, and a port, such as 127.0.0.1:8026", address))
		}
		if (act || payloads) && actor == "" {
			return cli.Misuse(errors.New("--actor is empty: want the name of who acts"))
		}
		a.Conns = consoleConns
		if len(a.Fleet) > 0 {
			return all(c)
		}
		return one(c, args)
	}
	return c
}

// unnamable matches characters that names in the console's URLs cannot have.
var unnamable = regexp.MustCompile(`[^a-z0-9]+`)

// fleetDatabases returns the databases of the configuration's fleet.
func fleetDatabases(ctx context.Context, a *cli.App) (all []console.Database, err error) {
	pools, err := a.Pools(ctx)
	taken := map[string]bool{}
	for i, pool := range pools {
		name := consoleName(a.Fleet[i].Name, taken)
		taken[name] = true
		all = append(all, console.Database{Name: name, Pool: pool, Schema: a.Schema, ConfigFile: a.File, Fleet: a.Fleet[i].Name})
	}
	return all, err
}

// consoleName turns a database's name into a name for the console's URLs that is not taken yet.
func consoleName(of string, taken map[string]bool) string {
	name := strings.Trim(unnamable.ReplaceAllString(strings.ToLower(of), "-"), "-")
	name = strings.TrimRight(name[:min(len(name), 35)], "-") // leaves room for a number
	if name == "" || name == "static" {
		name = "database"
	}
	for n, first := 2, name; taken[name]; n++ {
		name = fmt.Sprintf("%s-%d", first, n)
	}
	return name
}

// secretly serves page to browsers that were once opened with the secret in the URL. They keep it in a cookie with this name.
func secretly(page http.Handler, secret, name string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		is := func(given string) bool { return subtle.ConstantTimeCompare([]byte(given), []byte(secret)) == 1 }
		if r.Method == http.MethodGet && r.URL.Path == "/" && is(r.URL.Query().Get("secret")) {
			w.Header().Set("Cache-Control", "no-store")
			w.Header().Set("Referrer-Policy", "no-referrer")
			http.SetCookie(w, &http.Cookie{Name: name, Value: secret, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode})
			http.Redirect(w, r, "/", http.StatusSeeOther)
			return
		}
		if cookie, err := r.Cookie(name); err != nil || !is(cookie.Value) {
			http.Error(w, "Open the address that the command has printed, with its secret. If you have just done so, reload this page.", http.StatusForbidden)
			return
		}
		page.ServeHTTP(w, r)
	})
}

// serveConsole serves until ctx ends. If secret is not "", a browser needs it.
func serveConsole(ctx context.Context, a *cli.App, address string, page *console.Console, secret string) error {
	var listening net.ListenConfig
	listener, err := listening.Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("listen at %s: %w; choose another one by --address", address, err)
	}
	handler, query := http.Handler(page), ""
	if secret != "" {
		_, port, _ := net.SplitHostPort(listener.Addr().String()) // browsers send cookies to all ports
		handler, query = secretly(page, secret, "millrace_console_"+port), "?secret="+secret
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10}
	server.RegisterOnShutdown(page.Close)
	a.Say("The console is at http://%s/%s", listener.Addr(), query)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	err = server.Shutdown(ending)
	page.Close() // waits for replays
	if serving := <-ended; !errors.Is(serving, http.ErrServerClosed) {
		err = errors.Join(err, serving)
	}
	return err
}

// consoleBrokers returns the broker that the configuration names.
func consoleBrokers(a *cli.App) []console.Broker {
	if a.Config == nil || a.BrokerName() != "kafka" && a.BrokerName() != "pubsub" {
		return nil
	}
	b := console.Broker{Name: a.BrokerName(), Open: func(ctx context.Context, patience time.Duration) (transport.Transport, error) {
		return a.OpenBroker(ctx, slog.New(slog.DiscardHandler), patience)
	}}
	if _, settings, err := a.Config.Settings(); err == nil {
		if at, ok := settings.(transport.Addressed); ok {
			b.Address = at.Address()
		}
	}
	return []console.Broker{b}
}
