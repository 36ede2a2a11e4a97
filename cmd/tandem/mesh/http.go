package mesh

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/pkg/lifecycle"
	"github.com/tandem-serving/tandem/pkg/telemetry"
)

// newHTTP makes the HTTP servers.
func (p *process) newHTTP(context.Context) (services []lifecycle.Service, _ error) {
	if p.http != nil {
		mux := p.healthMux()
		mux.Handle("/", http.HandlerFunc(p.serveAPI))
		server := newHTTPServer(mux)
		server.ConnState = newConnections(p.options.Router.MaxConnections).state
		// What a client keeps is closed, at once or after the answer that it waits for.
		// New connections are taken, since probes need them until the end.
		p.leaveHTTP = func() { server.SetKeepAlivesEnabled(false) }
		services = append(services, httpService("http", p.http, server))
	}
	if p.metrics != nil {
		mux := p.healthMux()
		mux.Handle("GET /metrics", telemetry.Handler(p.registry, p.gatherer()))
		services = append(services, httpService("metrics", p.metrics, newHTTPServer(mux)))
	}
	return services, nil
}

// gatherer is the process's metrics as they are shown.
func (p *process) gatherer() prometheus.Gatherer {
	if !p.options.MetricsVLLM || p.model.dir == "" {
		return p.registry
	}
	return telemetry.WithVLLM(p.registry, p.model.spec.Name)
}

// healthMux answers /healthz (the process lives) and /readyz (every part of it
// serves, and a router has a decode worker, without which it can serve nobody),
// for probes that speak HTTP only.
func (p *process) healthMux() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		switch {
		case !p.ready.Load():
			http.Error(w, "not ready", http.StatusServiceUnavailable)
			return
		case p.watchWorkers != nil && !p.served.Load():
			http.Error(w, "not ready: the router is connected to no decode worker", http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprintln(w, "ready")
	})
	return mux
}

// serveAPI answers what is no probe. The router is added after the servers, so that
// they tell of its drain, and before they begin.
func (p *process) serveAPI(w http.ResponseWriter, r *http.Request) {
	if p.api == nil {
		http.Error(w, "not found: this process has no router; there are /healthz and /readyz", http.StatusNotFound)
		return
	}
	p.api.ServeHTTP(w, r)
}

// newHTTPServer drops clients that do not send headers or, in between two requests,
// anything for long: load balancers keep idle connections for up to ten minutes, and
// have to be the first to let go, or a request may meet a connection that closes.
func newHTTPServer(handler http.Handler) *http.Server {
	return &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: 11 * time.Minute, MaxHeaderBytes: 1 << 16}
}

func httpService(name string, listener net.Listener, server *http.Server) lifecycle.Service {
	return lifecycle.Service{
		Name: name,
		Run: func(context.Context) error {
			if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
				return err
			}
			return nil
		},
		Stop: func(ctx context.Context) error {
			err := server.Shutdown(ctx)
			if err != nil { // what did not end in time is cut off
				_ = server.Close()
			}
			return err
		},
	}
}
