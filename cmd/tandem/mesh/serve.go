package mesh

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/cmd/tandem/memory"
	"github.com/tandem-serving/tandem/pkg/lifecycle"
	"github.com/tandem-serving/tandem/pkg/worker"
)

// ServeOptions describe one part of a mesh in a process of its own.
type ServeOptions struct {
	Options
	// Target is the part: router, prefill, decode, or kvtransfer, a block store.
	Target string
	// ID is the part's id; empty: made of target, host and chance.
	ID string
	// Listen is where it serves gRPC; empty: a router's default port, a free one
	// for workers.
	Listen string
	// Advertise is the address that others are told; empty: the one listened on,
	// or this host's if that is every interface.
	Advertise string
	// KVListen is where a worker receives KV over TCP; empty: a free port of Listen's
	// host. KVAdvertise is the address that others are told; empty: as of Advertise.
	KVListen, KVAdvertise string
}

// RegisterFlags adds all flags.
func (o *ServeOptions) RegisterFlags(fs *pflag.FlagSet) {
	o.Options.RegisterFlags(fs)
	fs.StringVar(&o.Target, "target", "", "the part to run: router, prefill, decode, or kvtransfer, a block store")
	fs.StringVar(&o.ID, "id", "", "id of this part, unique in the mesh (default: made of target and host)")
	fs.StringVar(&o.Listen, "listen", "", "where to serve gRPC (default: 127.0.0.1:7070 for a router, a free port of 127.0.0.1 for a worker)")
	fs.StringVar(&o.Advertise, "advertise", "", "address that the other parts are told (default: what is listened on, or this host's address)")
	fs.StringVar(&o.KVListen, "kv-listen", "", "where a worker receives KV over TCP (default: a free port of the host in --listen)")
	fs.StringVar(&o.KVAdvertise, "kv-advertise", "", "address that senders of KV are told (default: the host in --advertise with that port, or what is listened on)")
	fs.StringVar(&o.HTTP, "http", "", "where to serve HTTP (health, and OpenAI's API of a router); empty: nowhere")
	o.registerAliases(fs)
	fs.StringVar(&o.Metrics, "metrics", "", "where to serve Prometheus metrics; empty: nowhere")
	fs.StringSliceVar(&o.Etcd, "etcd", []string{"http://127.0.0.1:2379"}, "addresses of etcd")
	fs.StringSliceVar(&o.NATS, "nats", []string{"nats://127.0.0.1:4222"}, "addresses of NATS")
}

func (o *ServeOptions) registerAliases(fs *pflag.FlagSet) {
	fs.StringSliceVar(&o.ModelAliases, "model-alias", nil, "further names that a router knows the model by, * for any characters, as in gpt-*")
}

// CheckTarget refuses flags of a block store that mean nothing to it: it has no model
// and computes nothing. given says which flags count; environments and files do for
// several parts at once, so that what stands there should not.
func (o *ServeOptions) CheckTarget(given func(flag string) bool) error {
	if targets()[o.Target] != controlv1.Role_ROLE_KVTRANSFER {
		return nil
	}
	var foreign ServeOptions
	fs := pflag.NewFlagSet("foreign", pflag.ContinueOnError)
	foreign.registerModelFlags(fs)
	foreign.registerAliases(fs)
	var err error
	fs.VisitAll(func(f *pflag.Flag) {
		if err == nil && given(f.Name) {
			err = fmt.Errorf("--%s means nothing to a block store, which loads no model and computes nothing: leave it out, or give it to the workers or the router", f.Name)
		}
	})
	return err
}

// targets are the parts that run in a process of their own.
func targets() map[string]controlv1.Role {
	return map[string]controlv1.Role{
		"router":     controlv1.Role_ROLE_ROUTER,
		"prefill":    controlv1.Role_ROLE_PREFILL,
		"decode":     controlv1.Role_ROLE_DECODE,
		"kvtransfer": controlv1.Role_ROLE_KVTRANSFER,
	}
}

