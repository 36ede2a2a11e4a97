package mesh

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/engines"
	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	"github.com/tandem-serving/tandem/pkg/lifecycle"
	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/scaling"
)

// Advertised is advertised.
func Advertised(asked string, listening net.Addr) (string, error) {
	return advertised(asked, listening)
}

// NewReadiness is what answers probes, and the service that makes it ready.
func NewReadiness(ready func(unserved string)) (http.Handler, lifecycle.Service) {
	p := new(process)
	return p.healthMux(), p.readiness(nil, ready)
}

// NewRouterReadiness is the same of a process with a router, whose health setReady says.
func NewRouterReadiness(watch watchWorkers, setReady func(bool), expected []string, ready func(unserved string)) (http.Handler, lifecycle.Service) {
	p := &process{watchWorkers: watch, setReady: setReady}
	return p.healthMux(), p.readiness(expected, ready)
}

// NewCerts has the authority of 'up --tls' in folder sign for a prefill worker and all that is not
// a part; the service renews what it signed.
func NewCerts(folder string, logger *slog.Logger) ([]lifecycle.Service, error) {
	p := &process{certs: folder, parts: []*part{{role: controlv1.Role_ROLE_PREFILL, id: "prefill-1"}}, logger: logger, registry: prometheus.NewRegistry()}
	return p.newCerts(context.Background())
}

// CertificatesExpire is the metric, seconds since 1970, of a process with a prefill worker before,
// while and after another worker runs that the autoscaler starts.
func CertificatesExpire(folder, worker string) (seconds [3]float64, err error) {
	p := &process{certs: folder, parts: []*part{{role: controlv1.Role_ROLE_PREFILL, id: "prefill-1"}}, logger: slog.New(slog.DiscardHandler), registry: prometheus.NewRegistry()}
	if _, err := p.newCerts(context.Background()); err != nil {
		return seconds, err
	}
	seconds[0] = p.sources.expire()
	started := &part{role: controlv1.Role_ROLE_DECODE, id: worker}
	if err := p.secure(started); err != nil {
		return seconds, err
	}
	seconds[1] = p.sources.expire()
	p.closePart(started)
	seconds[2] = p.sources.expire()
	return seconds, nil
}

// ConnectEmbedded is the error of a process whose embedded etcd is at an address where none answers.
func ConnectEmbedded(o Options) error {
	p := &process{options: o, embedEtcd: true, parts: []*part{{role: controlv1.Role_ROLE_ROUTER, id: "router-1"}}, logger: slog.New(slog.DiscardHandler), registry: prometheus.NewRegistry()}
	return errors.Join(p.connect(context.Background()), p.disconnect())
}

// KVAddress is what a worker tells others that has these flags, its KV listener being
// at listening, and where it would listen.
func KVAddress(listen, advertise, kvListen, kvAdvertise string, listening net.Addr) (where, told string, err error) {
	place := kvPlaceOf(listen, advertise, kvListen, kvAdvertise)
	told, err = place.address(listening)
	return place.listen, told, err
}

// LeftOpen is how many ports of a decode worker are open when it has ended, and the error of
// opening them.
func LeftOpen(o kvtransfer.Config, kvListen string) (ports int, err error) {
	p := &process{options: Options{KV: o}, logger: slog.New(slog.DiscardHandler)}
	worker := &part{role: controlv1.Role_ROLE_DECODE, id: "decode-1", listen: "127.0.0.1:0", kvListen: kvListen}
	err = p.listenPart(worker)
	p.closePart(worker)
	ports = len(p.listeners)
	return ports, errors.Join(err, p.closeListeners())
}

// Record begins and ends the event log of a worker.
func Record(o RecordConfig, worker string) error {
	p := &process{options: Options{Record: o}}
	log, err := p.newEventLog(membership.Identity{ID: worker, Epoch: 1, Role: controlv1.Role_ROLE_DECODE}, slog.New(slog.DiscardHandler))
	return errors.Join(err, p.closeEventLog(log))
}

// KVDial is kvDial of a process with these options.
func KVDial(o kvtransfer.Config) func(address string) (*grpc.ClientConn, error) {
	p := &process{options: Options{KV: o}}
	return p.kvDial(rpc.ClientConfig{})
}

// KVServices is what serves a receiver of KV on a listener.
func KVServices(o kvtransfer.Config, listener net.Listener, receiver receivesKV) []lifecycle.Service {
	p := &process{options: Options{KV: o}, registry: prometheus.NewRegistry()}
	e := new(kvEndpoint)
	e.add(listener, addressOf(listener.Addr()))
	return p.kvServices(&part{id: "decode-0", kv: e}, "decode", receiver, slog.New(slog.DiscardHandler))
}

// UnlessStuck is unlessStuck of what is given so long, with this error.
func UnlessStuck(most time.Duration, err error, f func() error) error {
	return unlessStuck(func(s *stuck) error {
		s.within(most, err)
		s.within(most, err)
		return f()
	})
}

// UnlessLost is unlessStuck of what is given so long from an engine's loss on.
func UnlessLost(most time.Duration, made engine.LossNotifier, f func() error) error {
	return unlessStuck(func(s *stuck) error {
		s.endWhenLost(made, most, nil)
		return f()
	})
}

// HTTPConnections is what bounds the connections of an HTTP server.
func HTTPConnections(most int) func(net.Conn, http.ConnState) {
	return newConnections(most, "--router-max-connections").state
}

// NewHTTPServer is newHTTPServer.
var NewHTTPServer = newHTTPServer

// ModuleOrder is the order in which the modules of a target are made.
func ModuleOrder(target string) ([]string, error) {
	return lifecycle.Order(new(process).modules(nil), target, "readiness")
}

// Desire has sizes be desired in place of those that the router computes.
func (o *UpOptions) Desire(sizes func() scaling.Sizes) {
	o.sizes = func(string) (scaling.Sizes, bool) { return sizes(), true }
}

// CheckOpenFiles is checkOpenFiles.
var CheckOpenFiles = checkOpenFiles

// TooManyThreads is tooManyThreads.
func TooManyThreads(e engines.Config, processors int) string { return tooManyThreads(e, processors) }
