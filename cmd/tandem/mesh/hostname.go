package mesh

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// withHostname refuses requests to names that a stranger can own, where everybody on this machine
// may call. A stranger's page can have its own name resolve to 127.0.0.1 (DNS rebinding), and to a
// browser this server is then the page's own.
func (p *process) withHostname(handler http.Handler) http.Handler {
	if at, is := p.http.Addr().(*net.TCPAddr); !is || !at.IP.IsLoopback() {
		return handler // it has names that nobody here knows
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if name := hostname(r.Host); p.auth == nil && !isLocalName(name) && !isOfOrigins(name, p.options.Router.CORSOrigins) {
			http.Error(w, fmt.Sprintf("%q is no name of this machine: call localhost, name the page's origin in --router-cors-origins, or pass --auth required", name), http.StatusForbidden)
			return
		}
		handler.ServeHTTP(w, r)
	})
}

// hostname is the name in a Host header.
func hostname(host string) string {
	return strings.ToLower(strings.TrimSuffix((&url.URL{Host: host}).Hostname(), "."))
}

// isLocalName reports whether no stranger can own a name: it is an address or empty, or ends in
// localhost, or in internal, which containers have for their host.
func isLocalName(name string) bool {
	if _, err := netip.ParseAddr(name); err == nil || name == "" || name == "localhost" {
		return true
	}
	return strings.HasSuffix(name, ".localhost") || strings.HasSuffix(name, ".internal")
}

// isOfOrigins reports whether pages of a host may call anyway.
func isOfOrigins(name string, origins []string) bool {
	return slices.ContainsFunc(origins, func(origin string) bool {
		u, err := url.Parse(origin)
		return origin == "*" || err == nil && strings.EqualFold(u.Hostname(), name)
	})
}
