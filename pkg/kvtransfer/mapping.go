package kvtransfer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/internal/sharedpages"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/wire"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// MapRequest asks for the pages of a receiver.
type MapRequest struct {
	// Address is where it answered. Socket and Key are from its hello, TransferID and Secret from
	// one of its tickets.
	Address, Socket         string
	Key, TransferID, Secret uint64
	// Layout of the pages.
	Layout kvcache.Layout
}

// MappedPages are the pages of a receiver in the memory of this process. Its methods are safe
// for concurrent use. Close comes when no View is in use any more.
type MappedPages interface {
	wire.Views
	// Open allows that blocks are written, Shut ends that. After an error of Open they may not
	// be, after one of Shut they may still be, until Close. An *os.SyscallError of Open means that
	// this process may not open them now, any other that they are not there.
	Open(blocks []kvcache.BlockID) error
	Shut(blocks []kvcache.BlockID) error
	// Close unmaps the pages and then tells the receiver.
	Close()
}

// MapPages asks the receiver for its pages over the socket, and maps them. It has to be on this
// host: to have answered on a Unix socket.
func MapPages(ctx context.Context, r MapRequest) (MappedPages, error) {
	if transportOf(r.Address) != TransportUnix {
		return nil, fmt.Errorf("it answered at %s, which need not be on this host", r.Address)
	}
	m, err := sharedpages.Dial(ctx, r.Socket, sharedpages.Request{Key: r.Key, Transfer: r.TransferID, Secret: r.Secret}, r.Layout)
	if err != nil {
		return nil, err
	}
	return m, nil
}

// How long a session whose pages could not be mapped, or opened, goes without, at first and at most.
const (
	minMapPause = time.Second
	maxMapPause = time.Minute
)

// mapFirst maps the pages of a new session's receiver, if both sides want that. The error is why
// not.
func (c *connection) mapFirst(hello *kvtransferv1.ReceiverHello) error {
	shared := hello.GetShared()
	switch {
	case c.sender.cfg.MapPages == nil:
		return errors.New("this side does not map pages")
	case shared == nil:
		return errors.New("the receiver does not share its pages")
	case shared.GetUnavailable() != "":
		return errors.New(shared.GetUnavailable())
	}
	var err error
	c.shared = shared
	if c.mapping, err = c.mapPages(c.ctx, c.ticket); err != nil {
		c.pauseMaps()
	}
	return err
}

// mapLater tries to map the pages for transfers to come, if they could not be mapped before for a
// reason that may have passed: the ticket was used or over, or a process that has just ended had
// them mapped. It does not wait for that.
func (c *connection) mapLater(ticket *kvtransferv1.Ticket) {
	if c.shared == nil || c.loop == nil {
		return
	}
	c.loop.Lock()
	defer c.loop.Unlock()
	if c.mapAgain.IsZero() || time.Now().Before(c.mapAgain) || c.loop.Core.Lost() {
		return
	}
	c.mapAgain = time.Time{}
	if c.mapping != nil {
		return // some could not be opened
	}
	c.maps.Go(func() {
		mapping, err := c.mapPages(c.ctx, ticket)
		if err == nil {
			c.sender.cfg.Logger.Info("kv session has mapped its receiver's pages", slog.String("receiver", c.peer.receiver))
		}
		c.loop.Lock()
		defer c.loop.Unlock()
		if c.mapping = mapping; err != nil {
			c.pauseMaps()
		}
	})
}

// spareMapping has the transfers to come not use the mapping for a while: too much of it is open for
// this process to open more.
func (c *connection) spareMapping() {
	c.loop.Lock()
	defer c.loop.Unlock()
	if c.mapAgain.IsZero() { // else it is so already
		c.pauseMaps()
	}
}

// useMapping ends the waits for a mapping of which pages could be opened: the next one is the shortest.
func (c *connection) useMapping() {
	c.loop.Lock()
	defer c.loop.Unlock()
	if c.mapAgain.IsZero() { // else others could not be opened meanwhile
		c.mapPause = 0
	}
}

// pauseMaps has the pages not be mapped for a while. Requires c.loop, once there is one.
func (c *connection) pauseMaps() {
	c.mapPause = min(max(2*c.mapPause, minMapPause), maxMapPause)
	c.mapAgain = time.Now().Add(c.mapPause)
}

// mapPages asks for the pages with a ticket.
func (c *connection) mapPages(ctx context.Context, ticket *kvtransferv1.Ticket) (MappedPages, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.sender.cfg.ConnectTimeout, errConnectTimeout)
	defer cancel()
	m, err := c.sender.cfg.MapPages(ctx, MapRequest{
		Address: c.address, Socket: c.shared.GetSocket(), Key: c.shared.GetKey(), TransferID: ticket.GetTransferId(), Secret: ticket.GetSecret(), Layout: c.sender.cfg.Layout,
	})
	if err != nil {
		return nil, fmt.Errorf("map the receiver's pages: %w", err)
	}
	return m, nil
}
