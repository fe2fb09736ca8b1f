// Package console is the operator's page: it shows where every event is between PostgreSQL and its effects, what is wrong and what
// helps, and it replays, discards, pauses and decides. It calls the functions that the command "millrace" is made of.
//
// A Console is an http.Handler. Mount it behind a login:
//
//	page, err := console.New(console.Config{
//		Databases: []console.Database{{Name: "orders", Pool: pool}},
//		Prefix:    "/console",
//		Authorize: func(r *http.Request) (console.Rights, string) { return console.Look, user(r) },
//	})
//	mux.Handle("/console/", page)
//
// Pages are made by the server, work without JavaScript, and load nothing from elsewhere.
package console

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/console/internal/assets"
	"github.com/millrace-go/millrace/console/internal/cache"
	"github.com/millrace-go/millrace/console/internal/figures"
	"github.com/millrace-go/millrace/console/internal/guard"
	"github.com/millrace-go/millrace/console/internal/jobs"
	"github.com/millrace-go/millrace/console/internal/live"
	"github.com/millrace-go/millrace/console/internal/mask"
	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/internal/reach"
)

// Config configures a Console. Only Databases is required.
type Config struct {
	// Databases are shown side by side on the page at the root, and each on pages below its name. One or more, each with another name.
	Databases []Database

	// Authorize returns what whoever sent the request may do, and the name that the audit gets: without a name nobody may act. It is
	// called for every request, by several goroutines at once, with the path behind Prefix and the database's name as r.PathValue("db"), and for the page of all databases with the path of each of them, so that it
	// shows those that may be seen; who may see one of them need not have a right at the root. Default: Loopback(Look, ""), so that only requests from this machine
	// are answered, and nothing can be changed.
	Authorize func(r *http.Request) (Rights, string)

	// Mask has the names of JSON fields and headers whose values nobody sees, in upper or lower case. A payload that is no JSON is
	// hidden as a whole where Mask is set. Default: none.
	Mask []string

	// ReadOnly takes the right to act from everybody. Default: false.
	ReadOnly bool

	// Prefix is the path that the handler is mounted at, such as "/console". Default: "", the root.
	Prefix string

	// Secret signs the tokens of forms: 32 bytes or more, the same in all processes that one address leads to. Default: a random one.
	Secret []byte

	// Timeout bounds what a page reads from a database. 100 ms or more. Default: 5 s.
	Timeout time.Duration

	// ActTimeout bounds an action. 1 s or more. Default: 1 min.
	ActTimeout time.Duration

	// Logger gets actions, refusals and errors. Default: slog.Default().
	Logger *slog.Logger
}

// Database is one that the console shows.
type Database struct {
	// Name is its name in the page and its URLs: 1 to 40 lower-case letters, digits and "-". Required.
	Name string
	// Pool connects to it, as a role that "millrace migrate grants --operator" has made an operator. It stays the caller's. The console
	// uses up to 4 of its connections at once, and one more for somebody who acts and for each replay that it continues. To replay
	// archived events the role must be a writer, too. Required.
	Pool *pgxpool.Pool
	// Schema is the schema of Millrace's tables. Default: "millrace".
	Schema string
	// ConfigFile, Fleet and DSN are what the commands that the page shows have for --config, --database and --dsn, the last without its
	// password. Default: none, so that they need an environment that leads them here.
	ConfigFile, Fleet, DSN string
}

