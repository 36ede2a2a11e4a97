package mesh

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	"github.com/tandem-serving/tandem/pkg/scaling"
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

// UpOptions describe a whole mesh on one machine.
type UpOptions struct {
	Options
	// PrefillWorkers and DecodeWorkers are how many of each run.
	PrefillWorkers, DecodeWorkers int
	// Autoscale is how many of each may run, as the router desires. A pool without a range, and
	// both in the zero Bounds, has as many as above.
	Autoscale scaling.Bounds
	KVStores  int
	Listen    string
	// DataDir holds the embedded etcd's data; empty: a temporary folder.
	DataDir string
	// Encrypt has all connections encrypted, with certificates of the authority in Certs, which is
	// made there; empty: the user's folder for state.
	Encrypt bool
	Certs   string
	// Given says whether an address was asked for, by the name of its flag, such as
	// listen: the next free port is as good as one that was not. Nil: all were.
	Given func(flag string) bool
	// sizes desires sizes in place of the router; nil: nobody does.
	sizes func(model string) (scaling.Sizes, bool)
	// Stopping is called when the mesh begins to stop, with how many requests run, which it
	// finishes. Nil: nobody is told.
	Stopping func(requests int)
}

// RegisterFlags adds all flags.
func (o *UpOptions) RegisterFlags(fs *pflag.FlagSet) {
	o.Options.RegisterFlags(fs)
	fs.Lookup("kv-socket").Usage = "Unix sockets for receiving KV: auto (in a private temporary folder) or off"
	fs.IntVar(&o.PrefillWorkers, "prefill", 1, "number of prefill workers")
	fs.IntVar(&o.DecodeWorkers, "decode", 1, "number of decode workers")
	fs.Var(&o.Autoscale, "autoscale", "start and stop workers with the load, within ranges such as prefill=1..4,decode=1..4; 'tandem workers' says why")
	fs.IntVar(&o.KVStores, "kvstore", 0, "number of block stores, which keep KV that does not fit into prefill workers")
	fs.StringVar(&o.Listen, "listen", "127.0.0.1:7070", "where the router serves gRPC")
	o.registerControl(fs)
	fs.StringVar(&o.HTTP, "http", "127.0.0.1:8080", "where the router serves HTTP (OpenAI's API, health, metrics); empty: nowhere")
	fs.StringSliceVar(&o.ModelAliases, "model-alias", []string{"gpt-*"}, "more names for the model, for programs with a model name built in; * stands for any characters; empty: none")
	fs.StringVar(&o.Metrics, "metrics", "127.0.0.1:9090", "where Prometheus metrics are served; empty: nowhere")
	fs.StringVar(&o.DataDir, "data-dir", "", "folder for the embedded etcd's data (default: a temporary one)")
	fs.BoolVar(&o.Encrypt, "tls", false, "encrypt all connections, and let parts and operators know each other by certificates of an authority in --certs")
	fs.StringVar(&o.Certs, "certs", "", "folder of --tls for the authority and its certificates, made if there is none (default: in $XDG_STATE_HOME/tandem or ~/.local/state/tandem)")
	embeds(fs.Lookup("etcd"), &o.Membership.Endpoints, "addresses of an etcd to use instead of the embedded one")
	embeds(fs.Lookup("nats"), &o.Signals.URLs, "addresses of a NATS server to use instead of the embedded one")
}

// embeds changes a flag for addresses of servers to name none by itself: they are embedded.
func embeds(f *pflag.Flag, addresses *[]string, usage string) {
	*addresses, f.DefValue, f.Usage = nil, "[]", usage
}

// Validate checks ranges.
func (o *UpOptions) Validate() error {
	switch {
	case o.PrefillWorkers < 0 || o.PrefillWorkers > maxWorkers:
		return fmt.Errorf("--prefill: %d is outside 0 to %d", o.PrefillWorkers, maxWorkers)
	case o.DecodeWorkers < 1 || o.DecodeWorkers > maxWorkers:
		return fmt.Errorf("--decode: %d is outside 1 to %d", o.DecodeWorkers, maxWorkers)
	case max(o.Autoscale.Prefill.Max, o.Autoscale.Decode.Max) > maxWorkers:
		return fmt.Errorf("--autoscale: a pool has at most %d workers: %s allows more", maxWorkers, &o.Autoscale)
	case o.Autoscale.Decode.Max > 0 && o.Autoscale.Decode.Min < 1:
		return fmt.Errorf("--autoscale: decode=%s has no decode worker at first: begin with 1", o.Autoscale.Decode)
	case o.KVStores < 0 || o.KVStores > maxWorkers:
		return fmt.Errorf("--kvstore: %d is outside 0 to %d", o.KVStores, maxWorkers)
	case o.Certs != "" && !o.Encrypt:
		return errors.New("--certs: is the folder of --tls, which is not given: pass --tls too")
	case o.Listen == "":
		return errors.New("--listen: is empty: give host:port, 127.0.0.1:0 for any free port, or unix:///path")
	case o.KV.Socket != kvtransfer.SocketAuto && o.KV.Socket != kvtransfer.SocketOff:
		return errors.New("--kv-socket: give auto or off: each worker has a socket of its own")
	}
	return cmp.Or(checkListen("--listen", o.Listen), o.Options.Validate(), o.checkAuth(o.Listen, o.Encrypt))
}

