package mesh

import (
	"context"
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
func NewReadiness(wait func(context.Context) error, ready func()) (http.Handler, lifecycle.Service) {
	p := new(process)
	return p.healthMux(), p.readiness(wait, ready)
}

// WithAttribute is withAttribute.
func WithAttribute(logger *slog.Logger, attribute slog.Attr) *slog.Logger {
	return withAttribute(logger, attribute)
}
