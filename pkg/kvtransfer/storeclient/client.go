// Package storeclient puts blocks into KV block stores and fetches them.
//
// Workers import it: the stores are services/kvtransfer, and docs/kv-store.md explains
// them. A [Client] starts no goroutine; connections.mu guards its table of connections
// and is held across no call.
package storeclient

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	"github.com/tandem-serving/tandem/pkg/rpc"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// What a zero field of a ClientConfig stands for.
const (
	// DefaultCallTimeout bounds a Put or Fetch whose context has no deadline.
	DefaultCallTimeout = 30 * time.Second
	// DefaultOfferTimeout is how long a store may take to answer an offer.
	DefaultOfferTimeout = 2 * time.Second
	// DefaultMaxPeers bounds the stores that a client keeps connections to.
	DefaultMaxPeers = 64
)

// ClientConfig configures a Client. Dial, Sender, Receiver and Layout have to be
// set.
type ClientConfig struct {
	// Dial makes a connection to an address of a store, "host:port" or
	// "unix:///path"; the Client closes it. It does not wait for the connection, and
	// should ask for keep-alives.
	Dial func(address string) (*grpc.ClientConn, error)
	// Sender sends what is put, out of this worker's pages.
	Sender *kvtransfer.Sender
	// Receiver takes what is fetched, into the same pages. It must be served at the
	// addresses that it puts into its tickets.
	Receiver *kvtransfer.Receiver
	// Layout describes the pages.
	Layout kvcache.Layout
	// CallTimeout bounds a Put or Fetch whose context has no deadline. 0 is
	// DefaultCallTimeout.
	CallTimeout time.Duration
	// OfferTimeout is how long a store may take to answer an offer. 0 is
	// DefaultOfferTimeout.
	OfferTimeout time.Duration
	// MaxPeers bounds the stores with connections. 0 is DefaultMaxPeers.
	MaxPeers int
}

// Validate says what is wrong, zero fields being their defaults.
func (c ClientConfig) Validate() error {
	switch {
	case c.Dial == nil || c.Sender == nil || c.Receiver == nil:
		return errors.New("store client: dial, sender and receiver must be set")
	case c.Layout.BlockTokens <= 0 || c.Layout.Layers <= 0:
		return fmt.Errorf("store client: a layout of %d layers in blocks of %d tokens: both must be above 0", c.Layout.Layers, c.Layout.BlockTokens)
	case c.CallTimeout < 0 || c.OfferTimeout < 0 || c.MaxPeers < 0:
		return errors.New("store client: timeouts and max peers must not be negative")
	}
	return nil
}

// Peer is one incarnation of a store.
type Peer struct {
	// ID is the store's worker id.
	ID string
	// Epoch is its incarnation epoch. Another one refuses.
	Epoch uint64
	// Addresses are where it listens, best first.
	Addresses []string
	// LayoutDigest is of the layout whose blocks it holds. 0: none, or not known.
	LayoutDigest uint64
}

// Prefix names blocks by what they hold, from the first one on.
type Prefix struct {
	// Salt is that under which they are shared.
	Salt string
	// Tokens are those of whole blocks.
	Tokens []int32
}

// Client puts blocks into stores and fetches them. All its methods are safe for
// concurrent use.
type Client struct {
	cfg    ClientConfig
	layout *kvtransferv1.Layout
	digest uint64
	conns  *connections
}

// NewClient is a client that starts nothing; Close closes what it connected.
func NewClient(cfg ClientConfig) (*Client, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.CallTimeout = cmp.Or(cfg.CallTimeout, DefaultCallTimeout)
	cfg.OfferTimeout = cmp.Or(cfg.OfferTimeout, DefaultOfferTimeout)
	cfg.MaxPeers = cmp.Or(cfg.MaxPeers, DefaultMaxPeers)
	return &Client{
		cfg: cfg, layout: cfg.Layout.Proto(), digest: cfg.Layout.Digest(),
		conns: &connections{dial: cfg.Dial, max: cfg.MaxPeers, peers: make(map[string]*peerConns)},
	}, nil
}

// Close closes the connections. Calls that run fail; their transfers end as the
// Sender and the Receiver end theirs.
func (c *Client) Close() { c.conns.close() }

// Put gives the store the blocks of a prefix: blocks are their pages here, one
// for each block of tokens, complete and unchanged until Put returns, which it
// does only when none of them is read any more; a store that stands still does not
// keep it beyond ctx. bytes is the payload that went
// out: blocks that the store has are not sent.
//
// Its errors are ErrHeld, *BusyError, *LayoutError, ErrRestarted, what Sender.Open
// and Transfer.Err give, or that of ctx; none of them is trouble for anything but
// this put.
func (c *Client) Put(ctx context.Context, to Peer, prefix Prefix, blocks []kvcache.BlockID) (bytes uint64, err error) {
	if err := c.check(prefix, len(blocks), 0); err != nil {
		return 0, fmt.Errorf("put kv blocks: %w", err)
	}
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	ticket, err := c.offer(ctx, to, prefix)
	if err != nil {
		return 0, fmt.Errorf("put kv blocks: %w", err)
	}
	if got := ticket.GetBlocks(); int64(got) != int64(len(blocks)) || ticket.GetHeldBlocks() > got {
		return 0, fmt.Errorf("put kv blocks: the store's ticket is for %d blocks with %d held, but %d were offered", got, ticket.GetHeldBlocks(), len(blocks))
	}
	transfer, err := c.cfg.Sender.Open(ctx, ticket, rpc.RequestID(ctx))
	if err != nil {
		return 0, fmt.Errorf("put kv blocks: %w", err)
	}
	err = transfer.SendAll(ctx, c.cfg.Layout.Layers, int(ticket.GetHeldBlocks()), blocks)
	if err != nil {
		return 0, fmt.Errorf("put kv blocks: %w", err)
	}
	return transfer.Stats().Bytes, nil
}

