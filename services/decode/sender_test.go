package decode_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"

	"github.com/tandem-serving/tandem/pkg/engine/simulated"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// sender is a prefill worker's half, driven by hand.
type sender struct {
	*kvtransfer.Sender
	t      *testing.T
	engine *simulated.Engine
	mu     sync.Mutex
	next   int
	conns  []net.Conn
}

func (g *rig) newSender(id string) *sender {
	g.t.Helper()
	s := &sender{t: g.t, engine: newEngine(g.t, 4000, simulated.Config{})}
	var err error
	s.Sender, err = kvtransfer.NewSender(kvtransfer.SenderConfig{
		WorkerID: id, Epoch: 3, Layout: s.engine.Capacity().Layout,
		Dial: func(address string) (*grpc.ClientConn, error) {
			return rpc.Dial(address, rpc.ClientConfig{Dialer: func(ctx context.Context, _ string) (net.Conn, error) {
				conn, err := g.listener.DialContext(ctx)
				if err == nil {
					s.mu.Lock()
					s.conns = append(s.conns, conn)
					s.mu.Unlock()
				}
				return conn, err
			}})
		},
	}, s.engine.Pages())
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			g.t.Errorf("sender: %v", err)
		}
	})
	return s
}

// die breaks its connections.
func (s *sender) die() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, conn := range s.conns {
		_ = conn.Close()
	}
}

// shipment is a prompt on its way.
type shipment struct {
	*kvtransfer.Transfer
	blocks []kvcache.BlockID
	held   int
	first  int32
}

// open computes a prompt and opens the transfer of its KV.
func (s *sender) open(ticket *kvtransferv1.Ticket, tokens []uint32) *shipment {
	s.t.Helper()
	h, err := s.tryOpen(context.Background(), ticket, tokens)
	if err != nil {
		s.t.Fatalf("open: %v", err)
	}
	return h
}

func (s *sender) tryOpen(ctx context.Context, ticket *kvtransferv1.Ticket, tokens []uint32) (*shipment, error) {
	s.t.Helper()
	s.mu.Lock()
	n := blocksOf(len(tokens))
	first := s.next
	if s.next += n; s.next > 4000 {
		s.t.Fatal("the sender's blocks are used up")
	}
	drawn := compute(s.t, s.engine, tokens, first)
	s.mu.Unlock()
	transfer, err := s.Open(ctx, ticket, "r")
	if err != nil {
		return nil, err
	}
	return &shipment{Transfer: transfer, blocks: kvcache.BlockRange(first, n), held: int(ticket.GetHeldBlocks()), first: drawn}, nil
}

// sendLayers offers every block that is not held, of the first n layers.
func (h *shipment) sendLayers(n int) {
	for layer := range n {
		if h.held < len(h.blocks) {
			h.Send(layer, h.held, h.blocks[h.held:])
		}
	}
}

// ship does all of it.
func (s *sender) ship(ticket *kvtransferv1.Ticket, tokens []uint32) *shipment {
	s.t.Helper()
	h := s.open(ticket, tokens)
	h.sendLayers(layers)
	h.Commit([]int32{h.first})
	return h
}
