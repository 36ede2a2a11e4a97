package mesh

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/cmd/tandem/frontpage"
	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/auth"
	"github.com/tandem-serving/tandem/pkg/engine/engines"
	"github.com/tandem-serving/tandem/pkg/eventlog"
	"github.com/tandem-serving/tandem/pkg/identity"
	"github.com/tandem-serving/tandem/pkg/identity/authority"
	"github.com/tandem-serving/tandem/pkg/lifecycle"
	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/scaling"
	"github.com/tandem-serving/tandem/pkg/signals"
	"github.com/tandem-serving/tandem/pkg/telemetry"
)

// process is what the modules of one process share: each makes its part of it for those
// that need it.
type process struct {
	name    string // for NATS
	options Options
	dataDir string // of the embedded etcd; empty: a temporary one
	// certs is the folder of the authority of 'up --tls'; empty: certificates, if there are any,
	// are those of the options. authority, etcdTLS and natsTLS come from it; signed is what was
	// asked of it, by the names of the certificates' folders, and guarded by signing.
	certs            string
	authority        *authority.Authority
	etcdTLS, natsTLS identity.Config
	signing          sync.Mutex
	signed           map[string]authority.Request
	sources          sources
	// needsEtcdAlone: no other process of its kind may use the same etcd.
	needsEtcdAlone bool
	// remember has a router keep its last view, once etcd has a client; nil: it does not.
	remember func()
	progress Progress
	parts    []*part // the router first, if there is one
	stuck    *stuck
	logger   *slog.Logger
	registry *prometheus.Registry

	// given says whether an address was asked for, by the name of its flag; nil: all were.
	// taken are those that were not and that others have, and for which another was found.
	given func(flag string) bool
	taken map[string]string

	listeners            []net.Listener // all that are open
	http, metrics        net.Listener   // nil: not served
	control              net.Listener
	sockets              socketFolder       // on which KV is received
	tracing              *telemetry.Tracing // nil: nothing is traced
	embedEtcd, embedNATS bool               // they run in this process
	model                served
	logs                 []*eventlog.Log
	engines              *engines.Set // nil: nothing computes
	signals              *signals.Conn
	members              *membership.Client
	directory            *membership.Directory
	lastView             *membership.LastView // nil: there is no router that remembers
	api                  http.Handler         // the router's HTTP API; nil without a router
	auth                 *auth.Authenticator  // nil: a router asks nobody who they are
	// makesFirstKey has a router that asks make an API key where there is none: firstKey. announced
	// says that people were told of it.
	makesFirstKey bool
	firstKey      string
	announced     atomic.Bool
	// watchWorkers is router.Service.WatchWorkers; nil without a router.
	watchWorkers watchWorkers
	// sizes is router.Service.Sizes; nil without a router. autoscale is which sizes of pools the
	// process may have, as that desires; nil: those that it begins with.
	sizes     func(model string) (scaling.Sizes, bool)
	autoscale *scaling.Bounds
	running   func() int         // the router's requests; nil without a router
	stopping  func(requests int) // told of them when the process begins to stop; nil: nobody is
	// setReady says in a router's gRPC health, as /readyz does, whether a request could be
	// served.
	setReady func(bool)
	// leaveHTTP tells clients of the HTTP API to connect elsewhere; nil: there is none.
	leaveHTTP func()
	ready     atomic.Bool                       // every part serves
	unserved  atomic.Pointer[string]            // why the router could serve nobody; empty: it could; nil: not known yet
	pools     atomic.Pointer[frontpage.Workers] // that the router gives requests; nil: not known yet
}

// part is a router or a worker of a process, and where it serves.
type part struct {
	role controlv1.Role
	id   string
	// listen is where, advertise the address that others are told; empty: as it follows.
	listen, advertise string
	// kvListen and kvAdvertise are the same of KV.
	kvListen, kvAdvertise string

	listener net.Listener
	tls      *identity.Source // nil: its connections are not encrypted
	kv       *kvEndpoint      // nil: it receives no KV
	log      *eventlog.Log    // nil: nothing is recorded
	// ended is closed when a worker of the autoscaler has; nil: it lasts as long as the process.
	ended chan struct{}
}

