package mesh

import (
	"errors"
	"net/http"
	"net/http/pprof"
)

// handleProfiles adds Go's profiles of this process to the port for metrics. The command line, which
// pprof serves too, is left out.
func (p *process) handleProfiles(mux *http.ServeMux) {
	if !p.options.MetricsPprof {
		return
	}
	for path, serve := range map[string]http.HandlerFunc{
		"/debug/pprof/":        pprof.Index, // and heap, goroutine and so on behind it
		"/debug/pprof/profile": pprof.Profile,
		"/debug/pprof/trace":   pprof.Trace,
		"/debug/pprof/symbol":  pprof.Symbol,
		"/debug/pprof/cmdline": http.NotFound,
	} {
		mux.Handle(path, p.withMetricsToken(serve))
	}
}

// checkPprof refuses profiles that nobody or everybody could take.
func (o *Options) checkPprof() error {
	switch {
	case !o.MetricsPprof:
		return nil
	case o.Metrics == "":
		return errors.New("--metrics-pprof: profiles are served on --metrics: pass an address there, too")
	case o.MetricsTokenFile == "" && o.Auth.Exposes(o.Metrics):
		return errors.New("--metrics-pprof: whoever takes profiles slows this process down: pass --metrics-token-file, or an address of loopback to --metrics")
	}
	return nil
}
