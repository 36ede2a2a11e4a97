package prefill

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/coreloop"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/storeclient"
	"github.com/tandem-serving/tandem/pkg/offload"
	"github.com/tandem-serving/tandem/pkg/scheduler"
	"github.com/tandem-serving/tandem/pkg/workerdriver"
)

// storing is a prefill worker's side of the block stores: it drives pkg/offload.
type storing struct {
	driver   *workerdriver.Driver // set before anything is put or fetched
	putEnded func()               // called after each put; set before that
	watch    func(context.Context, func([]offload.Store)) error
	receiver *kvtransfer.Receiver
	client   *storeclient.Client
	metrics  *metrics
	logger   *slog.Logger

	loop  *coreloop.Loop[*offload.Core, offload.Event, offload.Action]
	saves chan scheduler.Action // from the driver, under its lock: Save and StopSave
	tasks sync.WaitGroup        // puts and fetches
	// registered is Deps.Registered.
	registered func(ctx context.Context, worker string, kvAddresses ...string) error

	// Under the loop's lock:
	waiting map[scheduler.SequenceID]chan<- offload.Answer
	fetches map[scheduler.SequenceID]context.CancelFunc
	puts    map[scheduler.SaveID]*saving
	idle    chan struct{} // closed when nothing runs after Close; nil before it
}

// saving is a Save without an answer yet.
type saving struct {
	save   scheduler.Save
	cancel context.CancelFunc // of the running put; nil without one
	until  time.Time          // the deadline of the put
}

