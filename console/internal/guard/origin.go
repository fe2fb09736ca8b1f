package guard

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
)

// FromThisMachine reports whether a request is from this machine and for this machine, and does not look as if a proxy has forwarded it.
func FromThisMachine(r *http.Request) bool {
	for name := range r.Header { // also without a value, which a client may send through a proxy that adds another one
		switch {
		case name == "Forwarded", name == "Via", name == "X-Real-Ip", strings.HasPrefix(name, "X-Forwarded-"), strings.HasPrefix(name, "X-Envoy-"):
			return false
		}
	}
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	return err == nil && r.ProtoAtLeast(1, 1) && from.Addr().Unmap().IsLoopback() && loopbackHost(r.Host)
}

func loopbackHost(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = hostport
	}
	if len(host) > 2 && host[0] == '[' {
		host = host[1 : len(host)-1]
	}
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && addr.IsLoopback()
}

// At returns a copy of the request with the path of another page.
func At(r *http.Request, page string) *http.Request {
	other := r.Clone(r.Context())
	u, err := url.Parse(page)
	if err != nil {
		u = &url.URL{Path: "/"}
	}
	db, _, _ := strings.Cut(strings.TrimPrefix(u.Path, "/"), "/")
	other.URL = &url.URL{Path: u.Path}
	other.SetPathValue("db", db)
	return other
}