// Validate checks ranges, of a block store only those of what means something to it.
func (o *ServeOptions) Validate() error {
	switch {
	case targets()[o.Target] == controlv1.Role_ROLE_UNSPECIFIED:
		return fmt.Errorf("--target: %q is none of router, prefill, decode and kvtransfer", o.Target)
	case len(o.Etcd) == 0:
		return errors.New("--etcd: name at least one address")
	case len(o.NATS) == 0:
		return errors.New("--nats: name at least one address")
	}
	if err := checkAdvertise("--advertise", o.Advertise); err != nil {
		return err
	}
	if err := checkKVPlace(o.KVListen, o.KVAdvertise); err != nil {
		return err
	}
	if targets()[o.Target] == controlv1.Role_ROLE_KVTRANSFER {
		return o.validateShared()
	}
	return o.Options.Validate()
}

// checkAdvertise refuses what nobody could connect to.
func checkAdvertise(flag, address string) error {
	if address == "" {
		return nil
	}
	if path, is := strings.CutPrefix(address, "unix://"); is {
		if !filepath.IsAbs(path) {
			return fmt.Errorf("%s: %q has no absolute path, as in unix:///run/tandem.sock", flag, address)
		}
		return nil
	}
	host, port, err := net.SplitHostPort(address)
	number, portErr := strconv.ParseUint(port, 10, 16)
	if err != nil || host == "" || portErr != nil || number == 0 {
		return fmt.Errorf("%s: %q is neither HOST:PORT nor unix:///PATH", flag, address)
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		return fmt.Errorf("%s: %s is every interface, which nobody can connect to: name one of this host's addresses", flag, address)
	}
	return nil
}

// Part is a running part, as Serve tells its caller once it serves.
type Part struct {
	// ID is the part's id.
	ID string
	// Address is where it listens, Advertise what others are told.
	Address, Advertise string
	// HTTP and Metrics are those addresses; empty if not served.
	HTTP, Metrics string
	// OutsideBytes is the memory of weights, workspaces and KV pages, which is not Go's.
	OutsideBytes int64
}

// Serve runs one part until ctx ends; then it drains. ready is called once it is
// registered and serves. A GPU that is lost is left behind as by Run.
func Serve(ctx context.Context, o ServeOptions, logger *slog.Logger, registry *prometheus.Registry, progress Progress, ready func(Part)) error {
	return unlessStuck(func(s *stuck) error { return serve(ctx, o, s, logger, registry, progress, ready) })
}

func serve(ctx context.Context, o ServeOptions, s *stuck, logger *slog.Logger, registry *prometheus.Registry, progress Progress, ready func(Part)) (err error) {
	if err := o.Validate(); err != nil {
		return err
	}
	role := targets()[o.Target]
	if o.ID == "" {
		o.ID = worker.NewID(o.Target)
	}
	if o.Listen == "" {
		o.Listen = "127.0.0.1:0"
		if role == controlv1.Role_ROLE_ROUTER {
			o.Listen = "127.0.0.1:7070"
		}
	}
	if role != controlv1.Role_ROLE_KVTRANSFER {
		if err := o.Engine.SimulatedDevice.checkTroubled([]string{o.ID}); err != nil {
			return err
		}
	}
	listeners, err := listenAll(named{"--listen", o.Listen}, named{"--http", o.HTTP}, named{"--metrics", o.Metrics})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, listeners.close()) }()
	p := &process{options: o.Options, stuck: s, logger: logger, registry: registry}
	defer func() { err = errors.Join(err, p.sockets.close()) }()
	place, err := p.place(o, role, listeners)
	if err != nil {
		return err
	}
	if err := p.startTracing(); err != nil {
		return err
	}
	defer p.stopTracing(ctx)
	// Before the model is loaded: that etcd is away should not be found late.
	if err := p.connect(ctx, o.ID, p.tracing.Tracer("tandem-"+o.Target, o.ID)); err != nil {
		return unlessStopped(ctx, err)
	}
	defer func() { err = errors.Join(err, p.disconnect()) }()
	outside, err := p.load(ctx, role, progress)
	if err != nil {
		return unlessStopped(ctx, err)
	}
	defer func() { err = errors.Join(err, p.unload()) }()
	// First, so that it is stopped last and tells of the drain.
	p.addHTTP(listeners.all[1], listeners.all[2])
	if err := p.addPart(role, o.ID, place); err != nil {
		return err
	}
	part := Part{ID: o.ID, Address: listeners.address(0), Advertise: place.advertise, HTTP: listeners.address(1), Metrics: listeners.address(2), OutsideBytes: outside()}
	readiness := p.workerReadiness(func() { ready(part) })
	if role == controlv1.Role_ROLE_ROUTER {
		readiness = p.routerReadiness(part.Address, nil, func() { ready(part) })
	}
	p.add(readiness)
	return lifecycle.Run(ctx, logger, o.StopTimeout, nil, p.services...)
}

