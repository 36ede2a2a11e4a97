// Package storeclient puts blocks into KV block stores and fetches them.
//
// Workers import it. The stores are services/kvtransfer, explained in docs/kv-store.md. A
// [Client] starts no goroutine. connections.mu guards its table of connections and is not
// held across calls.
package storeclient

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	"github.com/tandem-serving/tandem/pkg/offload"
	"github.com/tandem-serving/tandem/pkg/rpc"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

const (
	// CallTimeout bounds a Put or Fetch whose context has no deadline.
	CallTimeout = 30 * time.Second
	// OfferTimeout is how long a store may take to answer an offer.
	OfferTimeout = 2 * time.Second
	// maxPeers bounds the stores a client is connected to.
	maxPeers = 64
)

// ClientConfig configures a Client. All fields but Check are required.
type ClientConfig struct {
	// Dial returns a new connection to a store's address, "host:port" or "unix:///path",
	// without waiting for it to be established. It should enable keep-alives. The Client
	// closes the connection.
	Dial func(address string) (*grpc.ClientConn, error)
	// Sender sends the blocks put, from this worker's pages.
	Sender *kvtransfer.Sender
	// Receiver receives the blocks fetched, into the same pages. It must be served at the
	// addresses in its tickets.
	Receiver *kvtransfer.Receiver
	// Layout describes the pages.
	Layout kvcache.Layout
	// Check, if set, reads the blocks of a put that the store lacks before any is sent, and those
	// that a fetch brought. An error of it, or of ctx if that ends first, ends the call: ErrNotFinite,
	// or a *CheckError of any other.
	Check func(ctx context.Context, blocks []kvcache.BlockID) error
}

// Validate reports the first invalid field.
func (c ClientConfig) Validate() error {
	switch {
	case c.Dial == nil || c.Sender == nil || c.Receiver == nil:
		return errors.New("store client: dial, sender and receiver must be set")
	case c.Layout.BlockTokens <= 0 || c.Layout.Layers <= 0:
		return fmt.Errorf("store client: a layout of %d layers in blocks of %d tokens: both must be above 0", c.Layout.Layers, c.Layout.BlockTokens)
	}
	return nil
}

// Client puts blocks into stores and fetches them. Its methods are safe for concurrent use.
type Client struct {
	cfg    ClientConfig
	layout *kvtransferv1.Layout
	digest uint64
	conns  *connections
}

// NewClient returns a client. It starts nothing. Close closes its connections.
func NewClient(cfg ClientConfig) (*Client, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Client{
		cfg: cfg, layout: cfg.Layout.Proto(), digest: cfg.Layout.Digest(),
		conns: &connections{dial: cfg.Dial, peers: make(map[string]*peerConns)},
	}, nil
}

// Close closes the connections. Running calls fail; the Sender and Receiver end their
// transfers.
func (c *Client) Close() { c.conns.close() }

// Put sends the blocks of a prefix that the store lacks. blocks are local pages, one for
// each block of tokens, which must be complete and not change until Put returns. It returns
// once none of them is read any more, even if the store hangs: then at the end of ctx.
// bytes is the payload sent.
//
// Errors: ErrHeld, ErrArriving, *BusyError, *LayoutError, ErrRestarted, ErrNotFinite, *CheckError,
// those of Sender.Open and Transfer.Err, or that of ctx. They concern only this put.
func (c *Client) Put(ctx context.Context, to offload.Store, prefix offload.Prefix, blocks []kvcache.BlockID) (bytes uint64, err error) {
	if err := c.check(prefix, len(blocks), 0); err != nil {
		return 0, fmt.Errorf("put kv blocks: %w", err)
	}
	began := time.Now()
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
	held := int(ticket.GetHeldBlocks())
	opened := time.Now()
	if err := c.checked(ctx, blocks[held:]); err != nil {
		transfer.Abort(kvtransferv1.AbortReason_ABORT_REASON_CANCELLED)
		<-transfer.Released()
		return 0, fmt.Errorf("put kv blocks: %w", err)
	}
	checked := time.Since(opened)
	err = transfer.SendAll(ctx, c.cfg.Layout.Layers, held, blocks)
	if took := time.Since(began); errors.Is(err, context.DeadlineExceeded) && checked > took/2 {
		err = &CheckError{fmt.Errorf("%w: it took %v of %v", err, checked, took)}
	}
	if err != nil {
		return 0, fmt.Errorf("put kv blocks: %w", err)
	}
	return transfer.Stats().Bytes, nil
}

