package mesh

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/tandem-serving/tandem/services/router/openai"
)

// withHostname refuses requests to names that a stranger can own, on a port that this machine alone reaches and that is
// open to everybody on it. A stranger's page can have its own name resolve to 127.0.0.1 (DNS rebinding), and to a
// browser this server is then the page's own.
func (p *process) withHostname(port net.Listener, open func() bool, handler http.Handler) http.Handler {
	if at, is := port.Addr().(*net.TCPAddr); !is || p.options.Auth.Exposes(at.String()) {
		return handler // it has names that nobody here knows
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !open() || p.isKnownName(w, r) {
			handler.ServeHTTP(w, r)
		}
	})
}

// isKnownName reports whether a request is to a name that no stranger can own. If not, it answers.
func (p *process) isKnownName(w http.ResponseWriter, r *http.Request) bool {
	name := hostname(r.Host)
	if isLocalName(name) || isOfOrigins(name, p.options.Router.CORSOrigins) {
		return true
	}
	f := &openai.Failure{
		Status: http.StatusForbidden, Type: "permission_error", Code: "host_not_allowed",
		Message: fmt.Sprintf("%q is no name of this machine: call localhost, name the page's origin in --router-cors-origins, or ask for keys (--auth required, --metrics-token-file)", name),
	}
	if openai.IsAPI(r.URL) {
		_ = f.Write(w) // nobody to tell
	} else {
		http.Error(w, f.Message, f.Status)
	}
	return false
}

// hostname is the name in a Host header.
func hostname(host string) string {
	return strings.ToLower(strings.TrimSuffix((&url.URL{Host: host}).Hostname(), "."))
}

// isLocalName reports whether no stranger can own a name: it is an address or empty, has no dot, as
// localhost and the names of containers in their network, or ends in localhost, or in internal,
// which containers have for their host.
func isLocalName(name string) bool {
	if _, err := netip.ParseAddr(name); err == nil || !strings.Contains(name, ".") {
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
