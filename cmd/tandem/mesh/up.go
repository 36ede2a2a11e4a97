package mesh

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/lifecycle"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// UpOptions describe a whole mesh on one machine.
type UpOptions struct {
	Options
	// PrefillWorkers and DecodeWorkers are how many of each run.
	PrefillWorkers, DecodeWorkers int
	// KVStores is how many block stores run.
	KVStores int
	// Listen is where the router serves gRPC.
	Listen string
	// DataDir holds the embedded etcd's data; empty: a temporary folder.
	DataDir string
}

// RegisterFlags adds all flags.
func (o *UpOptions) RegisterFlags(fs *pflag.FlagSet) {
	o.Options.RegisterFlags(fs)
	fs.Lookup("kv-socket").Usage = "Unix sockets on which workers receive KV: auto (in a private folder that goes with the process) or off"
	fs.IntVar(&o.PrefillWorkers, "prefill", 1, "number of prefill workers")
	fs.IntVar(&o.DecodeWorkers, "decode", 1, "number of decode workers")
	fs.IntVar(&o.KVStores, "kvstore", 0, "number of block stores, which keep KV that prefill workers have no room for")
	fs.StringVar(&o.Listen, "listen", "127.0.0.1:7070", "where the router serves gRPC")
	fs.StringVar(&o.HTTP, "http", "127.0.0.1:8080", "where the router serves HTTP (OpenAI's API, health); empty: nowhere")
	fs.StringSliceVar(&o.ModelAliases, "model-alias", []string{"gpt-*"}, "further names of the model, * for any characters, so that programs with a name built in find one; empty: none")
	fs.StringVar(&o.Metrics, "metrics", "127.0.0.1:9090", "where Prometheus metrics are served; empty: nowhere")
	fs.StringVar(&o.DataDir, "data-dir", "", "folder for the embedded etcd's data (default: a temporary one)")
	fs.StringSliceVar(&o.Etcd, "etcd", nil, "addresses of an etcd to use instead of the embedded one")
	fs.StringSliceVar(&o.NATS, "nats", nil, "addresses of a NATS server to use instead of the embedded one")
}

// Validate checks ranges.
func (o *UpOptions) Validate() error {
	switch {
	case o.PrefillWorkers < 0 || o.PrefillWorkers > maxWorkers:
		return fmt.Errorf("--prefill: %d is outside 0 to %d", o.PrefillWorkers, maxWorkers)
	case o.DecodeWorkers < 1 || o.DecodeWorkers > maxWorkers:
		return fmt.Errorf("--decode: %d is outside 1 to %d: every request needs a decode worker", o.DecodeWorkers, maxWorkers)
	case o.KVStores < 0 || o.KVStores > maxWorkers:
		return fmt.Errorf("--kvstore: %d is outside 0 to %d", o.KVStores, maxWorkers)
	case o.Listen == "":
		return errors.New("--listen: is empty: give host:port, 127.0.0.1:0 for any free port, or unix:///path")
	case o.KV.Socket != SocketAuto && o.KV.Socket != SocketOff:
		return errors.New("--kv-socket: give auto or off: each worker has a socket of its own")
	}
	return o.Options.Validate()
}

// maxWorkers bounds the workers of one process.
const maxWorkers = 256

// Up is a running mesh, as Run tells its caller once it is ready.
type Up struct {
	// Address is the router's gRPC address, to be dialled on this machine.
	Address string
	// HTTP and Metrics are those addresses; empty if not served.
	HTTP, Metrics string
	// Etcd and NATS are the servers in use.
	Etcd, NATS []string
	// EmbeddedEtcd and EmbeddedNATS: they run in this process.
	EmbeddedEtcd, EmbeddedNATS bool
	// Model is the model's name, ModelDir its directory.
	Model, ModelDir string
	// Device is what the model runs on, for people.
	Device string
	// Prefill, Decode and Stores are the workers' ids.
	Prefill, Decode, Stores []string
	// OutsideBytes is the memory of weights, workspaces and KV pages, which is not Go's.
	OutsideBytes int64
}

// Run starts a mesh, calls ready once every worker can be used through the
// router, and serves until ctx ends; then it drains. progress is told how far
// loading is. A GPU that is lost and whose driver does not come back is left behind, with
// all that waits for it: the error is engine.ErrDeviceLost then as well.
func Run(ctx context.Context, o UpOptions, logger *slog.Logger, registry *prometheus.Registry, progress Progress, ready func(Up)) error {
	return unlessStuck(func(s *stuck) error { return run(ctx, o, s, logger, registry, progress, ready) })
}

