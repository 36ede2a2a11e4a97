package router

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/signals"
)

// fleet is all workers. They are registered in etcd and report their load over NATS as real
// ones do.
type fleet struct {
	plan   Plan
	spec   model.Spec
	script []uint32 // the tokens of every answer, over and over
	times  *sendTimes
	secure *security

	members  *membership.Client
	signals  *signals.Conn
	workers  []*worker
	stopping context.Context
	end      context.CancelFunc
	wait     sync.WaitGroup

	transfers sync.Map // by id: closed when the KV would have come
	transfer  atomic.Uint64
}

func newFleet(p Plan, spec model.Spec, script []uint32, b *sendTimes, secure *security) *fleet {
	f := &fleet{plan: p, spec: spec, script: script, times: b, secure: secure}
	f.stopping, f.end = context.WithCancel(context.Background())
	return f
}

const (
	idPrefix     = "bench" // of the workers' ids
	reportEvery  = 500 * time.Millisecond
	leaseTTL     = time.Minute // nobody dies here, however busy this machine is
	modelDigest  = "bench"
	modelLayers  = 32
	sliceBytes   = 128 << 10
	freeSpace    = 1 << 20 // blocks
	maxStepBatch = 1 << 16
)

// records are those of the workers: prefill first, then decode.
func records(p Plan, modelName string) []*controlv1.WorkerRecord {
	layout := &kvtransferv1.Layout{
		ModelDigest: modelDigest, ArithmeticClass: "bench/1", Layers: modelLayers, KvHeads: 8, HeadSize: 128, ElementType: "bf16",
		BlockTokens: blockTokens, Order: "bench", SliceBytes: sliceBytes,
	}
	all := make([]*controlv1.WorkerRecord, p.Workers)
	for i := range all {
		role := controlv1.Role_ROLE_PREFILL
		if i >= p.Workers/2 {
			role = controlv1.Role_ROLE_DECODE
		}
		all[i] = membership.Identity{
			ID: fmt.Sprintf(idPrefix+"-%s-%d", api.Name(role), i), Epoch: membership.NewEpoch(), Role: role, Engine: "bench",
		}.Record()
		all[i].Model, all[i].ModelDigest, all[i].Layout, all[i].LayoutDigest = modelName, modelDigest, layout, 1
		all[i].Capacity = &controlv1.Capacity{
			Blocks: freeSpace, BlockTokens: blockTokens, MaxBatchTokens: maxStepBatch, MaxSequences: uint32(p.Streams) + 64, MaxWaiting: uint32(p.Streams) + 64,
		}
	}
	return all
}

// join starts the workers and has them join the mesh.
func (f *fleet) join(ctx context.Context, etcd, nats string) (int, error) {
	silent := slog.New(slog.DiscardHandler)
	var err error
	if f.signals, err = signals.Connect(signals.Config{URLs: []string{nats}, Name: "bench"}, silent); err != nil {
		return 0, err
	}
	if f.members, err = membership.Connect(ctx, membership.Config{Endpoints: []string{etcd}, LeaseTTL: leaseTTL}, silent); err != nil {
		return 0, err
	}
	if f.secure.authorization() != "" {
		if err := f.members.CreateKey(ctx, f.secure.record); err != nil {
			return 0, err
		}
	}
	random := rand.New(rand.NewPCG(1, 1))
	for i, record := range records(f.plan, f.spec.Name) {
		record.Capacity.ContextTokens = uint32(f.spec.ContextTokens)
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return 0, fmt.Errorf("listen for a simulated worker: %w", err)
		}
		record.Addresses = []string{listener.Addr().String()}
		hashes := make([]uint64, share(f.plan.PrefixBlocks, f.plan.Workers, i))
		for k := range hashes {
			hashes[k] = random.Uint64()
		}
		f.workers = append(f.workers, f.start(record, hashes, 2*f.plan.Gap*time.Duration(i)/time.Duration(f.plan.Workers), listener))
	}
	registrations := make([]*membership.Registration, len(f.workers))
	for i, w := range f.workers {
		registrations[i] = f.members.Register(w.record)
	}
	for _, r := range registrations {
		if err := r.Wait(ctx); err != nil {
			return 0, err
		}
	}
	f.wait.Go(f.report)
	return len(f.workers), nil
}

// share is how many of all fall to the i-th of n.
func share(all, n, i int) int { return all*(i+1)/n - all*i/n }

// report tells routers how busy the workers are, until the fleet stops.
func (f *fleet) report() {
	ticker := time.NewTicker(reportEvery)
	defer ticker.Stop()
	for {
		for _, w := range f.workers {
			w.publisher.Load(w.load())
		}
		select {
		case <-ticker.C:
		case <-f.stopping.Done():
			return
		}
	}
}

// stop ends all workers and what joined them to the mesh, and waits.
func (f *fleet) stop() error {
	f.end()
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	for _, w := range f.workers {
		_ = w.server.Stop(ended) // it says that calls were cut off, which they are
	}
	f.wait.Wait()
	if f.signals != nil {
		f.signals.Close()
	}
	if f.members == nil {
		return nil
	}
	f.members.Abandon() // the records go with their etcd
	if err := f.members.Close(); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("leave etcd: %w", err)
	}
	return nil
}
