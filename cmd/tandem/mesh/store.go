package mesh

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	"github.com/spf13/pflag"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/cmd/tandem/memory"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/telemetry"
	"github.com/tandem-serving/tandem/pkg/worker"
	"github.com/tandem-serving/tandem/services/kvtransfer"
	"github.com/tandem-serving/tandem/services/kvtransfer/store"
)

// StoreOptions describe block stores.
type StoreOptions struct {
	// Memory is that of each store.
	Memory ByteSize
	// Config is the rest; its MemoryBytes follow Memory.
	Config store.Config
}

func (s *StoreOptions) registerFlags(fs *pflag.FlagSet) {
	fs.Var(&s.Memory, "store-memory", "memory of a block store, such as 16GiB; auto: 4GiB, less where the memory is short; what is never used costs nothing")
	s.Config.RegisterFlags(fs)
}

func (s *StoreOptions) validate() error {
	config := s.config()
	if err := config.Validate(); err != nil {
		return fmt.Errorf("--%w", err)
	}
	return nil
}

// autoStoreMemory is what Auto stands for where there is enough memory.
const autoStoreMemory ByteSize = 4 << 30

func (s *StoreOptions) config() store.Config {
	config := s.Config
	config.MemoryBytes = int64(s.Memory)
	if s.Memory == Auto {
		config.MemoryBytes = int64(autoStoreMemory)
	}
	return config
}

// fit says what Auto stands for, and refuses stores that do not fit into what
// memory there is. Pages take memory only when they are used, but a store that is
// full uses all.
func (s *StoreOptions) fit(stores int, left memory.Left, known bool) error {
	if !known {
		s.Memory = ByteSize(s.config().MemoryBytes)
		return nil
	}
	each := (left.Bytes - restBytes) / int64(stores)
	if s.Memory == Auto {
		// Half of what is left: other processes want some too.
		s.Memory = min(autoStoreMemory, ByteSize(each/2))
	}
	if s.Memory <= 0 || int64(s.Memory) > each {
		return fmt.Errorf("--store-memory: %s for each of %d block stores and %s for the rest of the process are more than it may take, %s (%s): pass %s or less",
			s.Memory.String(), stores, gib(restBytes), gib(left.Bytes), left.By, gib(each))
	}
	return nil
}

// holds refuses memory for less than one block of what the workers compute: such a
// store would never hold anything.
func (s *StoreOptions) holds(layout kvcache.Layout) error {
	if least := store.BlockBytes(layout); s.config().MemoryBytes < least {
		return fmt.Errorf("--store-memory: %s does not hold one block of %d tokens of this model: %d bytes do; pass that or more", s.Memory.String(), layout.BlockTokens, least)
	}
	return nil
}

// addStore adds a block store.
func (p *process) addStore(id string, place workerPlace) error {
	role := controlv1.Role_ROLE_KVTRANSFER
	logger := withAttribute(p.logger, slog.String("worker", id))
	identity := worker.Identity{
		ID: id, Epoch: worker.NewEpoch(), Role: role, Addresses: []string{place.advertise}, Version: telemetry.ReadBuild().String(),
	}
	service, err := store.New(p.options.Store.config(), store.Deps{
		Identity: identity, KVAddresses: place.kv.addresses, Signals: p.signals.NewPublisher(id, identity.Epoch),
		Dial:          p.kvDial(kvtransfer.Dialing(rpc.ClientConfig{Name: roleName(role), Logger: logger, Registerer: p.registry})),
		KVConnections: p.options.KV.Connections,
		KVMaxStreams:  p.options.KV.MaxStreams,
		Logger:        logger, Registerer: p.registry, Tracer: p.tracing.Tracer("tandem-"+roleName(role), id),
	})
	if err != nil {
		return fmt.Errorf("%s: %w", id, err)
	}
	p.serveWorker(role, id, place, service, logger)
	return nil
}

// addStores adds the block stores of a whole mesh.
func (p *process) addStores(count int, listeners *listeners) (ids []string, err error) {
	if count == 0 {
		return nil, nil
	}
	left, known := memory.Available(os.DirFS("/"))
	if err := p.options.Store.fit(count, left, known); err != nil {
		return nil, err
	}
	for _, made := range p.engines.made[:min(1, len(p.engines.made))] { // all have one layout
		if err := p.options.Store.holds(made.Capacity().Layout); err != nil {
			return nil, err
		}
	}
	ids = workerIDs(controlv1.Role_ROLE_KVTRANSFER, count)
	for _, id := range ids {
		place, err := p.freePlace(controlv1.Role_ROLE_KVTRANSFER, listeners)
		if err != nil {
			return nil, err
		}
		if err := p.addStore(id, place); err != nil {
			return nil, err
		}
	}
	return ids, nil
}

// freePlace is a place on free ports of this machine.
func (p *process) freePlace(role controlv1.Role, listeners *listeners) (workerPlace, error) {
	listener, err := rpc.Listen("127.0.0.1:0")
	if err != nil {
		return workerPlace{}, err
	}
	listeners.keep(listener)
	place := workerPlace{listener: listener, advertise: listener.Addr().String()}
	if receives(role) {
		place.kv, err = listenKV(p.options.KV, kvPlace{listen: "127.0.0.1:0"}, &p.sockets, listeners, p.logger)
	}
	return place, err
}

// watchStores calls notify with the block stores that take blocks. One that holds
// blocks of another layout is among them: it may take this one when those are not
// used any more, and refuses until then.
func (p *process) watchStores(ctx context.Context, notify func([]store.Peer)) error {
	return p.members.Watch(ctx, func(view membership.View) {
		var peers []store.Peer
		for _, record := range view.Workers {
			if record.GetRole() == controlv1.Role_ROLE_KVTRANSFER && record.GetState() == controlv1.WorkerState_WORKER_STATE_SERVING {
				peers = append(peers, store.Peer{ID: record.GetId(), Epoch: record.GetEpoch(), Addresses: record.GetAddresses(), LayoutDigest: record.GetLayoutDigest()})
			}
		}
		notify(peers)
	})
}
