package mesh

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/membership"
)

// ServeOptions describe a part of a mesh that runs in its own process.
type ServeOptions struct {
	Options
	// Target is the part: router, prefill, decode, or kvtransfer, a block store.
	Target string
	// ID is the part's id; empty: made of target, host and a random number.
	ID string
	// Listen is where it serves gRPC; empty: a router's default port, a free one
	// for workers.
	Listen string
	// Advertise is the address for others; empty: the one of Listen, or this host's if that is
	// every interface.
	Advertise string
	// KVListen is where a worker receives KV over TCP; empty: a free port of Listen's host.
	// KVAdvertise is its address for others; empty: as for Advertise.
	KVListen, KVAdvertise string
	// LastView says where a router keeps its last view of the mesh.
	LastView membership.LastViewConfig
}

// RegisterFlags adds all flags.
func (o *ServeOptions) RegisterFlags(fs *pflag.FlagSet) {
	o.Options.RegisterFlags(fs)
	o.TLS.RegisterFlags(fs)
	fs.StringVar(&o.Target, "target", "", "the part to run: router, prefill, decode, or kvtransfer, a block store")
	fs.StringVar(&o.ID, "id", "", "id of this part, unique in the mesh (default: made of target and host)")
	fs.StringVar(&o.Listen, "listen", "", "where to serve gRPC (default: 127.0.0.1:7070 for a router, a free port of 127.0.0.1 for a worker)")
	fs.StringVar(&o.Advertise, "advertise", "", "address at which other parts reach this one (default: the listen address, or this host's address)")
	fs.StringVar(&o.KVListen, "kv-listen", "", "where a worker receives KV over TCP (default: a free port of the host in --listen)")
	fs.StringVar(&o.KVAdvertise, "kv-advertise", "", "address at which senders of KV reach this worker (default: the host in --advertise with the KV port, or the listen address)")
	fs.StringVar(&o.HTTP, "http", "", "where to serve HTTP (health, metrics, and OpenAI's API of a router); empty: nowhere")
	o.registerControl(fs)
	o.registerRouterFlags(fs)
	fs.StringVar(&o.Metrics, "metrics", "", "where to serve Prometheus metrics; empty: nowhere")
}

func (o *Options) registerControl(fs *pflag.FlagSet) {
	fs.StringVar(&o.Control, "control", DefaultControl, "where a router serves operators (workers, drain, policy …) by gRPC; without --auth required or TLS, an address that clients cannot reach, or unix:///path; empty: nowhere")
}

// DefaultControl is where a router serves operators unless told otherwise.
const DefaultControl = "127.0.0.1:7090"

// registerRouterFlags adds the flags that only a router uses, without its configuration.
func (o *ServeOptions) registerRouterFlags(fs *pflag.FlagSet) {
	o.LastView.RegisterFlags(fs)
	fs.StringSliceVar(&o.ModelAliases, "model-alias", nil, "more names for the model at a router; * stands for any characters, as in gpt-*")
}

// CheckTarget refuses flags that have no effect on a block store, which has no model and
// computes nothing. given selects the flags to check: not those of environments and files, which
// several parts share.
func (o *ServeOptions) CheckTarget(given func(flag string) bool) error {
	if o.role() != controlv1.Role_ROLE_KVTRANSFER {
		return nil
	}
	var foreign ServeOptions
	fs := pflag.NewFlagSet("foreign", pflag.ContinueOnError)
	foreign.registerModelFlags(fs)
	foreign.registerControl(fs)
	foreign.registerRouterFlags(fs)
	var err error
	fs.VisitAll(func(f *pflag.Flag) {
		if err == nil && given(f.Name) {
			err = fmt.Errorf("--%s does not apply to a block store: leave it out, or pass it to the workers or the router", f.Name)
		}
	})
	return err
}

// role is the role of the target; UNSPECIFIED if it names none.
func (o *ServeOptions) role() controlv1.Role {
	role, _ := api.Parse[controlv1.Role](o.Target)
	return role
}

