package kvtransfer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/tandem-serving/tandem/pkg/identity"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/receiver"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/sender"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/wire"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// maxAddresses bounds how many of a ticket's addresses are tried.
const maxAddresses = 8

var (
	// errConnectTimeout is the cause of an address given up on.
	errConnectTimeout = errors.New("no answer before the timeout")
	// errSibling is the cause of a stripe given up because another one failed.
	errSibling = errors.New("another stripe could not be joined")
)

// link is a stream after its ReceiverHello, with its connection.
type link struct {
	conn   *grpc.ClientConn
	stream kvtransferv1.KVTransfer_StreamClient
	hello  *kvtransferv1.ReceiverHello
	cancel context.CancelCauseFunc
}

func (l *link) close() {
	l.cancel(context.Canceled)
	_ = l.conn.Close() // the stream is over: nobody to report to
}

// dial tries the addresses in order until the right receiver answers on all stripes. If all
// fail, a refusal is reported in preference to an unreachable address.
func (c *connection) dial() (address string, _ []*link, _ error) {
	var failures []error
	for _, address := range c.addresses {
		links, err := c.joinAll(address)
		if err == nil {
			return address, links, nil
		}
		failures = append(failures, fmt.Errorf("%s: %w", address, err))
	}
	err := errors.Join(failures...)
	if refused, is := errors.AsType[*RefusedError](err); is {
		return "", nil, refused
	}
	return "", nil, &BrokenError{Peer: c.peer.receiver, Err: err}
}

// joinAll opens all streams of a session to one address, or none.
func (c *connection) joinAll(address string) ([]*link, error) {
	number := draw()
	links, errs := make([]*link, len(c.stripes)), make([]error, len(c.stripes))
	ctx, cancel := context.WithCancelCause(c.ctx)
	defer cancel(nil)
	var joins sync.WaitGroup
	for i := range links {
		joins.Go(func() {
			if links[i], errs[i] = c.join(ctx, address, number, i); errs[i] != nil {
				cancel(errSibling)
			}
		})
	}
	joins.Wait()
	err := firstCause(errs)
	if err == nil {
		return links, nil
	}
	closeLinks(links)
	return nil, err
}

// closeLinks closes links, of which some may be nil.
func closeLinks(links []*link) {
	for _, l := range links {
		if l != nil {
			l.close()
		}
	}
}

// firstCause returns the first refusal, or else the first error that is not errSibling, if there
// is one. When one stripe is refused, the receiver may end another before that is given up.
func firstCause(errs []error) error {
	for _, err := range errs {
		if _, is := errors.AsType[*RefusedError](err); is {
			return err
		}
	}
	for _, err := range errs {
		if err != nil && !errors.Is(err, errSibling) {
			return err
		}
	}
	return nil
}

// join connects to one address and exchanges hellos as one stripe. joining bounds only
// that.
func (c *connection) join(joining context.Context, address string, number uint64, stripe int) (_ *link, err error) {
	conn, err := c.sender.cfg.Dial(address)
	if err != nil {
		return nil, fmt.Errorf("dial: %w", err)
	}
	ctx, cancel := context.WithCancelCause(c.ctx)
	l := &link{conn: conn, cancel: cancel}
	timer := time.AfterFunc(c.sender.cfg.ConnectTimeout, func() { cancel(errConnectTimeout) })
	detach := context.AfterFunc(joining, func() { cancel(context.Cause(joining)) })
	defer func() {
		if !timer.Stop() && err == nil {
			err = errConnectTimeout
		}
		if !detach() && err == nil {
			err = context.Cause(joining)
		}
		if err != nil {
			if cause := context.Cause(ctx); cause != nil {
				err = cause
			}
			l.close()
		}
	}()
	if l.stream, err = kvtransferv1.NewKVTransferClient(conn).Stream(ctx, grpc.ForceCodecV2(encodedCodec{wire.Codec()})); err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	// Recv reports what goes wrong with Send.
	_ = l.stream.Send(&kvtransferv1.SenderMessage{Message: &kvtransferv1.SenderMessage_Hello{Hello: &kvtransferv1.SenderHello{
		Sender:       c.sender.cfg.WorkerID,
		Epoch:        c.sender.cfg.Epoch,
		Version:      receiver.ProtocolVersion,
		LayoutDigest: c.sender.layoutDigest,
		Session:      number,
		Stripe:       uint32(stripe),
		Stripes:      uint32(len(c.stripes)),
	}}})
	m, err := l.stream.Recv()
	if err != nil {
		return nil, fmt.Errorf("say hello: %w", err)
	}
	l.hello = m.GetHello()
	if err := c.checkHello(l.hello); err != nil {
		return nil, err
	}
	if who, known := identity.FromContext(l.stream.Context()); known && !who.Names(c.peer.receiver) {
		return nil, fmt.Errorf("%q answered, but its certificate is that of %s", c.peer.receiver, who)
	}
	return l, nil
}