func newStoring(cfg Config, deps Deps, sender *kvtransfer.Sender) (*storing, error) {
	capacity := deps.Engine.Capacity()
	receiver, err := kvtransfer.NewReceiver(kvtransfer.ReceiverConfig{
		WorkerID: deps.Identity.ID, Epoch: deps.Identity.Epoch, Addresses: deps.Identity.ReceivesKVAt(), Layout: capacity.Layout,
		Lease: offload.FetchLease,
		// Each holds at least one block of its own.
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
	counted, err := newMetrics(deps.Registerer, deps.Identity.ID)
	if err != nil {
		return nil, err
	}
	s := &storing{
		watch: deps.Stores, registered: deps.Registered, receiver: receiver, metrics: counted, logger: deps.Logger,
		// Each save sends two events at most, its begin and a stop, and those of ended saves may
		// still be queued.
		saves:   make(chan scheduler.Action, 8*(cfg.StorePuts+1)),
		waiting: make(map[scheduler.SequenceID]chan<- offload.Answer),
		fetches: make(map[scheduler.SequenceID]context.CancelFunc), puts: make(map[scheduler.SaveID]*saving),
	}
	s.client, err = storeclient.NewClient(storeclient.ClientConfig{Dial: dial, Sender: sender, Receiver: receiver, Layout: capacity.Layout, Check: s.check})
	if err != nil {
		return nil, fmt.Errorf("block stores: %w", err)
	}
	s.loop = coreloop.New(offload.New(offload.Config{
		PageBytes: capacity.Layout.PageBytes(), BlockTokens: capacity.Layout.BlockTokens, LayoutDigest: capacity.Layout.Digest(),
		ChunkTokens: cfg.ChunkTokens, AssumedBandwidth: float64(cfg.FetchBandwidth), Puts: cfg.StorePuts,
	}), s.apply)
	return s, nil
}

// saving sends the worker's saves to the stores. A nil *storing drops them.
func (s *storing) saving(cfg workerdriver.MemberConfig) workerdriver.MemberConfig {
	if s != nil {
		cfg.Save = func(save scheduler.Save) { s.saves <- save }
		cfg.StopSave = func(id scheduler.SaveID) { s.saves <- scheduler.StopSave{ID: id} }
		cfg.Transfers = s.count
	}
	return cfg
}

// count is the number of running fetches.
func (s *storing) count() int {
	s.loop.Lock()
	defer s.loop.Unlock()
	return s.loop.Core.Fetches()
}

// run puts and receives until ctx ends. It returns when all fetches and puts have ended.
func (s *storing) run(ctx context.Context) error {
	var beside sync.WaitGroup
	var receiveErr error
	beside.Go(func() { _ = s.watch(ctx, s.known) }) // ends only with ctx
	beside.Go(func() { receiveErr = s.receiver.Run(ctx) })
	ended := make(chan struct{})
	beside.Go(func() { s.loop.Run(ended, func() { s.loop.Handle(offload.Tick{}) }) })
	for ctx.Err() == nil {
		select {
		case action := <-s.saves:
			s.offer(action)
		case <-ctx.Done():
		}
	}
	s.close()
	close(ended)
	beside.Wait()
	s.client.Close()
	return receiveErr
}

// close ends running puts and fetches and waits for them. It refuses new saves of the driver.
func (s *storing) close() {
	idle := make(chan struct{})
	s.loop.Lock()
	s.idle = idle
	s.loop.Step(offload.Close{})
	s.loop.Unlock()
	for {
		select {
		case action := <-s.saves:
			s.offer(action)
			continue
		case <-idle:
		}
		s.tasks.Wait()
		return
	}
}

// offer carries out what the driver asks about a save.
func (s *storing) offer(action scheduler.Action) {
	switch a := action.(type) {
	case scheduler.StopSave:
		s.loop.Handle(offload.StopSave{ID: a.ID})
	case scheduler.Save:
		first := s.driver.BlockHashes(a.Salt, a.Tokens[:len(a.Tokens)/len(a.Blocks)])[0]
		s.loop.Lock()
		defer s.loop.Unlock()
		s.puts[a.ID] = &saving{save: a, until: time.Now().Add(offload.PutTimeout)}
		s.loop.Step(offload.Save{ID: a.ID, First: first})
	}
}

// known updates the list of stores.
func (s *storing) known(stores []offload.Store) {
	s.loop.Handle(offload.Known{Stores: stores})
}

// get fetches the blocks that a store has of a prompt, if that pays off. It returns when the
// blocks are there, when they will not come soon enough, or when ctx ends; the prompt goes on in
// each case. Call release once the prompt is submitted: the fetched blocks may then be evicted.
func (s *storing) get(ctx context.Context, source *workerv1.BlockSource, id scheduler.SequenceID, request *scheduler.Request) (got offload.Answer, release func()) {
	blockTokens := s.driver.Layout().BlockTokens
	// The last token is always computed.
	until := min(int(source.GetBlocks()), (len(request.Tokens)-1)/blockTokens)
	tokens := request.Tokens[:until*blockTokens]
	hashes := request.Hashes[:until]
	_, model := s.driver.Load()
	answers := make(chan offload.Answer, 1)
	event := offload.Wanted{
		ID: id, Fetch: s.driver.Reserve(), Store: offload.Store{ID: source.GetWorkerId(), Epoch: source.GetEpoch(), Addresses: source.GetAddresses()},
		Prefix: offload.Prefix{Salt: request.Salt, Tokens: tokens}, PromptTokens: len(request.Tokens),
		Hashes: hashes, Cached: s.driver.CachedBlocks(request.Salt, hashes, tokens), Model: model,
	}
	s.loop.Lock()
	s.waiting[id] = answers
	s.loop.Step(event)
	s.loop.Unlock()
	left := func() { s.loop.Handle(offload.Left{ID: id}) }
	select {
	case got = <-answers:
		return got, left
	case <-ctx.Done():
	}
	s.loop.Lock()
	delete(s.waiting, id)
	s.loop.Unlock()
	left()
	return offload.Answer{ID: id, Tried: true, From: event.Cached * blockTokens, Until: event.Cached * blockTokens, Err: offload.ErrAbandoned}, func() {}
}

// apply carries out the core's actions. The caller holds the loop's lock.
func (s *storing) apply(_ time.Time, actions []offload.Action) {
	for _, action := range actions {
		switch a := action.(type) {
		case offload.Answer:
			if to := s.waiting[a.ID]; to != nil {
				delete(s.waiting, a.ID)
				// Only after its blocks are published. The channel has space for one answer.
				s.loop.After(func() { to <- a })
			}
		case offload.Restore:
			s.loop.After(func() { s.loop.Handle(s.restore(a)) })
		case offload.StartFetch:
			s.startFetch(a)
		case offload.StopFetch:
			if cancel := s.fetches[a.Fetch]; cancel != nil {
				cancel()
			}
		case offload.Publish:
			s.metrics.fetched(a.Blocks, a.Bytes, a.Took)
			s.loop.After(func() { s.driver.KVArrived(scheduler.KVArrived{ID: a.Fetch, From: a.From}) })
		case offload.Release:
			s.loop.After(func() { s.driver.TransferDone(a.Fetch) })
		case offload.Limit:
			s.loop.After(func() { s.driver.LimitSaves(scheduler.SaveLimit(a)) })
		case offload.StartPut:
			s.startPut(a)
		case offload.StopPut:
			if p := s.puts[a.ID]; p != nil && p.cancel != nil {
				p.cancel()
			}
		case offload.Saved:
			delete(s.puts, a.ID)
			s.loop.After(func() { s.driver.SaveDone(scheduler.SaveDone(a)) })
		case offload.CountFetch:
			s.metrics.fetch(a.Result)
		case offload.CountPut:
			s.metrics.put(a.Result, a.Bytes)
		}
	}
	if s.idle != nil && s.loop.Core.Idle() {
		close(s.idle)
		s.idle = nil
	}
}

// restore asks the scheduler to reserve blocks. It does so at once or not at all.
func (s *storing) restore(a offload.Restore) offload.Event {
	sequence := s.driver.Submit(scheduler.Request{ID: a.Fetch, Kind: scheduler.Restore, Tokens: a.Prefix.Tokens, Hashes: a.Hashes, Salt: a.Prefix.Salt, Spare: a.Spare})
	answer := offload.NotRestored{Fetch: a.Fetch}
	for _, action := range sequence.Take() {
		switch r := action.(type) {
		case scheduler.Reserved:
			return offload.Restored{Fetch: a.Fetch, Blocks: r.Blocks, CachedTokens: r.CachedTokens}
		case scheduler.Refused:
			answer.Draining = r.Reason == scheduler.Draining
		}
	}
	return answer
}

func (s *storing) startFetch(a offload.StartFetch) {
	ctx, cancel := context.WithCancel(context.Background())
	s.fetches[a.Fetch] = cancel
	s.tasks.Go(func() {
		bytes, err := s.fetch(ctx, a)
		if err != nil {
			s.logger.Info("kv blocks were not fetched", slog.String("store", a.Store.ID), slog.Int("blocks", len(a.Blocks)-a.Held), slog.Any("error", err))
		}
		cancel()
		s.loop.Lock()
		defer s.loop.Unlock()
		delete(s.fetches, a.Fetch)
		s.loop.Step(offload.FetchEnded{Fetch: a.Fetch, Bytes: bytes, Outcome: storeclient.FetchOutcome(err)})
	})
}

// fetch fetches a prefix from the store that a router named, if that is registered.
func (s *storing) fetch(ctx context.Context, a offload.StartFetch) (bytes uint64, err error) {
	if s.registered != nil {
		if err := s.registered(ctx, a.Store.ID, a.Store.Addresses...); err != nil {
			return 0, err
		}
	}
	return s.client.Fetch(ctx, a.Store, a.Prefix, a.Blocks, a.Held)
}

// check looks for what is not finite in blocks, until ctx ends.
func (s *storing) check(ctx context.Context, blocks []kvcache.BlockID) error {
	finite, err := s.driver.Finite(ctx, blocks)
	if err == nil && !finite {
		err = storeclient.ErrNotFinite
	}
	return err
}

func (s *storing) startPut(a offload.StartPut) {
	p := s.puts[a.ID]
	ctx, cancel := context.WithDeadline(context.Background(), p.until)
	p.cancel = cancel
	s.tasks.Go(func() {
		event := s.put(ctx, a, p.save)
		cancel()
		s.loop.Handle(event)
		s.putEnded()
	})
}

// put puts a prefix into a store.
func (s *storing) put(ctx context.Context, a offload.StartPut, save scheduler.Save) offload.PutEnded {
	bytes, err := s.client.Put(ctx, a.Store, offload.Prefix{Salt: save.Salt, Tokens: save.Tokens}, save.Blocks)
	switch {
	case err == nil, errors.Is(err, storeclient.ErrHeld):
	case errors.Is(err, storeclient.ErrNotFinite):
		s.logger.Error("kv blocks are not finite and are not put into a store", slog.Int("blocks", len(save.Blocks)))
	case !errors.Is(context.Cause(ctx), context.Canceled):
		s.logger.Info("kv blocks were not put into a store", slog.String("store", a.Store.ID), slog.Int("blocks", len(save.Blocks)), slog.Any("error", err))
	}
	return offload.PutEnded{ID: a.ID, Bytes: bytes, Outcome: storeclient.PutOutcome(err)}
}
