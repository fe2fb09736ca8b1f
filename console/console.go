// Package console is a web page for operators. It shows where every event is between PostgreSQL and its effects, what is wrong
// and how to fix it. Operators can replay and discard events, pause and resume, and decide about effects in doubt. The page calls
// the same functions as the command "millrace".
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
// The server renders the pages. They work without JavaScript, and load nothing from other hosts.
package console

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/console/internal/act"
	"github.com/millrace-go/millrace/console/internal/assets"
	"github.com/millrace-go/millrace/console/internal/brokers"
	"github.com/millrace-go/millrace/console/internal/bucket"
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
	// Databases are the databases to show: an overview of all at the root, and the pages of each below its name. One or more, with
	// different names.
	Databases []Database

	// Brokers are the brokers of these databases' events, two at most. The first page shows whether they answer, and what consumers have
	// not read. Default: none, so that the first page says nothing about the broker.
	Brokers []Broker

	// Authorize returns the rights of the request's sender, and the name for the audit. Without a name nobody may act or see payloads. Authorize is
	// called for every request, concurrently, with the path below Prefix, and the database's name as r.PathValue("db"). The page of
	// all databases, and each page's list of databases, call it with the path of each database too, and show those that the sender may
	// see; for that the sender needs no right at the root. Default: Loopback(Look, ""), so that only requests from this machine are answered, and nothing can be
	// changed.
	Authorize func(r *http.Request) (Rights, string)

	// Mask has the names of JSON fields and headers whose values are hidden from everybody. Case does not matter, nor spaces around a
	// name. If Mask is set, a
	// payload that is not JSON is hidden completely. Default: none.
	Mask []string

	// ReadOnly denies the right Act to everybody. Default: false.
	ReadOnly bool

	// Prefix is the path that the handler is mounted at, such as "/console". Default: "", the root.
	Prefix string

	// Secret signs the tokens of forms. 32 bytes or more. Processes behind one address need the same secret. Default: a random one.
	Secret []byte

	// Timeout bounds each read of a page from a database. 100 ms or more. Default: 5 s.
	Timeout time.Duration

	// ActTimeout bounds an action. 1 s or more. Default: 1 min.
	ActTimeout time.Duration

	// TraceURL is the address of a trace in your tracing system, with {trace_id} in place of its ID:
	// "https://tempo.example/trace/{trace_id}". The page of an event links to it. http or https. Default: "", no link.
	TraceURL string

	// Logger logs actions, refusals and errors. Default: slog.Default().
	Logger *slog.Logger
}

// Database is a database that the console shows.
type Database struct {
	// Name is the database's name in the page and in URLs: 1 to 40 lower-case letters, digits and "-". Required.
	Name string
	// Pool connects to the database with a role that "millrace migrate grants --operator" has made an operator. To replay archived
	// events, the role must be a writer too. The caller owns the pool. The console uses up to 4 of its connections at once, one more
	// for a running action, and one for each replay that it continues. Required.
	Pool *pgxpool.Pool
	// Schema is the schema of Millrace's tables. Default: "millrace".
	Schema string
	// ConfigFile, Fleet and DSN are the values of --config, --database and --dsn in the commands that the page shows; DSN without
	// its password. Default: none, so that the commands rely on the environment.
	ConfigFile, Fleet, DSN string
}