// WithDefaults returns the configuration with every zero field set to its default.
func (c Config) WithDefaults() Config {
	if c.Authorize == nil {
		c.Authorize = Loopback(Look, "")
	}
	if c.Secret == nil {
		c.Secret = make([]byte, minSecret)
		_, _ = rand.Read(c.Secret) // which never fails
	}
	if c.Timeout == 0 {
		c.Timeout = 5 * time.Second
	}
	if c.ActTimeout == 0 {
		c.ActTimeout = time.Minute
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

const (
	minSecret = 32
	// reads is how many connections of one database are used at once for what pages show.
	reads = 4
)

var (
	name   = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,39}$`)
	prefix = regexp.MustCompile(`^(/[A-Za-z0-9._~-]+)*$`)
)

// Validate reports everything that is wrong with the configuration. It expects one that has its defaults.
func (c Config) Validate() error {
	var errs []error
	add := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if len(c.Databases) == 0 {
		add("Config.Databases is empty: want one or more")
	}
	seen := map[string]bool{}
	for i, d := range c.Databases {
		if !name.MatchString(d.Name) || d.Name == assets.Folder {
			add(`Config.Databases[%d].Name is %q: want 1 to 40 lower-case letters, digits and "-", and not %q`, i, d.Name, assets.Folder)
		}
		if seen[d.Name] {
			add("Config.Databases[%d].Name is %q: want a name that no other database has", i, d.Name)
		}
		seen[d.Name] = true
		if d.Pool == nil {
			add("Config.Databases[%d].Pool is nil: want a pool", i)
		}
		if _, err := pgschema.Validate(d.Schema); err != nil {
			add("Config.Databases[%d].%w", i, err)
		}
	}
	if !prefix.MatchString(c.Prefix) || strings.Contains(c.Prefix, "/.") {
		add(`Config.Prefix is %q: want a path such as "/console", or ""`, c.Prefix)
	}
	if len(c.Secret) < minSecret {
		add("Config.Secret has %d bytes: want %d or more, or nil for a random one", len(c.Secret), minSecret)
	}
	if c.Timeout < 100*time.Millisecond {
		add("Config.Timeout is %s: want 100ms or more, or 0 for the default", c.Timeout)
	}
	if c.ActTimeout < time.Second {
		add("Config.ActTimeout is %s: want 1s or more, or 0 for the default", c.ActTimeout)
	}
	return errors.Join(errs...)
}

// Console serves the pages. It is safe for concurrent use.
type Console struct {
	cfg       Config
	databases map[string]*database
	mask      mask.Mask
	guard     guard.Guard
	handler   http.Handler
	streams   *live.Streams // of pages that are open
}

// database is one of the configuration's.
type database struct {
	Name string
	figures.Source
	acting      sync.Mutex // one action at a time
	jobs        *jobs.Jobs // replays that it continues
	archiveJobs *jobs.Jobs // and those of the archive
	log         *slog.Logger
}

// New returns a Console. Close it when the server ends.
func New(cfg Config) (*Console, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	c := &Console{cfg: cfg, databases: map[string]*database{}, mask: mask.Mask{}, streams: live.New()}
	for _, d := range cfg.Databases {
		db := &database{Name: d.Name, jobs: jobs.New(), archiveJobs: jobs.New(), log: cfg.Logger.With("database", d.Name)}
		schema, _ := pgschema.Validate(d.Schema) // which was validated
		db.Source = figures.Source{Pool: d.Pool, Schema: schema, Cache: cache.New(reads, cfg.Timeout), Reach: reach.Reach{Config: d.ConfigFile, Database: d.Fleet, DSN: d.DSN, Schema: schema}}
		if schema == pgschema.Default {
			db.Reach.Schema = ""
		}
		c.databases[d.Name] = db
	}
	for _, m := range cfg.Mask {
		c.mask[strings.ToLower(m)] = true
	}
	c.guard = guard.Guard{Prefix: cfg.Prefix, Secret: cfg.Secret, Logger: cfg.Logger}
	c.handler = c.guard.Handler(http.StripPrefix(cfg.Prefix, c.routes()))
	return c, nil
}

// ServeHTTP implements http.Handler.
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) { c.handler.ServeHTTP(w, r) }

// Close ends the streams of pages that are open, which would hold up the end of a server, and waits until replays have ended their
// steps; they go on when somebody continues them. Call it when the server is asked to end, by server.RegisterOnShutdown(page.Close),
// and before the pools are closed. It may be called several times.
func (c *Console) Close() {
	c.streams.Close()
	for _, db := range c.databases {
		db.jobs.Close()
		db.archiveJobs.Close()
	}
}

func (c *Console) routes() http.Handler {
	mux := http.NewServeMux()
	if len(c.cfg.Databases) > 1 {
		mux.HandleFunc("GET /{$}", c.all((*request).fleet))
		mux.HandleFunc("GET /"+assets.Folder+"/live", c.all((*request).liveFleet))
	} else {
		mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, c.cfg.Prefix+"/"+c.cfg.Databases[0].Name+"/", http.StatusSeeOther)
		})
	}
	// Without this the mux would redirect to a path without the prefix.
	mux.HandleFunc("/{db}", c.page(func(q *request) error {
		http.Redirect(q.w, q.r, c.cfg.Prefix+"/"+q.db.Name+"/", http.StatusSeeOther)
		return nil
	}))
	for _, file := range []string{"console.css", "console.js", "wheel.svg"} {
		mux.HandleFunc("GET /"+assets.Folder+"/"+file, assets.Static(file))
	}
	mux.HandleFunc("POST /theme", c.theme)
	for pattern, page := range map[string]func(*request) error{
		"GET /{db}/{$}":                   (*request).overview,
		"GET /{db}/outbox":                answered((*request).outbox),
		"GET /{db}/outbox/archive":        answered((*request).archive),
		"GET /{db}/outbox/archive/replay": answered((*request).archiveReplay),
		"GET /{db}/consumers":             answered((*request).consumers),
		"GET /{db}/dead":                  answered((*request).dead),
		"GET /{db}/dead/event":            answered((*request).deadEvent),
		"GET /{db}/dead/edit":             answered((*request).edit),
		"POST /{db}/dead/edit":            answered((*request).edited),
		"GET /{db}/event":                 answered((*request).event),
		"GET /{db}/effects":               answered((*request).effects),
		"GET /{db}/keys":                  answered((*request).keys),
		"GET /{db}/replay":                answered((*request).replay),
		"GET /{db}/audit":                 answered((*request).audit),
		"GET /{db}/live":                  (*request).live,
		"GET /{db}/do/{action}":           answered((*request).plan),
		"POST /{db}/do/{action}":          answered((*request).act),
		"GET /{db}/{nothing...}":          (*request).nothing,
		"POST /{db}/{nothing...}":         (*request).nothing,
	} {
		mux.HandleFunc(pattern, c.page(page))
	}
	return mux
}
