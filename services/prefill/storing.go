package prefill

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/storeclient"
	"github.com/tandem-serving/tandem/pkg/worker"
)

// storing is a prefill worker's side of the block stores.
type storing struct {
	watch    func(context.Context, func([]storeclient.Peer)) error
	receiver *kvtransfer.Receiver
	client   *storeclient.Client
	fetcher  *fetcher
	putter   *putter
	end      context.CancelFunc // of every fetch
}

// fetchLease is how long a store may be silent that sends blocks: short, since
// nobody waits for them that long and they are lacking meanwhile.
const fetchLease = 3 * time.Second

func newStoring(cfg Config, deps Deps, sender *kvtransfer.Sender) (*storing, error) {
	addresses := deps.KVAddresses
	if len(addresses) == 0 {
		addresses = deps.Identity.Addresses
	}
	capacity := deps.Engine.Capacity()
	receiver, err := kvtransfer.NewReceiver(kvtransfer.ReceiverConfig{
		WorkerID: deps.Identity.ID, Epoch: deps.Identity.Epoch, Addresses: addresses, Layout: capacity.Layout,
		Lease: fetchLease,
		// Each holds a block of its own at least.
		MaxReservations: capacity.Blocks,
		MaxStreams:      deps.KVMaxStreams,
		NoLoans:         deps.KVNoLoans,
		Logger:          deps.Logger,
		Tracer:          deps.Tracer,
	}, deps.Engine.Pages())
	if err != nil {
		return nil, fmt.Errorf("kv receiver: %w", err)
	}
	dial := deps.DialStore
	if dial == nil {
		dial = deps.Dial
	}
	client, err := storeclient.NewClient(storeclient.ClientConfig{Dial: dial, Sender: sender, Receiver: receiver, Layout: capacity.Layout})
	if err != nil {
		return nil, fmt.Errorf("block stores: %w", err)
	}
	counted, err := newMetrics(deps.Registerer, deps.Identity.ID)
	if err != nil {
		return nil, err
	}
	known := newSpeeds(float64(cfg.FetchBandwidth))
	s := &storing{watch: deps.Stores, receiver: receiver, client: client}
	s.fetcher = &fetcher{client: client, speeds: known, metrics: counted, logger: deps.Logger, chunk: cfg.ChunkTokens, running: make(map[asked]*fetch)}
	s.fetcher.ctx, s.end = context.WithCancel(context.Background())
	s.putter = newPutter(cfg.StorePuts, client, known, counted, deps.Logger)
	return s, nil
}

// saving has the worker's saves go to the stores. A nil *storing has them go
// nowhere.
func (s *storing) saving(cfg worker.MemberConfig) worker.MemberConfig {
	if s != nil {
		cfg.Save, cfg.StopSave = s.putter.begin, s.putter.stop
		sending := cfg.Transfers
		cfg.Transfers = func() int { return sending() + s.fetcher.count() }
	}
	return cfg
}

// run puts and receives until ctx ends. It returns when nothing is fetched or put
// any more.
func (s *storing) run(ctx context.Context) error {
	var beside sync.WaitGroup
	var receiveErr error
	beside.Go(func() { _ = s.watch(ctx, s.putter.known) }) // ends with ctx only
	beside.Go(func() { receiveErr = s.receiver.Run(ctx) })
	s.putter.run(ctx)
	s.end()
	s.fetcher.close()
	beside.Wait()
	s.client.Close()
	return receiveErr
}
