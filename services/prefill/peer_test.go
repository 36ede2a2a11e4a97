package prefill_test

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/simulated"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer"
)

// peer is a receiver of KV: what a decode worker mounts.
type peer struct {
	t        *testing.T
	engine   *simulated.Engine
	pages    *gatedPages
	receiver *kvtransfer.Receiver
	next     kvcache.BlockID
}

func (g *rig) newPeer(id string, epoch uint64) *peer {
	g.t.Helper()
	p := &peer{t: g.t, engine: newEngine(g.t, nil)}
	p.pages = &gatedPages{Pages: p.engine.Pages()}
	address := id + ":1"
	var err error
	p.receiver, err = kvtransfer.NewReceiver(kvtransfer.ReceiverConfig{
		WorkerID: id, Epoch: epoch, Addresses: []string{address}, Layout: p.engine.Capacity().Layout, Lease: 5 * time.Second,
	}, p.pages)
	if err != nil {
		g.t.Fatal(err)
	}
	stop := serve(g.t, g.network.listen(address), p.receiver.Register)
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- p.receiver.Run(ctx) }()
	g.t.Cleanup(func() {
		p.pages.open()
		cancel()
		if err := <-ran; err != nil {
			g.t.Errorf("receiver: %v", err)
		}
		stop()
	})
	return p
}

// gatedPages lets writes through while its gate is open.
type gatedPages struct {
	engine.Pages
	mu   sync.Mutex
	gate chan struct{}
}

func (p *gatedPages) shut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gate = make(chan struct{})
}

func (p *gatedPages) open() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gate != nil {
		close(p.gate)
		p.gate = nil
	}
}

func (p *gatedPages) Write(layer int, blocks []kvcache.BlockID, src []byte) error {
	p.mu.Lock()
	gate := p.gate
	p.mu.Unlock()
	if gate != nil {
		<-gate
	}
	return p.Pages.Write(layer, blocks, src)
}

// reservation is blocks of a peer and what became of them.
type reservation struct {
	ticket *kvtransferv1.Ticket
	blocks []kvcache.BlockID

	mu        sync.Mutex
	committed bool
	sampled   []int32
	err       error
	over      chan struct{} // closed with Committed or Drained
}

// reserve reserves blocks for a prompt of n tokens, whose first held blocks are there
// already.
func (p *peer) reserve(n, held int) *reservation {
	p.t.Helper()
	r := &reservation{over: make(chan struct{})}
	for range kvcache.BlocksFor(n, blockTokens) {
		r.blocks = append(r.blocks, p.next%poolBlocks)
		p.next++
	}
	var err error
	r.ticket, err = p.receiver.Reserve(kvtransfer.Reservation{
		RequestID: "r", Blocks: r.blocks, HeldBlocks: held, PromptBlocks: len(r.blocks),
		Committed: func(a kvtransfer.Arrival) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.committed, r.sampled = true, a.Sampled
			close(r.over)
		},
		Failed: func(err error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.err = err
		},
		Drained: func() { close(r.over) },
	})
	if err != nil {
		p.t.Fatal(err)
	}
	return r
}

// end is how the transfer ended, once it has.
func (r *reservation) end(t *testing.T) (sampled []int32, err error) {
	t.Helper()
	select {
	case <-r.over:
	case <-time.After(time.Minute):
		t.Fatal("the transfer hangs")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.committed && r.err == nil {
		return nil, errors.New("cancelled")
	}
	return r.sampled, r.err
}

func (r *reservation) ended() bool {
	select {
	case <-r.over:
		return true
	default:
		return false
	}
}

// aborted is the sender's reason, UNSPECIFIED if it gave none.
func (r *reservation) aborted(t *testing.T) kvtransferv1.AbortReason {
	t.Helper()
	_, err := r.end(t)
	if a, ok := errors.AsType[*kvtransfer.AbortedError](err); ok {
		return a.Reason
	}
	t.Logf("the transfer ended with %v", err)
	return kvtransferv1.AbortReason_ABORT_REASON_UNSPECIFIED
}

// holdsKVOf checks that the reservation's pages, from block first on, hold what
// an engine computes for the tokens.
func (p *peer) holdsKVOf(r *reservation, tokens []uint32, first int) {
	p.t.Helper()
	if _, err := r.end(p.t); err != nil {
		p.t.Errorf("the transfer ended with %v", err)
		return
	}
	source := newEngine(p.t, func(context.Context, time.Duration) error { return nil })
	var table []kvcache.BlockID
	for i := range r.blocks {
		table = append(table, kvcache.BlockID(i))
	}
	for start := 0; start < len(tokens); start += 64 {
		s := engine.Sequence{Start: start, Blocks: table}
		for _, token := range tokens[start:min(start+64, len(tokens))] {
			s.Tokens = append(s.Tokens, int32(token))
		}
		if _, err := source.Step(p.t.Context(), engine.Batch{Sequences: []engine.Sequence{s}}); err != nil {
			p.t.Fatal(err)
		}
	}
	for layer := range layers {
		for i := first; i < len(table); i++ {
			used := min(len(tokens)-i*blockTokens, blockTokens) * 8
			want, got := source.Pages().View(layer, table[i])[:used], p.engine.Pages().View(layer, r.blocks[i])[:used]
			if !bytes.Equal(want, got) {
				p.t.Errorf("layer %d of block %d: the receiver has other KV than was computed", layer, i)
			}
		}
	}
}
