package console

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/url"
	"time"

	"github.com/millrace-go/millrace/console/internal/assets"
	"github.com/millrace-go/millrace/console/internal/cache"
	"github.com/millrace-go/millrace/console/internal/figures"
	"github.com/millrace-go/millrace/console/internal/format"
	"github.com/millrace-go/millrace/console/internal/guard"
	"github.com/millrace-go/millrace/console/internal/payload"
)

// request is a request for a page, or for an action: what its handler needs.
type request struct {
	*Console
	db     *database // nil for the page of all databases
	w      http.ResponseWriter
	r      *http.Request
	rights Rights
	user   string
	seen   *figures.Snapshot // nil: not read yet
}

func (q *request) ctx() context.Context { return q.r.Context() }

// posted reports whether the request is a form.
func (q *request) posted() bool { return q.r.Method == http.MethodPost }

// payloads is where the request reads payloads.
func (q *request) payloads() payload.Source {
	return payload.Source{DB: q.db.Pool, Schema: q.db.Schema, Mask: q.mask, Asked: q.posted()}
}

// errNotFound means that there is no such page or object.
var errNotFound = errors.New("there is no such page")

// errForbidden means that the user lacks the right.
var errForbidden = errors.New("you have no right to do this")

// errNoAnswer means that the database has not answered yet, so its tables are not known.
var errNoAnswer = errors.New("the database does not answer")

// errNoTables means that the role may not read which tables there are, or that reading it failed.
var errNoTables = errors.New("the tables of this schema could not be listed, so this page cannot be shown")

// answered runs serve only if the database has answered at least once.
func answered(serve func(*request) error) func(*request) error {
	return func(q *request) error {
		if q.snapshot().Now.IsZero() {
			return errNoAnswer
		}
		return serve(q)
	}
}

// installed is answered for pages that must know which tables the schema has: what is not known is not "none".
func installed(serve func(*request) error) func(*request) error {
	return answered(func(q *request) error {
		if q.snapshot().There == nil {
			return errNoTables
		}
		return serve(q)
	})
}

// page returns the handler for a page of a database.
func (c *Console) page(serve func(*request) error) http.HandlerFunc {
	return c.allowed(func(q *request) {
		if q.db = q.databases[q.r.PathValue("db")]; q.db == nil {
			http.NotFound(q.w, q.r)
		} else if err := serve(q); err != nil {
			q.fail(err)
		}
	})
}

// allowed returns a handler for users with the right Look.
func (c *Console) allowed(serve func(*request)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		rights, user := c.authorize(r)
		if !rights.Has(Look) {
			c.refuse(w, r)
			return
		}
		if r.Method == http.MethodPost && !c.guard.Genuine(w, r, func(url.Values) string { return user }) {
			return
		}
		serve(&request{Console: c, w: w, r: r, rights: rights, user: user})
	}
}

// theme saves a user's choice of theme. The form is checked with the path of its page, because rights and the user's name may
// depend on the path.
func (c *Console) theme(w http.ResponseWriter, r *http.Request) {
	if c.guard.Genuine(w, r, func(form url.Values) string {
		_, user := c.authorize(guard.At(r, guard.Local(form.Get("back"))))
		return user
	}) {
		c.guard.ChooseTheme(w, r)
	}
}

func (c *Console) refuse(w http.ResponseWriter, r *http.Request) {
	c.cfg.Logger.WarnContext(r.Context(), "console refused a request", "path", r.URL.Path, "remote", r.RemoteAddr)
	http.Error(w, "You may not see this console. Ask whoever runs it for the right to look. Without Config.Authorize it serves this machine alone.", http.StatusForbidden)
}

func (q *request) nothing() error { return errNotFound }

// fail responds with an error.
func (q *request) fail(err error) {
	status, text := http.StatusInternalServerError, format.Error(err)
	switch {
	case errors.Is(err, errNotFound):
		status = http.StatusNotFound
	case errors.Is(err, errFilter):
		status = http.StatusBadRequest
	case errors.Is(err, errForbidden):
		status = http.StatusForbidden
	case errors.Is(err, errTooOften):
		status = http.StatusTooManyRequests
	case errors.Is(err, errNoTables):
		status = http.StatusServiceUnavailable
	case q.r.Context().Err() != nil: // the client has gone
		return
	case errors.Is(err, context.DeadlineExceeded):
		status = http.StatusServiceUnavailable
	case q.snapshot().Error != "": // the page itself shows this error
		status, text = http.StatusServiceUnavailable, "The database does not answer."
	}
	if status >= http.StatusInternalServerError {
		q.cfg.Logger.ErrorContext(q.ctx(), "console page failed", "path", q.r.URL.Path, "error", err)
	}
	q.render(status, "page_error.html", "Error", "", text)
}

