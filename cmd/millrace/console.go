package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/cmd/millrace/internal/cli"
	"github.com/millrace-go/millrace/console"
)

const consoleUsage = `Serves the operator's console, a page in the browser, until SIGTERM or Ctrl-C: what is wrong and what helps, the
outbox, dead letters, each event's way, effects in doubt, keys, and the audit.

It answers requests from this machine alone, and everybody who can log in to this machine can see it. Without --act nobody can
change anything by it, and without --payloads nobody sees payloads. To give it to a team, mount package console in a service,
behind a login.`

// consoleConns are those that pages and one action use at once, and one to spare.
const consoleConns = 6

func consoleCommand(a *cli.App) *cobra.Command {
	var address, actor string
	var act, payloads bool
	var mask []string
	c := a.Database(&cobra.Command{
		Use: "console", Short: "Serve the operator's page on this machine", Long: consoleUsage, Args: cobra.NoArgs,
		Example: "  millrace console --config millrace.yaml\n  millrace console --config millrace.yaml --act --payloads --mask email,card",
	})
	f := c.Flags()
	f.StringVar(&address, "address", "127.0.0.1:8026", "host and port to listen at; the host must be this machine's own")
	f.BoolVar(&act, "act", false, "allow to replay, discard, pause, resume, forget and decide")
	f.BoolVar(&payloads, "payloads", false, "show payloads and responses")
	f.StringSliceVar(&mask, "mask", nil, "JSON fields and headers whose values nobody sees, separated by commas")
	f.StringVar(&actor, "actor", cli.Somebody(), "who acts, for the audit log")
	serve := a.Connected(func(ctx context.Context, pool *pgxpool.Pool, _ []string) error {
		a.Progress.Say("")
		rights := console.Look
		if act {
			rights |= console.Act
		}
		if payloads {
			rights |= console.Payloads
		}
		page, err := console.New(console.Config{
			Databases: []console.Database{{Name: consoleName(pool), Pool: pool, Schema: a.Schema, ConfigFile: a.File, DSN: a.Reach.DSN}},
			Authorize: console.Loopback(rights, actor), Mask: mask, Logger: a.Logger(),
		})
		if err != nil {
			return err
		}
		return serveConsole(ctx, a, address, page)
	})
	c.RunE = func(c *cobra.Command, args []string) error {
		host, _, err := net.SplitHostPort(address)
		if ip := net.ParseIP(host); err != nil || host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			return cli.Misuse(fmt.Errorf("--address is %q: want the host 127.0.0.1, [::1] or localhost, and a port, such as 127.0.0.1:8026", address))
		}
		if act && actor == "" {
			return cli.Misuse(errors.New("--actor is empty: want the name of who acts"))
		}
		a.Conns = consoleConns
		return serve(c, args)
	}
	return c
}

var nameInConsole = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,39}$`)

// consoleName is the name of the database where the console's URLs may have it.
func consoleName(pool *pgxpool.Pool) string {
	name := strings.ReplaceAll(strings.ToLower(pool.Config().ConnConfig.Database), "_", "-")
	if !nameInConsole.MatchString(name) || name == "static" {
		return "database"
	}
	return name
}

// serveConsole serves until ctx ends.
func serveConsole(ctx context.Context, a *cli.App, address string, page *console.Console) error {
	var listening net.ListenConfig
	listener, err := listening.Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("listen at %s: %w; choose another one by --address", address, err)
	}
	server := &http.Server{Handler: page, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10}
	server.RegisterOnShutdown(page.Close)
	a.Say("The console is at http://%s/", listener.Addr())
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
	page.Close() // which waits for replays
	if serving := <-ended; !errors.Is(serving, http.ErrServerClosed) {
		err = errors.Join(err, serving)
	}
	return err
}
