package kvtransfer_test

import (
	"context"
	"log/slog"
	"math"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/offload"
	"github.com/tandem-serving/tandem/pkg/rpc"
	store "github.com/tandem-serving/tandem/services/kvtransfer"
)

func offerOf(l kvcache.Layout, tokens ...uint32) *kvtransferv1.OfferRequest {
	return &kvtransferv1.OfferRequest{
		StoreEpoch: 77, Layout: l.Proto(), Prefix: &kvtransferv1.Prefix{LayoutDigest: l.Digest(), TokenIds: tokens},
	}
}

func TestOffersThatMakeNoSense(t *testing.T) {
	n := &network{kind: "tcp"}
	s := startStore(t, n, config(), 77)
	offers, _ := s.raw(n)
	for _, c := range []struct {
		name   string
		change func(*kvtransferv1.OfferRequest)
		field  string // "" is another code
		code   codes.Code
	}{
		{"another epoch", func(r *kvtransferv1.OfferRequest) { r.StoreEpoch++ }, "", codes.FailedPrecondition},
		{"no prefix", func(r *kvtransferv1.OfferRequest) { r.Prefix = nil }, "prefix.token_ids", codes.InvalidArgument},
		{"no tokens", func(r *kvtransferv1.OfferRequest) { r.Prefix.TokenIds = nil }, "prefix.token_ids", codes.InvalidArgument},
		{"no token", func(r *kvtransferv1.OfferRequest) { r.Prefix.TokenIds[0] = 1 << 31 }, "prefix.token_ids", codes.InvalidArgument},
		{"a long salt", func(r *kvtransferv1.OfferRequest) { r.Prefix.Salt = string(make([]byte, 1025)) }, "prefix.salt", codes.InvalidArgument},
		{"no layout", func(r *kvtransferv1.OfferRequest) { r.Layout = nil }, "layout", codes.InvalidArgument},
		{"no layers", func(r *kvtransferv1.OfferRequest) { r.Layout.Layers = 0 }, "layout", codes.InvalidArgument},
		{"too many layers", func(r *kvtransferv1.OfferRequest) { r.Layout.Layers = 1 << 30 }, "layout", codes.InvalidArgument},
		{"huge slices", func(r *kvtransferv1.OfferRequest) { r.Layout.SliceBytes = 1<<24 + 1 }, "layout", codes.InvalidArgument},
		{"a long name", func(r *kvtransferv1.OfferRequest) { r.Layout.ModelDigest = string(make([]byte, 257)) }, "layout", codes.InvalidArgument},
		{"another digest", func(r *kvtransferv1.OfferRequest) { r.Prefix.LayoutDigest++ }, "prefix.layout_digest", codes.InvalidArgument},
		{"half a block", func(r *kvtransferv1.OfferRequest) {
			l := layout()
			l.BlockTokens = 2
			proto.Merge(r, &kvtransferv1.OfferRequest{Layout: l.Proto(), Prefix: &kvtransferv1.Prefix{LayoutDigest: l.Digest(), TokenIds: []uint32{3}}})
		}, "prefix.token_ids", codes.InvalidArgument},
		{"more than there is", func(r *kvtransferv1.OfferRequest) {
			r.Prefix.TokenIds = make([]uint32, storeBlocks+1)
		}, "", codes.ResourceExhausted},
	} {
		request := offerOf(layout(), 1, 2)
		c.change(request)
		_, err := offers.Offer(t.Context(), request)
		if status.Code(err) != c.code || rpc.Field(err) != c.field {
			t.Errorf("%s: %v, want %v for %q", c.name, err, c.code, c.field)
		}
	}
	s.awaitIdle()
}

func TestFetchesThatMakeNoSense(t *testing.T) {
	n := &network{kind: "tcp"}
	s, w := startStore(t, n, config(), 77), startWorker(t, n, "prefill-1", layout())
	if _, err := s.put(w, offload.Prefix{Tokens: []int32{1, 2}}, 0); err != nil {
		t.Fatal(err)
	}
	client, _ := s.raw(n)
	digest := layout().Digest()
	for _, c := range []struct {
		name   string
		change func(*kvtransferv1.FetchRequest)
		field  string
		code   codes.Code
	}{
		{"another epoch", func(r *kvtransferv1.FetchRequest) { r.StoreEpoch++ }, "", codes.FailedPrecondition},
		{"no tokens", func(r *kvtransferv1.FetchRequest) { r.Prefix.TokenIds = nil }, "prefix.token_ids", codes.InvalidArgument},
		{"no ticket", func(r *kvtransferv1.FetchRequest) { r.Ticket = nil }, "ticket", codes.InvalidArgument},
		{"no address", func(r *kvtransferv1.FetchRequest) { r.Ticket.Addresses = nil }, "ticket.addresses", codes.InvalidArgument},
		{"another layout's ticket", func(r *kvtransferv1.FetchRequest) { r.Ticket.LayoutDigest++ }, "ticket.layout_digest", codes.InvalidArgument},
		{"more held than there is", func(r *kvtransferv1.FetchRequest) { r.Ticket.HeldBlocks = 3 }, "ticket.held_blocks", codes.InvalidArgument},
		{"a ticket for more", func(r *kvtransferv1.FetchRequest) { r.Ticket.Blocks = 3 }, "ticket.blocks", codes.InvalidArgument},
		{"another layout", func(r *kvtransferv1.FetchRequest) { r.Prefix.LayoutDigest++; r.Ticket.LayoutDigest++ }, "", codes.FailedPrecondition},
		{"not held", func(r *kvtransferv1.FetchRequest) { r.Prefix.TokenIds[1] = 9 }, "", codes.NotFound},
		{"nobody there", func(r *kvtransferv1.FetchRequest) { r.Ticket.Addresses[0] = "127.0.0.1:1" }, "", codes.Unavailable},
		{"no lease", func(r *kvtransferv1.FetchRequest) { r.Ticket.Lease = nil }, "", codes.Unavailable},
	} {
		request := &kvtransferv1.FetchRequest{
			StoreEpoch: 77, Prefix: &kvtransferv1.Prefix{LayoutDigest: digest, TokenIds: []uint32{1, 2}},
			Ticket: &kvtransferv1.Ticket{
				TransferId: 5, Epoch: 5, Secret: 5, Addresses: []string{"127.0.0.1:1"}, LayoutDigest: digest, Blocks: 2, Receiver: "prefill-9",
			},
		}
		c.change(request)
		_, err := client.Fetch(t.Context(), request)
		if status.Code(err) != c.code || rpc.Field(err) != c.field {
			t.Errorf("%s: %v, want %v for %q", c.name, err, c.code, c.field)
		}
	}
	s.awaitIdle()
}