// view is the data of a template.
type view struct {
	Title, Section    string
	Database          string   // "" on the page of all databases
	Databases         []string // that the user may see; nil on the page of all databases, or if there is one
	Prefix, Base      string   // Prefix: of all pages; Base: of the database's pages
	Path              string   // of this page, below the prefix
	Live              string   // path of the stream of changes; "" if the page cannot be reloaded
	User              string
	Rights            Rights
	ReadOnly          bool
	Token, Theme      string
	Nav               figures.Snapshot
	Version           string    // version of Nav: the stream announces each new one
	Now               time.Time // by the database's clock
	Content           any
	MayAct, MayReveal bool
}

// render writes a page of a database.
func (q *request) render(status int, name, title, section string, content any) {
	v := q.view(title, section, content)
	v.Database, v.Base, v.Nav = q.db.Name, q.cfg.Prefix+"/"+q.db.Name, q.snapshot()
	if v.Live = v.Base + "/live"; q.r.Method != http.MethodGet {
		v.Path, v.Live = "/"+q.db.Name+"/", ""
	}
	if len(q.cfg.Databases) > 1 {
		for _, of := range q.each() {
			v.Databases = append(v.Databases, of.db.Name)
		}
	}
	v.Now, v.Version = v.Nav.Now, q.version(v.Nav)
	q.write(status, name, v)
}

// view returns the data that all pages need.
func (q *request) view(title, section string, content any) view {
	return view{
		Title: title, Section: section, Prefix: q.cfg.Prefix, Path: (&url.URL{Path: q.r.URL.Path, RawQuery: q.r.URL.RawQuery}).String(),
		User: q.user, Rights: q.rights, ReadOnly: q.cfg.ReadOnly, Theme: guard.Theme(q.r), Token: q.guard.Token(q.guard.Session(q.w, q.r), q.user), Content: content, MayAct: q.rights.Has(Act), MayReveal: q.rights.Has(Payloads),
	}
}

func (q *request) write(status int, name string, v view) {
	var b bytes.Buffer
	if err := assets.Pages[name].Execute(&b, v); err != nil {
		q.cfg.Logger.ErrorContext(q.ctx(), "console template failed", "template", name, "error", err)
		http.Error(q.w, "This page could not be made. See the log.", http.StatusInternalServerError)
		return
	}
	q.w.Header().Set("Content-Type", "text/html; charset=utf-8")
	q.w.WriteHeader(status)
	_, _ = q.w.Write(b.Bytes()) // the client may be gone
}

// snapshot returns the figures of the database, which are old if it does not answer. All parts of a page use the same snapshot.
func (q *request) snapshot() figures.Snapshot {
	if q.seen == nil {
		s := q.db.Snapshot(q.ctx())
		q.seen = &s
	}
	return *q.seen
}

// forget drops the cached figures, because an action changes them.
func (q *request) forget() {
	q.db.Cache.Forget()
	q.seen = nil
}

// version identifies the figures, with the brokers' last answers. It is the same for all pages of the database.
func (q *request) version(s figures.Snapshot) string {
	return s.Fingerprint() + q.brokers.Fingerprint(q.db.Name)
}

// now returns the version of the current figures.
func (q *request) now() string { return q.version(q.db.Snapshot(q.ctx())) }

// judge returns what is wrong with the database.
func (q *request) judge() figures.Judgement {
	return q.db.Judge(q.ctx(), q.snapshot(), q.cfg.Prefix+"/"+q.db.Name)
}

// live streams changes of the figures to an open page. All streams of a database share its snapshot.
func (q *request) live() error {
	q.streams.Serve(q.w, q.r, q.user, func() string {
		s := q.db.Snapshot(q.ctx())
		q.brokers.Look(q.ctx(), q.db.Name, s.Topics)
		return q.version(s)
	})
	return nil
}

// read returns a value that all sessions share. It loads the value again after the time fresh. If that fails it returns no value: the
// last one may be hours old, and no page says so. The answer to a form reads for itself: what it shows may be confidential or large, and
// is not kept.
func read[T any](q *request, key string, fresh time.Duration, load func(ctx context.Context, db *database) (T, error)) (T, error) {
	of := func(ctx context.Context) (T, error) { return load(ctx, q.db) }
	if q.posted() {
		return cache.Once(q.ctx(), q.db.Cache, of)
	}
	value, _, err := cache.Get(q.ctx(), q.db.Cache, key, fresh, of)
	if err != nil {
		var none T
		return none, err
	}
	return value, nil
}