// Fetch gets the blocks of a prefix from the store: blocks are their pages here,
// one for each block of tokens, of which the first held hold their KV already.
// The others are written until Fetch returns, and never after: it waits until the
// receiver is done with them, which a store that vanishes can delay by two of the
// receiver's leases beyond ctx. bytes is the payload that came in; without an
// error all blocks hold their KV, with one those that were not held hold nothing.
//
// Its errors are *MissingError, *BusyError, *LayoutError, ErrRestarted, what
// Receiver.Reserve gives, what ended the transfer, or that of ctx; none of them
// is trouble for anything but this fetch.
func (c *Client) Fetch(ctx context.Context, from Peer, prefix Prefix, blocks []kvcache.BlockID, held int) (bytes uint64, err error) {
	if err := c.check(prefix, len(blocks), held); err != nil {
		return 0, fmt.Errorf("fetch kv blocks: %w", err)
	}
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	calling, hangUp := context.WithCancel(ctx)
	defer hangUp()
	ended := newEnd(hangUp)
	ticket, err := c.cfg.Receiver.Reserve(ended.reservation(rpc.RequestID(ctx), blocks, held))
	if err != nil {
		return 0, fmt.Errorf("fetch kv blocks: %w", err)
	}
	request := &kvtransferv1.FetchRequest{StoreEpoch: from.Epoch, Prefix: c.prefix(prefix), Ticket: ticket}
	callErr := c.conns.call(calling, from, func(client kvtransferv1.BlockStoreClient) error {
		_, err := client.Fetch(calling, request)
		return err
	})
	if callErr == nil {
		select { // what the store heard is on its way to the callback
		case <-ended.over:
		case <-ctx.Done():
		}
	}
	c.cfg.Receiver.Cancel(ticket.GetTransferId()) // no effect once it is over
	<-ended.over
	switch {
	case ended.committed:
		return ended.bytes, nil
	case ended.err != nil && (callErr == nil || status.Code(callErr) == codes.Canceled && ctx.Err() == nil):
		return 0, fmt.Errorf("fetch kv blocks: %w", ended.err)
	case ctx.Err() != nil:
		return 0, fmt.Errorf("fetch kv blocks: %w", context.Cause(ctx))
	default:
		return 0, fmt.Errorf("fetch kv blocks: %w", callError(from, callErr))
	}
}

// offer asks for a ticket.
func (c *Client) offer(ctx context.Context, to Peer, prefix Prefix) (*kvtransferv1.Ticket, error) {
	asking, cancel := context.WithTimeout(ctx, c.cfg.OfferTimeout)
	defer cancel()
	request := &kvtransferv1.OfferRequest{StoreEpoch: to.Epoch, Prefix: c.prefix(prefix), Layout: c.layout}
	var ticket *kvtransferv1.Ticket
	err := c.conns.call(asking, to, func(client kvtransferv1.BlockStoreClient) error {
		response, err := client.Offer(asking, request)
		ticket = response.GetTicket()
		return err
	})
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, callError(to, err)
	}
	return ticket, nil
}

func (c *Client) prefix(prefix Prefix) *kvtransferv1.Prefix {
	ids := make([]uint32, len(prefix.Tokens))
	for i, token := range prefix.Tokens {
		ids[i] = uint32(token)
	}
	return &kvtransferv1.Prefix{LayoutDigest: c.digest, Salt: prefix.Salt, TokenIds: ids}
}

func (c *Client) check(prefix Prefix, blocks, held int) error {
	if blocks == 0 || len(prefix.Tokens) != blocks*c.cfg.Layout.BlockTokens || held < 0 || held > blocks {
		return fmt.Errorf("%d tokens do not match %d blocks of %d tokens, %d of them held", len(prefix.Tokens), blocks, c.cfg.Layout.BlockTokens, held)
	}
	return nil
}

// bounded gives a context a deadline if it has none.
func (c *Client) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, has := ctx.Deadline(); has {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, c.cfg.CallTimeout)
}

// end is how the reservation of a fetch ends. Its fields are set before over is
// closed, and read after.
type end struct {
	over      chan struct{}
	hangUp    func()
	committed bool
	bytes     uint64
	err       error
}

func newEnd(hangUp func()) *end { return &end{over: make(chan struct{}), hangUp: hangUp} }

func (e *end) reservation(requestID string, blocks []kvcache.BlockID, held int) kvtransfer.Reservation {
	return kvtransfer.Reservation{
		RequestID: requestID, Blocks: blocks, HeldBlocks: held, PromptBlocks: len(blocks),
		Committed: func(a kvtransfer.Arrival) {
			e.committed, e.bytes = true, a.Bytes
			close(e.over)
		},
		Failed: func(err error) {
			e.err = err
			e.hangUp() // the store need not go on
		},
		Drained: func() { close(e.over) },
	}
}