// A count that no prefix can have does not get into a metric either.
func TestTicketOfMoreBlocksThanTokens(t *testing.T) {
	n := &network{kind: "tcp"}
	s := startStore(t, n, config(), 77)
	client, _ := s.raw(n)
	for blocks, want := range map[uint32]codes.Code{2: codes.NotFound, 3: codes.InvalidArgument, math.MaxUint32: codes.InvalidArgument} {
		_, err := client.Fetch(t.Context(), &kvtransferv1.FetchRequest{
			StoreEpoch: 77, Prefix: &kvtransferv1.Prefix{LayoutDigest: 1, TokenIds: []uint32{1, 2}},
			Ticket: &kvtransferv1.Ticket{Addresses: []string{"127.0.0.1:1"}, LayoutDigest: 1, Blocks: blocks},
		})
		if status.Code(err) != want || (want == codes.InvalidArgument && rpc.Field(err) != "ticket.blocks") {
			t.Errorf("%d blocks of two tokens: %v, want %v", blocks, err, want)
		}
	}
}

// unreached is a store that no network leads to, and that does not answer slowly.
func unreached(t testing.TB) *store.Service {
	t.Helper()
	service, err := store.New(config(), store.Deps{
		Identity: membership.Identity{ID: "store-1", Epoch: 77, Role: controlv1.Role_ROLE_KVTRANSFER, Addresses: []string{"127.0.0.1:1"}},
		Exchange: kvtransfer.Exchange{Dial: func(string) (*grpc.ClientConn, error) { return nil, errNoNetwork }}, Signals: &signals{known: map[uint64]bool{}},
		Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- service.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return service
}

var errNoNetwork = status.Error(codes.Unavailable, "there is no network")

// Whatever comes is answered, and what is held stays consistent.
func FuzzRequests(f *testing.F) {
	add := func(m proto.Message, fetch bool) {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, fetch)
	}
	l := layout()
	add(offerOf(l, 1, 2, 3), false)
	add(offerOf(l), false)
	add(&kvtransferv1.FetchRequest{
		StoreEpoch: 77, Prefix: &kvtransferv1.Prefix{LayoutDigest: l.Digest(), TokenIds: []uint32{1}},
		Ticket: &kvtransferv1.Ticket{Addresses: []string{"127.0.0.1:1"}, LayoutDigest: l.Digest(), Blocks: 1},
	}, true)
	service := unreached(f)
	f.Fuzz(func(t *testing.T, request []byte, fetch bool) {
		var err error
		if fetch {
			m := new(kvtransferv1.FetchRequest)
			if proto.Unmarshal(request, m) != nil {
				t.Skip("no message")
			}
			m.StoreEpoch = 77 // else nothing is looked at
			err = service.Fetch(t.Context(), m)
		} else {
			m := new(kvtransferv1.OfferRequest)
			if proto.Unmarshal(request, m) != nil {
				t.Skip("no message")
			}
			m.StoreEpoch = 77
			err = service.Offer(t.Context(), m)
		}
		if code := status.Code(err); code == codes.Unknown || code == codes.Internal {
			t.Errorf("%v", err)
		}
		service.CheckMisuses(t)
	})
}

// A store that cannot receive says so: one that called itself full would be asked again
// and again, and nobody would look for what is wrong.
func TestStoreThatCannotReceiveIsNotFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		said := &signals{known: map[uint64]bool{}, began: make(chan struct{})}
		service, err := store.New(config(), store.Deps{
			Identity: membership.Identity{ID: "store-1", Epoch: 77, Role: controlv1.Role_ROLE_KVTRANSFER}, // no address for tickets
			Signals:  said, Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ran := make(chan error, 1)
		go func() { ran <- service.Run(ctx) }()
		<-said.began
		err = service.Offer(t.Context(), offerOf(layout(), 1, 2))
		if status.Code(err) != codes.Internal || rpc.Reason(err) != "" || !strings.Contains(err.Error(), "addresses: give at least one") {
			t.Errorf("%v (reason %q)", err, rpc.Reason(err))
		}
		cancel()
		if err := <-ran; err != nil {
			t.Error(err)
		}
	})
}