// Validate checks ranges; for a block store only of the flags that it uses.
func (o *ServeOptions) Validate() error {
	switch {
	case o.role() == controlv1.Role_ROLE_UNSPECIFIED:
		return fmt.Errorf("--target: %q is not router, prefill, decode or kvtransfer", o.Target)
	case len(o.Membership.Endpoints) == 0:
		return errors.New("--etcd: name at least one address")
	case len(o.Signals.URLs) == 0:
		return errors.New("--nats: name at least one address")
	}
	if o.ID != "" {
		if err := membership.CheckID(o.ID); err != nil {
			return fmt.Errorf("--id: %w", err)
		}
	}
	if err := cmp.Or(checkListen("--listen", o.Listen), checkAdvertise("--advertise", o.Advertise), checkKVPlace(o.KVListen, o.KVAdvertise)); err != nil {
		return err
	}
	if o.role() == controlv1.Role_ROLE_KVTRANSFER {
		return o.validateShared()
	}
	if o.role() == controlv1.Role_ROLE_ROUTER {
		return cmp.Or(o.Options.Validate(), o.checkAuth(cmp.Or(o.Listen, defaultListen), o.TLS.Enabled()))
	}
	return o.Options.Validate()
}

// defaultListen is where a router serves gRPC unless told otherwise.
const defaultListen = "127.0.0.1:7070"

// Part is a running part, as Serve tells its caller once it serves.
type Part struct {
	ID string
	// Unserved says why a router could serve no request yet; empty: it could.
	Unserved string
	// Etcd is the address of etcd. OldView means that etcd does not answer a router, which
	// uses its last view of the workers, ViewAge old.
	Etcd    []string
	OldView bool
	ViewAge time.Duration
	// Address is where it listens, Advertise its address for others.
	Address, Advertise string
	// Control, HTTP and Metrics are the addresses of these servers; empty without them.
	Control, HTTP, Metrics string
	// TLS means that all connections are encrypted except those to Metrics.
	TLS bool
	// Auth and Exposed are those of Up, for a router.
	Auth, Exposed bool
	// OutsideBytes is the memory of weights, workspaces and KV pages, outside Go's heap.
	OutsideBytes int64
}

// Serve runs a part until ctx ends, and then drains it. It calls ready once the part is
// registered and serves. For a router that could serve no request yet it does so with Unserved, and
// again when one could be served. A lost GPU ends it as it ends Run.
func Serve(ctx context.Context, o ServeOptions, logger *slog.Logger, registry *prometheus.Registry, progress Progress, ready func(Part)) error {
	return unlessStuck(func(s *stuck) error { return serve(ctx, o, s, logger, registry, progress, ready) })
}

func serve(ctx context.Context, o ServeOptions, s *stuck, logger *slog.Logger, registry *prometheus.Registry, progress Progress, ready func(Part)) error {
	if err := o.Validate(); err != nil {
		return err
	}
	role := o.role()
	if o.ID == "" {
		o.ID = membership.NewID(o.Target)
	}
	if o.Listen == "" {
		o.Listen = "127.0.0.1:0"
		if role == controlv1.Role_ROLE_ROUTER {
			o.Listen = defaultListen
		}
	}
	if role != controlv1.Role_ROLE_KVTRANSFER {
		if err := o.Engine.Simulated.CheckWorkers([]string{o.ID}); err != nil {
			return err
		}
	}
	if role != controlv1.Role_ROLE_ROUTER {
		o.Control = ""
	}
	it := &part{role: role, id: o.ID, listen: o.Listen, advertise: o.Advertise, kvListen: o.KVListen, kvAdvertise: o.KVAdvertise}
	p := &process{name: o.ID, options: o.Options, progress: progress, parts: []*part{it}, stuck: s, logger: logger, registry: registry}
	if role == controlv1.Role_ROLE_ROUTER {
		p.remember = func() { p.rememberView(o.ID, o.LastView) }
	}
	return p.run(ctx, o.Target, func(unserved string) {
		now := Part{
			ID: it.id, Unserved: unserved, Address: dialled(it.listener), Advertise: it.advertise, Etcd: o.Membership.Endpoints,
			HTTP: dialled(p.http), Metrics: dialled(p.metrics), Control: dialled(p.control), TLS: it.tls != nil, OutsideBytes: p.outsideBytes(),
			Auth: p.auth != nil, Exposed: role == controlv1.Role_ROLE_ROUTER && o.exposed(o.Listen),
		}
		if p.lastView != nil {
			now.ViewAge, now.OldView = p.lastView.Old()
		}
		ready(now)
	})
}
