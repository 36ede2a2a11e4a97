package mesh

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/cmd/tandem/frontpage"
	"github.com/tandem-serving/tandem/pkg/auth"
	"github.com/tandem-serving/tandem/pkg/lifecycle"
	"github.com/tandem-serving/tandem/pkg/telemetry"
	"github.com/tandem-serving/tandem/services/router/openai"
)

func (p *process) newHTTP(context.Context) (services []lifecycle.Service, _ error) {
	metrics := telemetry.Handler(p.registry, p.gatherer())
	if p.http != nil {
		mux := p.healthMux()
		mux.Handle("GET /metrics", p.operatorsOrToken(metrics))
		if p.parts[0].role == controlv1.Role_ROLE_ROUTER {
			page := p.authenticated(auth.Generate, frontpage.Handler(p.status))
			mux.Handle("GET /{$}", page)
			mux.Handle("GET /console", page)
		} else {
			mux.HandleFunc("GET /{$}", listPages)
		}
		mux.Handle("/", http.HandlerFunc(p.serveAPI))
		server := newHTTPServer(p.withHostname(p.http, func() bool { return p.auth == nil }, mux), p.options.Router.UnreadTimeout)
		server.ErrorLog = slog.NewLogLogger(p.logger.Handler(), slog.LevelDebug) // handshakes that failed
		server.ConnContext = openai.ConnContext
		server.ConnState = newConnections(p.options.Router.MaxConnections, "--router-max-connections").state
		// What a client keeps is closed, at once or after the answer that it waits for.
		// New connections are taken, since probes need them until the end.
		p.leaveHTTP = func() { server.SetKeepAlivesEnabled(false) }
		services = append(services, httpService("http", p.parts[0].tlsListener(openai.Listen(p.http)), server))
	}
	if p.metrics != nil {
		mux := p.healthMux()
		mux.Handle("GET /metrics", p.withMetricsToken(metrics))
		mux.HandleFunc("GET /{$}", listPages)
		p.handleProfiles(mux)
		server := newHTTPServer(p.withHostname(p.metrics, func() bool { return p.options.MetricsTokenFile == "" }, mux), scrapeTimeout)
		server.ReadTimeout = scrapeTimeout
		server.ConnState = newConnections(scrapeConnections, "the port for metrics").state
		services = append(services, httpService("metrics", p.metrics, server))
	}
	return services, nil
}

// Bounds of the port for metrics and probes, which answer at once.
const (
	scrapeTimeout     = time.Minute
	scrapeConnections = 256
)

// listPages says what a port serves that has no API.
func listPages(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(w, `tandem: metrics and health

/metrics  metrics for Prometheus
/healthz  ok while the process lives
/readyz   ready, or 503 and why it is not (/health does the same)
/version  what the program was built from, as JSON
`) // nobody to tell
}

// status is what a router tells of itself to whoever looks at /.
func (p *process) status() frontpage.Status {
	unready := p.whyNotReady()
	out := frontpage.Status{
		Name: "tandem", Version: telemetry.ReadBuild().Version, Ready: unready == "", Unready: unready, GRPC: dialled(p.parts[0].listener),
		Models: []frontpage.Model{{ID: p.model.spec.Name, ContextTokens: p.model.spec.ContextTokens}},
		Endpoints: []string{
			"/v1/models", "/v1/models/{model}", "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/responses/input_tokens", "/v1/embeddings", "/openapi.json",
			"/health", "/readyz", "/healthz", "/version", "/metrics",
		},
	}
	if pools := p.pools.Load(); pools != nil {
		out.Workers = *pools
	}
	return out
}

// gatherer is the process's metrics as they are shown.
func (p *process) gatherer() prometheus.Gatherer {
	if !p.options.MetricsVLLM || p.model.dir == "" {
		return p.registry
	}
	return telemetry.WithVLLM(p.registry, p.model.spec.Name)
}

// healthMux answers /healthz (the process lives), /readyz (every part of it serves, and a
// router has workers that could serve a request), for probes that speak HTTP
// only, /health, which is what clients of vLLM ask for that, and /version.
func (p *process) healthMux() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", p.answerReady)
	mux.HandleFunc("GET /health", p.answerReady)
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(telemetry.ReadBuild()) // nobody to tell
	})
	return mux
}

// whyUnserved says why the router could serve no request; empty: it could, or there is none.
func (p *process) whyUnserved() string {
	if p.watchWorkers == nil {
		return ""
	}
	if why := p.unserved.Load(); why != nil {
		return *why
	}
	return "the router knows no workers yet"
}

// whyNotReady says why the process is not ready; empty: it is.
func (p *process) whyNotReady() string {
	if !p.ready.Load() {
		return "the process starts or stops"
	}
	return p.whyUnserved()
}

func (p *process) answerReady(w http.ResponseWriter, _ *http.Request) {
	if why := p.whyNotReady(); why != "" {
		http.Error(w, "not ready: "+why, http.StatusServiceUnavailable)
		return
	}
	_, _ = fmt.Fprintln(w, "ready")
}

// serveAPI answers what is no probe. The router is added after the servers, so that
// they tell of its drain, and before they begin.
func (p *process) serveAPI(w http.ResponseWriter, r *http.Request) {
	if p.api == nil {
		http.Error(w, "not found: this process has no router; it serves /healthz, /readyz, /health, /version and /metrics", http.StatusNotFound)
		return
	}
	p.api.ServeHTTP(w, r)
}

// headerTimeout is how long headers may take, and a body that nobody reads.
const headerTimeout = 5 * time.Second

// newHTTPServer drops clients that do not send headers or, in between two requests,
// anything for long: load balancers keep idle connections for up to ten minutes, and
// have to be the first to let go, or a request may meet a connection that closes.
//
// A body that its handler does not read, such as of who has no key, net/http would await without an
// end before it answers. Who does read one sets another deadline. Likewise an answer has so long to be
// written, unless its handler moves that deadline before it writes.
func newHTTPServer(handler http.Handler, writeTimeout time.Duration) *http.Server {
	return &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.ContentLength != 0 {
				_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(headerTimeout)) // every connection has one
			}
			handler.ServeHTTP(w, r)
		}),
		ReadHeaderTimeout: headerTimeout, WriteTimeout: writeTimeout, IdleTimeout: 11 * time.Minute, MaxHeaderBytes: 1 << 16,
	}
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
