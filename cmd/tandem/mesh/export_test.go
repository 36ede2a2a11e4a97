package mesh

import (
	"log/slog"
	"net"
	"net/http"

	"github.com/tandem-serving/tandem/pkg/lifecycle"
)

// Advertised is advertised.
func Advertised(asked string, listening net.Addr) (string, error) {
	return advertised(asked, listening)
}

// NewReadiness is what answers probes, and the service that makes it ready.
func NewReadiness(ready func()) (http.Handler, lifecycle.Service) {
	p := new(process)
	return p.healthMux(), p.workerReadiness(ready)
}

// NewRouterReadiness is the same of a process with a router at address.
func NewRouterReadiness(address string, expected []string, ready func()) (http.Handler, lifecycle.Service) {
	p := &process{routes: true}
	return p.healthMux(), p.routerReadiness(address, expected, ready)
}

// WithAttribute is withAttribute.
func WithAttribute(logger *slog.Logger, attribute slog.Attr) *slog.Logger {
	return withAttribute(logger, attribute)
}