const maxWorkers = 256

// autoscale is how many workers of each pool may run, nil if there are as many as at first.
func (o *UpOptions) autoscale() *scaling.Bounds {
	bounds := o.Autoscale
	if bounds == (scaling.Bounds{}) {
		return nil
	}
	if bounds.Prefill.Max == 0 {
		bounds.Prefill = scaling.Range{Min: o.PrefillWorkers, Max: o.PrefillWorkers}
	}
	if bounds.Decode.Max == 0 {
		bounds.Decode = scaling.Range{Min: o.DecodeWorkers, Max: o.DecodeWorkers}
	}
	return &bounds
}

// Up is a running mesh, as Run tells its caller once it is ready.
type Up struct {
	// Address is the router's gRPC address, to be dialled on this machine.
	Address string
	// Control is where operators call the router, HTTP and Metrics are those addresses;
	// empty if not served.
	Control, HTTP, Metrics string
	// Taken are addresses, by the names of their flags, that other processes have, so that
	// the mesh listens on the next free ports.
	Taken map[string]string
	// Everywhere has the names of the flags whose addresses are on all of the host's
	// interfaces.
	Everywhere map[string]bool
	// Auth: callers need a key or a token. Exposed: others than this machine can call.
	Auth, Exposed bool
	// FirstKey is an API key that was made since there was none; empty: there was.
	FirstKey string
	// Etcd and NATS are the servers in use.
	Etcd, NATS []string
	// EmbeddedEtcd and EmbeddedNATS: they run in this process.
	EmbeddedEtcd, EmbeddedNATS bool
	Model, ModelDir            string
	// Device is what the model runs on, for people.
	Device string
	// Prefill, Decode and Stores are the workers' ids.
	Prefill, Decode, Stores []string
	// Certs is the folder of the certificates; empty: nothing is encrypted.
	Certs string
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

func run(ctx context.Context, o UpOptions, s *stuck, logger *slog.Logger, registry *prometheus.Registry, progress Progress, ready func(Up)) error {
	if err := o.Validate(); err != nil {
		return err
	}
	autoscale := o.autoscale()
	if autoscale != nil {
		o.PrefillWorkers, o.DecodeWorkers, o.Router.Scaling.Bounds = autoscale.Prefill.Min, autoscale.Decode.Min, *autoscale
	}
	if o.MetricsTokenFile == "" && o.Auth.Exposes(o.Metrics) {
		logger.Warn("other machines can read the metrics, in the clear and without a token: pass --metrics-token-file, or an address of loopback to --metrics", slog.String("metrics", o.Metrics))
	}
	router := &part{role: controlv1.Role_ROLE_ROUTER, id: "router-1", listen: o.Listen}
	p := &process{name: "tandem-up", options: o.Options, dataDir: o.DataDir, progress: progress, parts: []*part{router}, stuck: s, logger: logger, registry: registry, given: o.Given, stopping: o.Stopping, taken: map[string]string{}, autoscale: autoscale, sizes: o.sizes, makesFirstKey: true, needsEtcdAlone: len(o.Membership.Endpoints) > 0}
	if o.Encrypt {
		if p.certs = o.Certs; p.certs == "" {
			folder, err := certsFolder(os.Getenv)
			if err != nil {
				return err
			}
			p.certs = folder
		}
	}
	p.addFree(controlv1.Role_ROLE_PREFILL, o.PrefillWorkers)
	p.addFree(controlv1.Role_ROLE_DECODE, o.DecodeWorkers)
	if err := o.Engine.Simulated.CheckWorkers(append(p.workers(), p.autoscaledIDs()...)); err != nil {
		return err
	}
	p.addFree(controlv1.Role_ROLE_KVTRANSFER, o.KVStores)
	return p.run(ctx, "up", func(string) {
		ready(Up{
			Address: dialled(router.listener), HTTP: dialled(p.http), Metrics: dialled(p.metrics), Control: dialled(p.control), Taken: p.taken,
			Everywhere: map[string]bool{"listen": everywhere(router.listener), "http": everywhere(p.http), "metrics": everywhere(p.metrics), "control": everywhere(p.control)},
			Auth:       p.auth != nil, Exposed: o.exposed(o.Listen), FirstKey: p.firstKey,
			Etcd: p.options.Membership.Endpoints, NATS: p.options.Signals.URLs, EmbeddedEtcd: p.embedEtcd, EmbeddedNATS: p.embedNATS,
			Model: p.model.spec.Name, ModelDir: p.model.dir, Device: p.engines.Device(),
			Prefill: p.ids(controlv1.Role_ROLE_PREFILL), Decode: p.ids(controlv1.Role_ROLE_DECODE), Stores: p.ids(controlv1.Role_ROLE_KVTRANSFER),
			Certs: p.certs, OutsideBytes: p.outsideBytes(),
		})
		p.announced.Store(true)
	})
}
