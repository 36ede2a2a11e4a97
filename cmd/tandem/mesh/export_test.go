package mesh

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/tandem-serving/tandem/cmd/tandem/memory"
	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/lifecycle"
	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// CheckModel is checkModel where so many bytes are left, and the KV memory that the
// options have then.
func CheckModel(o Options, spec model.Spec, workers int, left int64) (kv ByteSize, warning string, err error) {
	warning, err = o.checkModel(spec, workers, memory.Left{Bytes: left, By: "/limit"}, left > 0)
	return o.Engine.KVMemory, warning, err
}

// LoadEngines loads what a worker of these options needs, and frees it again.
func LoadEngines(ctx context.Context, o Options, logger *slog.Logger) error {
	e, err := loadEngines(ctx, o, needs{workers: 1}, logger, func(string, int64, int64) {})
	if err != nil {
		return err
	}
	return e.close()
}

// Advertised is advertised.
func Advertised(asked string, listening net.Addr) (string, error) {
	return advertised(asked, listening)
}

// NewReadiness is what answers probes, and the service that makes it ready.
func NewReadiness(ready func()) (http.Handler, lifecycle.Service) {
	p := new(process)
	return p.healthMux(), p.workerReadiness(ready)
}

// NewRouterReadiness is the same of a process with a router at address.
func NewRouterReadiness(address string, expected []string, ready func()) (http.Handler, lifecycle.Service) {
	p := &process{routes: true}
	return p.healthMux(), p.routerReadiness(address, expected, ready)
}

// WithAttribute is withAttribute.
func WithAttribute(logger *slog.Logger, attribute slog.Attr) *slog.Logger {
	return withAttribute(logger, attribute)
}

// KVAddress is what a worker tells others that has these flags, its KV listener being
// at listening, and where it would listen.
func KVAddress(listen, advertise, kvListen, kvAdvertise string, listening net.Addr) (where, told string, err error) {
	place := kvPlaceOf(listen, advertise, kvListen, kvAdvertise)
	told, err = place.address(listening)
	return place.listen, told, err
}

// KVDial is kvDial of a process with these options.
func KVDial(o KVOptions) func(address string) (*grpc.ClientConn, error) {
	p := &process{options: Options{KV: o}}
	return p.kvDial(rpc.ClientConfig{})
}

// KVServices is what serves a receiver of KV on a listener.
func KVServices(o KVOptions, listener net.Listener, receiver receivesKV) []lifecycle.Service {
	p := &process{options: Options{KV: o}, registry: prometheus.NewRegistry()}
	e := new(kvEndpoint)
	e.add(listener, addressOf(listener.Addr()))
	p.addKV("decode-0", "decode", e, receiver, slog.New(slog.DiscardHandler))
	return p.services
}

// SocketAge is socketAge.
const SocketAge = socketAge

// FitStores is the memory of each block store where so many bytes are left; 0: that
// is not known.
func FitStores(asked ByteSize, stores int, left int64) (ByteSize, error) {
	o := StoreOptions{Memory: asked}
	err := o.fit(stores, memory.Left{Bytes: left, By: "/limit"}, left > 0)
	return o.Memory, err
}

// SmallerTypes are flags, and what weights and a KV block take with them, in bytes.
type SmallerTypes struct {
	Flags          string
	Weights, Block int64
}

// GPUKVMemory is the KV memory of one worker of a model with a context of 100 blocks of 16
// tokens, whose weights take 1000 bytes and a block 10, on a GPU where it may take budget.
func GPUKVMemory(budget int64, asked ByteSize, smaller ...SmallerTypes) (ByteSize, error) {
	const blocks = 100
	r := gpuRoom{
		spec: model.Spec{Name: "m", ContextTokens: 16 * blocks}, weights: 1000, workers: 1, block: 10, full: 10 * blocks,
		blockTokens: 16, budget: budget, free: 10 * budget,
	}
	for _, s := range smaller {
		r.smaller = append(r.smaller, smallerRoom{flags: s.Flags, weights: s.Weights, block: s.Block, full: s.Block * blocks})
	}
	return r.kvMemory(asked)
}

// GPUTypes are the flags of smaller types that a GPU's memory is planned with.
func GPUTypes(spec model.Spec, e EngineOptions) (flags []string) {
	for _, s := range newGPURoom(spec, e, 1, 1<<40).smaller {
		flags = append(flags, s.flags)
	}
	return flags
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
func UnlessLost(most time.Duration, made engine.Losing, f func() error) error {
	return unlessStuck(func(s *stuck) error {
		s.once(made, most)
		return f()
	})
}