func (c *connection) checkHello(h *kvtransferv1.ReceiverHello) error {
	slice := uint64(c.sender.cfg.Layout.SliceBytes)
	switch {
	case h == nil:
		return errors.New("the receiver sent no ReceiverHello")
	case h.GetVersion() != receiver.ProtocolVersion:
		return fmt.Errorf("the receiver asks for protocol version %d, but this side speaks version %d", h.GetVersion(), receiver.ProtocolVersion)
	case h.GetEpoch() != c.peer.epoch || h.GetReceiver() != c.peer.receiver:
		return &RefusedError{
			Reason: kvtransferv1.RefuseReason_REFUSE_REASON_WRONG_EPOCH,
			Detail: fmt.Sprintf("%q answered, but another start of it than the ticket's %q", h.GetReceiver(), c.peer.receiver),
		}
	case h.GetLayoutDigest() != c.sender.layoutDigest:
		return &RefusedError{
			Reason: kvtransferv1.RefuseReason_REFUSE_REASON_LAYOUT,
			Detail: fmt.Sprintf("layout digest is %#x here, but %#x at the receiver", c.sender.layoutDigest, h.GetLayoutDigest()),
		}
	case uint64(h.GetMaxChunkBytes()) < slice || h.GetMaxChunkBytes() > largestChunkBytes:
		return fmt.Errorf("the receiver takes chunks of %d bytes, but a slice has %d", h.GetMaxChunkBytes(), slice)
	case h.GetCreditBytes() < uint64(h.GetMaxChunkBytes()) || h.GetCreditBytes() > largestCreditBytes:
		return fmt.Errorf("the receiver gives %d bytes of credit for chunks of %d bytes: credit or chunk size is out of range", h.GetCreditBytes(), h.GetMaxChunkBytes())
	}
	return nil
}

func (c *connection) coreConfig(links []*link) sender.Config {
	cfg := sender.Config{
		LayoutDigest:  c.sender.layoutDigest,
		Layers:        c.sender.cfg.Layout.Layers,
		SliceBytes:    c.sender.cfg.Layout.SliceBytes,
		MaxChunkBytes: int(links[0].hello.GetMaxChunkBytes()),
		AnswerTimeout: c.sender.cfg.AnswerTimeout,
		IdleTimeout:   c.sender.cfg.IdleTimeout,
	}
	for _, l := range links {
		cfg.CreditBytes = append(cfg.CreditBytes, int(l.hello.GetCreditBytes()))
		cfg.MaxChunkBytes = min(cfg.MaxChunkBytes, int(l.hello.GetMaxChunkBytes()))
	}
	return cfg
}

// transportDevice is the transport of slices that are lent. With it, as with TransportShm, messages
// still use a connection.
const transportDevice = "device"

// transportOf returns the transport of a ticket's address.
func transportOf(address string) string {
	if strings.HasPrefix(address, "unix:") {
		return TransportUnix
	}
	return TransportTCP
}