// modules are what a process is made of: what makes each, and what it needs before. They
// stop in reverse order. ready is as of readiness.
func (p *process) modules(ready func(unserved string)) map[string]lifecycle.Module {
	// Membership comes before the model: that etcd is away should not be found after a long load.
	// The model's files come before both.
	shared := []string{"membership", "model", "http", "recording"}
	return map[string]lifecycle.Module{
		"certs":      {New: p.newCerts},
		"listeners":  {New: p.newListeners, Needs: []string{"certs"}},
		"tracing":    {New: p.newTracing, Needs: []string{"listeners"}},
		"etcd":       {New: p.newEtcd, Needs: []string{"certs"}},
		"nats":       {New: p.newNATS, Needs: []string{"certs"}},
		"recording":  {New: p.newRecording},
		"modelfiles": {New: p.newModelFiles, Needs: []string{"tracing"}},
		"membership": {New: p.newMembership, Needs: []string{"modelfiles", "etcd", "nats"}},
		"model":      {New: p.newModel, Needs: []string{"modelfiles"}},
		// Before the parts, so that it is stopped after them and tells of the drain.
		"http":       {New: p.newHTTP, Needs: []string{"listeners", "model"}},
		"prefill":    {New: p.newWorkers(controlv1.Role_ROLE_PREFILL), Needs: shared},
		"decode":     {New: p.newWorkers(controlv1.Role_ROLE_DECODE), Needs: shared},
		"kvtransfer": {New: p.newStores, Needs: shared},
		"router":     {New: p.newRouter, Needs: shared},
		// Made before the router, so that it is stopped after it, when no request runs any more.
		"autoscaler": {New: p.newAutoscaler, Needs: shared},
		// The model comes first: for one that cannot be loaded no server starts.
		"up":        {Needs: []string{"model", "prefill", "decode", "kvtransfer", "autoscaler", "router"}},
		"readiness": {New: p.newReadiness(ready)},
	}
}

// run runs the modules of a target until ctx ends.
func (p *process) run(ctx context.Context, target string, ready func(unserved string)) error {
	return lifecycle.RunModules(ctx, p.logger, p.options.StopTimeout, p.modules(ready), target, "readiness")
}

func (p *process) of(role controlv1.Role) (parts []*part) {
	for _, part := range p.parts {
		if part.role == role {
			parts = append(parts, part)
		}
	}
	return parts
}

func (p *process) ids(role controlv1.Role) (ids []string) {
	for _, part := range p.of(role) {
		ids = append(ids, part.id)
	}
	return ids
}

// workers are the ids of all parts but the router.
func (p *process) workers() (ids []string) {
	for _, part := range p.parts {
		if part.role != controlv1.Role_ROLE_ROUTER {
			ids = append(ids, part.id)
		}
	}
	return ids
}

// computing is how many workers have an engine, or may come to have one.
func (p *process) computing() int {
	if p.autoscale != nil {
		return p.autoscale.Prefill.Max + p.autoscale.Decode.Max
	}
	return len(p.of(controlv1.Role_ROLE_PREFILL)) + len(p.of(controlv1.Role_ROLE_DECODE))
}

// decoding is how many of those are decode workers.
func (p *process) decoding() int {
	if p.autoscale != nil {
		return p.autoscale.Decode.Max
	}
	return len(p.of(controlv1.Role_ROLE_DECODE))
}

// addFree adds parts of a role that serve on free ports of this machine.
func (p *process) addFree(role controlv1.Role, count int) {
	for i := range count {
		p.parts = append(p.parts, &part{role: role, id: fmt.Sprintf("%s-%d", api.Name(role), i+1), listen: "127.0.0.1:0"})
	}
}

// outsideBytes is the memory outside Go's heap that the process has, or may come to have.
func (p *process) outsideBytes() int64 {
	bytes := int64(len(p.of(controlv1.Role_ROLE_KVTRANSFER))) * int64(p.options.Store.Memory)
	if p.engines != nil {
		bytes += p.engines.OutsideBytes(p.computing(), p.decoding())
	}
	return bytes
}