// load loads what a part of the role needs, for unload to free. outside is the
// memory outside Go's heap that it has once the part is added.
func (p *process) load(ctx context.Context, role controlv1.Role, progress Progress) (outside func() int64, err error) {
	if role == controlv1.Role_ROLE_KVTRANSFER {
		left, known := memory.Available(os.DirFS("/"))
		return func() int64 { return int64(p.options.Store.Memory) }, p.options.Store.fit(1, left, known)
	}
	parts := needs{workers: 1}
	if role == controlv1.Role_ROLE_ROUTER {
		parts = needs{router: true}
	}
	if p.engines, err = loadEngines(ctx, p.options, parts, p.logger, progress); err != nil {
		return nil, err
	}
	if err := p.watchGPU(); err != nil {
		return nil, errors.Join(err, p.unload())
	}
	return p.engines.outsideBytes, nil
}

func (p *process) unload() error {
	if p.engines == nil {
		return nil
	}
	return p.engines.close()
}

// place is where the part serves whose listeners are open, the one for KV excepted:
// that is opened here.
func (p *process) place(o ServeOptions, role controlv1.Role, l *listeners) (place workerPlace, err error) {
	place.listener = l.all[0]
	if place.advertise, err = advertised(o.Advertise, place.listener.Addr()); err != nil || !receives(role) {
		return place, err
	}
	place.kv, err = listenKV(o.KV, kvPlaceOf(o.Listen, o.Advertise, o.KVListen, o.KVAdvertise), &p.sockets, l, p.logger)
	return place, err
}

func (p *process) addPart(role controlv1.Role, id string, place workerPlace) error {
	switch role {
	case controlv1.Role_ROLE_ROUTER:
		return p.addRouter(id, place.listener, place.advertise)
	case controlv1.Role_ROLE_KVTRANSFER:
		return p.addStore(id, place)
	default:
		return p.addWorker(role, id, place)
	}
}

// addressOf is what to dial on this machine to reach a listener: "host:port" or
// "unix:///path".
func addressOf(listening net.Addr) string {
	switch at := listening.(type) {
	case *net.UnixAddr:
		return "unix://" + at.String()
	case *net.TCPAddr:
		if at.IP.IsUnspecified() { // every interface, this one too
			return net.JoinHostPort("127.0.0.1", fmt.Sprint(at.Port))
		}
	}
	return listening.String()
}

// advertised is the address to tell others: the one asked for, or the one
// listened on; if that is every interface, this host's first address.
func advertised(asked string, listening net.Addr) (string, error) {
	if asked != "" {
		return asked, nil
	}
	tcp, is := listening.(*net.TCPAddr)
	if !is || !tcp.IP.IsUnspecified() {
		return addressOf(listening), nil
	}
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return "", fmt.Errorf("find this host's address: %w; pass --advertise HOST:PORT", err)
	}
	host := "127.0.0.1"
	for _, a := range addresses {
		if network, is := a.(*net.IPNet); is && network.IP.IsGlobalUnicast() {
			host = network.IP.String()
			break
		}
	}
	return net.JoinHostPort(host, fmt.Sprint(tcp.Port)), nil
}