// WithDefaults returns the configuration with every zero field set to its default.
func (c Config) WithDefaults() Config {
	if c.Authorize == nil {
		c.Authorize = Loopback(Look, "")
	}
	if c.Secret == nil {
		c.Secret = make([]byte, minSecret)
		_, _ = rand.Read(c.Secret) // rand.Read never fails
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
	// A user may act actionsAtOnce times at once, and then once every betweenActions, over all databases; and see as many payloads.
	actionsAtOnce  = 20
	betweenActions = 2 * time.Second
	// reads bounds how many connections to one database the pages use at once, beside one for the figures and one for doctor.
	reads = 2
	// maxBrokers is how many brokers the first page has room for.
	maxBrokers = 2
)

// traceID stands for the ID of a trace in TraceURL.
const traceID = "{trace_id}"

var (
	trace  = regexp.MustCompile(`^[0-9a-f]{32}$`)
	name   = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,39}$`)
	prefix = regexp.MustCompile(`^(/[A-Za-z0-9._~-]+)*$`)
)

// traceAt returns the address of a trace, or "". The ID is from an event's header, so it may be anything.
func (c Config) traceAt(id string) string {
	if c.TraceURL == "" || !trace.MatchString(id) {
		return ""
	}
	return strings.ReplaceAll(c.TraceURL, traceID, id)
}

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
	if len(c.Brokers) > maxBrokers {
		add("Config.Brokers has %d brokers: want %d at most", len(c.Brokers), maxBrokers)
	}
	for i, b := range c.Brokers {
		if b.Name == "" || b.Open == nil {
			add("Config.Brokers[%d] has no Name, or no Open: want both", i)
		}
	}
	for i, m := range c.Mask {
		if strings.TrimSpace(m) == "" {
			add("Config.Mask[%d] is %q: want the name of a field or header", i, m)
		}
	}
	if !prefix.MatchString(c.Prefix) || strings.Contains(c.Prefix, "/.") {
		add(`Config.Prefix is %q: want a path such as "/console", or ""`, c.Prefix)
	}
	if at := c.TraceURL; at != "" {
		u, err := url.Parse(strings.ReplaceAll(at, traceID, "0"))
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || !strings.Contains(at, traceID) {
			add(`Config.TraceURL is %q: want an address with http or https and {trace_id}, such as "https://tempo.example/trace/{trace_id}", or ""`, at)
		}
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
	streams   *live.Streams // of open pages
	brokers   *brokers.Brokers
	actions   *bucket.Buckets // how often each user may act
	reveals   *bucket.Buckets // how often each user may see a payload
}

// database is a database of the configuration.
type database struct {
	Name string
	act.Database
	acting sync.Mutex // one action at a time
}

// New returns a Console. Close it when the server ends.
func New(cfg Config) (*Console, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	c := &Console{cfg: cfg, databases: map[string]*database{}, mask: mask.Mask{}, streams: live.New(), brokers: askedOf(cfg.Brokers), actions: bucket.New(actionsAtOnce, betweenActions), reveals: bucket.New(actionsAtOnce, betweenActions)}
	for _, d := range cfg.Databases {
		db := &database{Name: d.Name, Database: act.Database{Jobs: jobs.New(), ArchiveJobs: jobs.New(), Log: cfg.Logger.With("database", d.Name)}}
		schema, _ := pgschema.Validate(d.Schema) // Validate has checked it
		db.Source = figures.Source{Pool: d.Pool, Schema: schema, Cache: cache.New(reads, cfg.Timeout, figures.Own...), Reach: reach.Reach{Config: d.ConfigFile, Database: d.Fleet, DSN: d.DSN, Schema: schema}}
		if schema == pgschema.Default {
			db.Reach.Schema = ""
		}
		c.databases[d.Name] = db
	}
	for _, m := range cfg.Mask {
		c.mask[strings.ToLower(strings.TrimSpace(m))] = true
	}
	c.guard = guard.Guard{Prefix: cfg.Prefix, Secret: cfg.Secret, Logger: cfg.Logger}
	c.handler = c.guard.Handler(http.StripPrefix(cfg.Prefix, c.routes()))
	return c, nil
}

// ServeHTTP implements http.Handler.
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) { c.handler.ServeHTTP(w, r) }

// Close ends the streams of open pages, which would delay a server's shutdown. It waits until replays have finished their current
// steps; they stay in the database until someone continues them. Call it when the server shuts down, by
// server.RegisterOnShutdown(page.Close), and before the pools are closed. It may be called several times.
func (c *Console) Close() {
	c.streams.Close()
	c.brokers.Close()
	for _, db := range c.databases {
		db.Jobs.Close()
		db.ArchiveJobs.Close()
	}
}

func (c *Console) routes() http.Handler {
	mux := http.NewServeMux()
	home := c.page(func(q *request) error {
		http.Redirect(q.w, q.r, c.cfg.Prefix+"/"+q.db.Name+"/", http.StatusSeeOther)
		return nil
	})
	if len(c.cfg.Databases) > 1 {
		mux.HandleFunc("GET /{$}", c.all((*request).fleet))
		mux.HandleFunc("GET /"+assets.Folder+"/live", c.all((*request).liveFleet))
	} else {
		mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
			home(w, guard.At(r, "/"+c.cfg.Databases[0].Name+"/"))
		})
	}
	// Without this route the mux would redirect to a path without the prefix.
	mux.HandleFunc("/{db}", home)
	for _, file := range []string{"console.css", "console.js", "wheel.svg"} {
		mux.HandleFunc("GET /"+assets.Folder+"/"+file, assets.Static(file))
	}
	mux.HandleFunc("POST /theme", c.theme)
	for pattern, page := range map[string]func(*request) error{
		"GET /{db}/{$}":                   (*request).overview,
		"GET /{db}/outbox":                answered((*request).outbox),
		"GET /{db}/outbox/archive":        installed((*request).archive),
		"GET /{db}/outbox/archive/replay": installed((*request).archiveReplay),
		"GET /{db}/consumers":             answered((*request).consumers),
		"GET /{db}/dead":                  installed((*request).dead),
		"GET /{db}/dead/event":            installed((*request).deadEvent),
		"POST /{db}/dead/event":           installed((*request).deadEvent),
		"GET /{db}/dead/edit":             installed((*request).edit),
		"POST /{db}/dead/edit":            installed((*request).edited),
		"GET /{db}/event":                 answered((*request).event),
		"GET /{db}/effects":               installed((*request).effects),
		"POST /{db}/effects":              installed((*request).effects),
		"GET /{db}/keys":                  installed((*request).keys),
		"POST /{db}/keys":                 installed((*request).keys),
		"GET /{db}/replay":                installed((*request).replay),
		"GET /{db}/audit":                 installed((*request).audit),
		"GET /{db}/live":                  (*request).live,
		"GET /{db}/do/{action}":           installed((*request).plan),
		"POST /{db}/do/{action}":          installed((*request).act),
		"GET /{db}/{nothing...}":          (*request).nothing,
		"POST /{db}/{nothing...}":         (*request).nothing,
	} {
		mux.HandleFunc(pattern, c.page(page))
	}
	return mux
}