func run(ctx context.Context, o UpOptions, s *stuck, logger *slog.Logger, registry *prometheus.Registry, progress Progress, ready func(Up)) (err error) {
	if err := o.Validate(); err != nil {
		return err
	}
	// Ports first: that one is taken should not be found after a long load.
	listeners, err := listenAll(named{"--listen", o.Listen}, named{"--http", o.HTTP}, named{"--metrics", o.Metrics})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, listeners.close()) }()
	if ctx.Err() != nil {
		return nil // asked to stop before the long part
	}
	p := &process{options: o.Options, stuck: s, logger: logger, registry: registry}
	defer func() { err = errors.Join(err, p.sockets.close()) }()
	if err := p.startTracing(); err != nil {
		return err
	}
	defer p.stopTracing(ctx)
	if err := o.Engine.SimulatedDevice.checkTroubled(append(workerIDs(controlv1.Role_ROLE_PREFILL, o.PrefillWorkers), workerIDs(controlv1.Role_ROLE_DECODE, o.DecodeWorkers)...)); err != nil {
		return err
	}
	engines, err := loadEngines(ctx, o.Options, needs{router: true, workers: o.PrefillWorkers + o.DecodeWorkers}, logger, progress)
	if err != nil {
		return unlessStopped(ctx, err)
	}
	defer func() { err = errors.Join(err, engines.close()) }()

	up := Up{Device: engines.computesOn(), Model: engines.spec.Name, ModelDir: engines.dir, Address: listeners.address(0), HTTP: listeners.address(1), Metrics: listeners.address(2)}
	servers, err := startServers(ctx, &o, &up)
	if err != nil {
		return unlessStopped(ctx, err)
	}
	defer func() { err = errors.Join(err, servers.stop()) }()

	p.options, p.engines = o.Options, engines // with the addresses of the servers
	if err := p.watchGPU(); err != nil {
		return err
	}
	// It takes in signals for the router alone.
	if err := p.connect(ctx, "tandem-up", p.tracing.Tracer("tandem-router", "router-1")); err != nil {
		return unlessStopped(ctx, err)
	}
	defer func() { err = errors.Join(err, p.disconnect()) }()
	// First, so that it is stopped last and tells of the drain.
	p.addHTTP(listeners.all[1], listeners.all[2])
	if servers.etcd != nil {
		p.add(lifecycle.Service{Name: "etcd", Run: servers.etcd.Run})
	}
	if err := p.addAll(o, &up, listeners); err != nil {
		return err
	}
	up.OutsideBytes = engines.outsideBytes() + int64(len(up.Stores))*int64(p.options.Store.Memory)
	expected := slices.Concat(up.Prefill, up.Decode, up.Stores)
	p.add(p.routerReadiness(up.Address, expected, func() { ready(up) }))
	return lifecycle.Run(ctx, logger, o.StopTimeout, nil, p.services...)
}

// unlessStopped is the error of a start, nil if it is that it was interrupted.
func unlessStopped(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// addAll adds the workers and the router.
func (p *process) addAll(o UpOptions, up *Up, listeners *listeners) error {
	for _, pool := range []struct {
		role  controlv1.Role
		count int
		ids   *[]string
	}{{controlv1.Role_ROLE_PREFILL, o.PrefillWorkers, &up.Prefill}, {controlv1.Role_ROLE_DECODE, o.DecodeWorkers, &up.Decode}} {
		for _, id := range workerIDs(pool.role, pool.count) {
			place, err := p.freePlace(pool.role, listeners)
			if err != nil {
				return err
			}
			if err := p.addWorker(pool.role, id, place); err != nil {
				return err
			}
			*pool.ids = append(*pool.ids, id)
		}
	}
	var err error
	if up.Stores, err = p.addStores(o.KVStores, listeners); err != nil {
		return err
	}
	advertise, err := advertised("", listeners.all[0].Addr())
	if err != nil {
		return err
	}
	return p.addRouter("router-1", listeners.all[0], advertise)
}

// workerIDs are the ids of the workers of one role.
func workerIDs(role controlv1.Role, count int) []string {
	ids := make([]string, count)
	for i := range ids {
		ids[i] = fmt.Sprintf("%s-%d", roleName(role), i+1)
	}
	return ids
}

// listeners are the open ports of a process. Servers close theirs; closing twice
// is harmless.
type listeners struct{ all []net.Listener }

// named is an address and the flag that sets it.
type named struct{ flag, address string }

// listenAll opens the addresses; an empty one has no listener.
func listenAll(addresses ...named) (*listeners, error) {
	l := new(listeners)
	for _, a := range addresses {
		var listener net.Listener
		if a.address != "" {
			opened, err := rpc.Listen(a.address)
			if err != nil {
				return nil, errors.Join(fmt.Errorf("%s: %w", a.flag, err), l.close())
			}
			listener = opened
		}
		l.all = append(l.all, listener)
	}
	return l, nil
}

func (l *listeners) keep(listener net.Listener) { l.all = append(l.all, listener) }

// address is what to dial to reach the i-th, empty if it does not listen.
func (l *listeners) address(i int) string {
	if l.all[i] == nil {
		return ""
	}
	return addressOf(l.all[i].Addr())
}

func (l *listeners) close() error {
	var errs []error
	for _, listener := range l.all {
		if listener == nil {
			continue
		}
		if err := listener.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
