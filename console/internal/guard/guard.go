// Package guard protects the pages: it bounds requests, sets security headers, and refuses forms that did not come from the
// console's own pages.
package guard

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	// MaxForm bounds the size of a form, and maxURL that of a request's URL, in bytes.
	MaxForm = 64 << 10
	maxURL  = 8 << 10

	sessionCookie = "millrace_session"
	themeCookie   = "millrace_theme"
	csrfField     = "csrf"
)

// Guard guards the pages. It is safe for concurrent use.
type Guard struct {
	Prefix string // of all pages
	Secret []byte // signs the tokens of forms
	Logger *slog.Logger
}

// policy lets a page load its style sheet, script and images from this server only. Inline styles and scripts are forbidden.
const policy = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// Handler bounds requests, and sets the headers of responses.
func (g Guard) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "same-origin") // with "no-referrer" a form's Origin would be null
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		switch {
		case len(r.RequestURI) > maxURL || len(r.URL.String()) > maxURL:
			http.Error(w, "The URL is too long.", http.StatusRequestURITooLong)
			return
		case r.Method != http.MethodGet && r.Method != http.MethodHead && r.Method != http.MethodPost:
			http.Error(w, "Want GET or POST.", http.StatusMethodNotAllowed)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// Genuine reports whether the form is from a page that the console made for this user; userOf returns the user. If it returns false, it
// has sent the response.
func (g Guard) Genuine(w http.ResponseWriter, r *http.Request, userOf func(form url.Values) string) bool {
	r.Body = http.MaxBytesReader(w, r.Body, MaxForm)
	if err := r.ParseForm(); err != nil {
		http.Error(w, "The form is too large or cannot be parsed.", http.StatusRequestEntityTooLarge)
		return false
	}
	for _, values := range r.PostForm {
		if !slices.ContainsFunc(values, func(v string) bool { return !utf8.ValidString(v) || strings.ContainsRune(v, 0) }) {
			continue
		}
		http.Error(w, "The form contains a NUL byte or invalid UTF-8.", http.StatusBadRequest) // PostgreSQL would refuse the byte, too
		return false
	}
	origin := http.NewCrossOriginProtection()
	cookie, err := r.Cookie(sessionCookie)
	user := userOf(r.PostForm)
	if origin.Check(r) != nil || err != nil || !hmac.Equal([]byte(r.PostForm.Get(csrfField)), []byte(g.Token(cookie.Value, user))) {
		g.Logger.WarnContext(r.Context(), "console refused a form that is not its own", "path", r.URL.Path, "user", user)
		http.Error(w, "This form is not from a page that you have opened here, or it is too old. Open the page again.", http.StatusForbidden)
		return false
	}
	return true
}

// Token returns the token for forms of a session and user.
func (g Guard) Token(session, user string) string {
	mac := hmac.New(sha256.New, g.Secret)
	mac.Write([]byte(session + "\x00" + user))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// Session returns the value of the session's cookie. It sets the cookie if it is missing.
func (g Guard) Session(w http.ResponseWriter, r *http.Request) string {
	if cookie, err := r.Cookie(sessionCookie); err == nil && len(cookie.Value) >= 20 && len(cookie.Value) <= 100 {
		return cookie.Value
	}
	value := rand.Text()
	http.SetCookie(w, g.cookie(r, sessionCookie, value))
	return value
}

func (g Guard) cookie(r *http.Request, name, value string) *http.Cookie {
	return &http.Cookie{Name: name, Value: value, Path: g.Prefix + "/", HttpOnly: true, Secure: r.TLS != nil, SameSite: http.SameSiteLaxMode}
}

// Theme returns the theme that the user has chosen, dark or light; "" for the system's.
func Theme(r *http.Request) string {
	if cookie, err := r.Cookie(themeCookie); err == nil && (cookie.Value == "dark" || cookie.Value == "light") {
		return cookie.Value
	}
	return ""
}

// ChooseTheme stores the user's choice of theme in a cookie.
func (g Guard) ChooseTheme(w http.ResponseWriter, r *http.Request) {
	chosen := r.PostForm.Get("theme")
	if chosen != "dark" && chosen != "light" {
		chosen = ""
	}
	cookie := g.cookie(r, themeCookie, chosen)
	if cookie.MaxAge = 365 * 24 * 60 * 60; chosen == "" {
		cookie.MaxAge = -1
	}
	http.SetCookie(w, cookie)
	http.Redirect(w, r, g.Prefix+Local(r.PostForm.Get("back")), http.StatusSeeOther)
}

// Local returns the path if it is on this server, and "/" otherwise.
func Local(path string) string {
	u, err := url.Parse(path)
	if err != nil || u.IsAbs() || u.Host != "" || !strings.HasPrefix(u.Path, "/") || strings.HasPrefix(u.Path, "//") || strings.Contains(path, `\`) {
		return "/"
	}
	return (&url.URL{Path: u.Path, RawQuery: u.RawQuery}).String()
}
