package mesh

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/tandem-serving/tandem/pkg/lifecycle"
	"github.com/tandem-serving/tandem/pkg/telemetry"
)

// addHTTP adds the HTTP servers. A nil listener is no server.
func (p *process) addHTTP(api, metrics net.Listener) {
	if api != nil {
		p.add(httpService("http", api, p.healthMux()))
	}
	if metrics != nil {
		mux := p.healthMux()
		mux.Handle("GET /metrics", telemetry.Handler(p.registry))
		p.add(httpService("metrics", metrics, mux))
	}
}

// healthMux answers /healthz (the process lives) and /readyz (every part of it
// serves), for probes that speak HTTP only.
func (p *process) healthMux() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !p.ready.Load() {
			http.Error(w, "not ready", http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprintln(w, "ready")
	})
	return mux
}

// readiness is a service that calls ready once wait has returned, and takes
// readiness back first of all when the process stops.
func (p *process) readiness(wait func(context.Context) error, ready func()) lifecycle.Service {
	return lifecycle.Service{
		Name: "readiness",
		Run: func(ctx context.Context) error {
			if err := wait(ctx); err != nil {
				return err
			}
			p.ready.Store(true)
			ready()
			<-ctx.Done()
			return nil
		},
		Stop: func(context.Context) error { p.ready.Store(false); return nil },
	}
}

func httpService(name string, listener net.Listener, handler http.Handler) lifecycle.Service {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second, MaxHeaderBytes: 1 << 16}
	return lifecycle.Service{
		Name: name,
		Run: func(context.Context) error {
			if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
				return err
			}
			return nil
		},
		Stop: server.Shutdown,
	}
}