// Fetch gets the blocks of a prefix from the store. blocks are local pages, one for each
// block of tokens; the first held of them already hold their KV. The others are written
// only until Fetch returns. For that it waits until the receiver is done with them, which a
// vanished store can delay by two of the receiver's leases beyond ctx. bytes is the payload
// received. After an error the blocks not held contain nothing usable.
//
// Errors: *MissingError, *BusyError, *LayoutError, ErrRestarted, ErrNotFinite, *CheckError, those of
// Receiver.Reserve, the transfer's, or that of ctx. They concern only this fetch.
func (c *Client) Fetch(ctx context.Context, from offload.Store, prefix offload.Prefix, blocks []kvcache.BlockID, held int) (bytes uint64, err error) {
	if err := c.check(prefix, len(blocks), held); err != nil {
		return 0, fmt.Errorf("fetch kv blocks: %w", err)
	}
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	calling, hangUp := context.WithCancel(ctx)
	defer hangUp()
	ended := newEnd(hangUp)
	ticket, err := c.cfg.Receiver.Reserve(ended.reservation(rpc.RequestID(ctx), from.ID, blocks, held))
	if err != nil {
		return 0, fmt.Errorf("fetch kv blocks: %w", err)
	}
	request := &kvtransferv1.FetchRequest{StoreEpoch: from.Epoch, Prefix: c.prefix(prefix), Ticket: ticket}
	callErr := c.conns.call(calling, from, func(client kvtransferv1.BlockStoreClient) error {
		_, err := client.Fetch(calling, request)
		return err
	})
	if callErr == nil {
		select { // the callback follows the store's answer
		case <-ended.over:
		case <-ctx.Done():
		}
	}
	c.cfg.Receiver.Cancel(ticket.GetTransferId()) // no effect once it is over
	<-ended.over
	switch {
	case ended.committed:
		if err := c.checked(ctx, blocks[held:]); err != nil {
			return ended.bytes, fmt.Errorf("fetch kv blocks: %w", err)
		}
		return ended.bytes, nil
	case ended.err != nil && (callErr == nil || status.Code(callErr) == codes.Canceled && ctx.Err() == nil):
		return 0, fmt.Errorf("fetch kv blocks: %w", ended.err)
	case ctx.Err() != nil:
		return 0, fmt.Errorf("fetch kv blocks: %w", context.Cause(ctx))
	default:
		return 0, fmt.Errorf("fetch kv blocks: %w", CallError(callErr))
	}
}

// checked is ClientConfig.Check.
func (c *Client) checked(ctx context.Context, blocks []kvcache.BlockID) error {
	if c.cfg.Check == nil {
		return nil
	}
	err := c.cfg.Check(ctx, blocks)
	if err != nil && !errors.Is(err, ErrNotFinite) {
		err = &CheckError{err}
	}
	return err
}

// offer requests a ticket.
func (c *Client) offer(ctx context.Context, to offload.Store, prefix offload.Prefix) (*kvtransferv1.Ticket, error) {
	asking, cancel := context.WithTimeout(ctx, OfferTimeout)
	defer cancel()
	request := &kvtransferv1.OfferRequest{StoreEpoch: to.Epoch, Prefix: c.prefix(prefix), Layout: c.layout, Sender: c.cfg.Sender.WorkerID()}
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
		return nil, CallError(err)
	}
	return ticket, nil
}

func (c *Client) prefix(prefix offload.Prefix) *kvtransferv1.Prefix {
	ids := make([]uint32, len(prefix.Tokens))
	for i, token := range prefix.Tokens {
		ids[i] = uint32(token)
	}
	return &kvtransferv1.Prefix{LayoutDigest: c.digest, Salt: prefix.Salt, TokenIds: ids}
}

func (c *Client) check(prefix offload.Prefix, blocks, held int) error {
	if blocks == 0 || len(prefix.Tokens) != blocks*c.cfg.Layout.BlockTokens || held < 0 || held > blocks {
		return fmt.Errorf("%d tokens do not match %d blocks of %d tokens, %d of them held", len(prefix.Tokens), blocks, c.cfg.Layout.BlockTokens, held)
	}
	return nil
}

// bounded adds the default timeout to a context without a deadline.
func (c *Client) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, has := ctx.Deadline(); has {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, CallTimeout)
}

// end is the outcome of a fetch's reservation. Its fields are written before over is closed
// and read afterwards.
type end struct {
	over      chan struct{}
	hangUp    func()
	committed bool
	bytes     uint64
	err       error
}

func newEnd(hangUp func()) *end { return &end{over: make(chan struct{}), hangUp: hangUp} }

func (e *end) reservation(requestID, sender string, blocks []kvcache.BlockID, held int) kvtransfer.Reservation {
	return kvtransfer.Reservation{
		RequestID: requestID, Sender: sender, Blocks: blocks, HeldBlocks: held, PromptBlocks: len(blocks),
		Committed: func(a kvtransfer.Arrival) {
			e.committed, e.bytes = true, a.Bytes
			close(e.over)
		},
		Failed: func(err error) {
			e.err = err
			e.hangUp() // the store need not continue
		},
		Drained: func() { close(e.over) },
	}
}
