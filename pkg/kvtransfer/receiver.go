package kvtransfer

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"

	"github.com/tandem-serving/tandem/pkg/coreloop"
	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/receiver"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/wire"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// Receiver receives KV blocks. Its methods are safe for concurrent use.
type Receiver struct {
	cfg          ReceiverConfig
	layoutDigest uint64
	pages        engine.Pages
	lending      engine.Lending // the same pages; nil: loans are off
	coding       wire.Coding    // of cfg.Encoding; nil: native
	encodedBytes int            // bytes of one slice in cfg.Encoding
	sharing      *sharing       // nil: senders are not told of it

	loop *coreloop.Loop[*receiver.Core, receiver.Event, receiver.Action]

	// Guarded by loop.
	owners     map[uint64]*Reservation
	streams    map[receiver.StreamID]*inboundStream
	lastStream receiver.StreamID
	grace      <-chan struct{}       // set with the shutdown: ends the senders' time to acknowledge
	idle       func()                // set with grace: called when nothing is left to wait for
	spans      map[uint64]trace.Span // spans of traced open transfers, by id

	tasks sync.WaitGroup
}

// NewReceiver returns a receiver that writes to pages. It starts nothing: call Register and
// Run.
func NewReceiver(cfg ReceiverConfig, pages engine.Pages) (*Receiver, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("kv receiver: %w", err)
	}
	cfg = cfg.withDefaults()
	digest := cfg.Layout.Digest()
	if got := pages.Layout().Digest(); got != digest {
		return nil, fmt.Errorf("kv receiver: the engine's pages have layout digest %#x, but the configuration has %#x", got, digest)
	}
	coding, err := newCoding(cfg.Encoding, cfg.Layout)
	if err != nil {
		return nil, fmt.Errorf("kv receiver: %w", err)
	}
	encodedBytes := cfg.Layout.SliceBytes
	if coding != nil {
		encodedBytes = coding.EncodedBytes()
	}
	var lending engine.Lending
	if coding == nil && !cfg.NoLoans {
		lending = lendingOf(pages)
	}
	r := &Receiver{
		lending:      lending,
		cfg:          cfg,
		layoutDigest: digest,
		pages:        pages,
		coding:       coding,
		encodedBytes: encodedBytes,
		sharing:      newSharing(cfg, pages, coding == nil),
		owners:       map[uint64]*Reservation{},
		streams:      map[receiver.StreamID]*inboundStream{},
	}
	r.loop = coreloop.New(receiver.New(receiver.Config{
		WorkerID:        cfg.WorkerID,
		Epoch:           cfg.Epoch,
		LayoutDigest:    digest,
		Layers:          cfg.Layout.Layers,
		SliceBytes:      cfg.Layout.SliceBytes,
		Encoding:        cfg.Encoding,
		EncodedBytes:    encodedBytes,
		Lends:           lending != nil,
		Shares:          r.sharing.can(),
		Lease:           cfg.Lease,
		MaxIdle:         cfg.MaxIdle,
		HolderBlocks:    cfg.HolderBlocks,
		CreditBytes:     cfg.CreditBytes,
		MaxChunkBytes:   cfg.MaxChunkBytes,
		MaxReservations: cfg.MaxReservations,
		MaxStreams:      cfg.MaxStreams,
	}), r.apply)
	return r, nil
}

// Register adds the KVTransfer service to a gRPC server. The server must accept messages of
// MaxMessageBytes and should enable keep-alives, so that a sender's vanished host is
// noticed before the lease ends.
func (r *Receiver) Register(s grpc.ServiceRegistrar) {
	kvtransferv1.RegisterKVTransferServer(s, server{receiver: r})
}

// MaxMessageBytes is the largest gRPC message a sender may send.
func (r *Receiver) MaxMessageBytes() int {
	return wire.MaxMessageBytes(r.cfg.MaxChunkBytes, min(r.cfg.Layout.SliceBytes, r.encodedBytes))
}

// Run enforces leases until ctx ends; without it nothing expires. Then it fails every
// transfer with SHUTDOWN, waits ShutdownGrace for the senders to acknowledge, cuts the
// remaining streams, and returns nil once all copies and callbacks have ended. Call it
// once.
func (r *Receiver) Run(ctx context.Context) error {
	tick := func() { r.loop.Handle(receiver.Tick{}) }
	r.loop.Run(ctx.Done(), tick)
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.cfg.ShutdownGrace)
	defer cancel()
	left, idle := context.WithCancel(grace)
	defer idle()
	r.loop.Lock()
	r.grace, r.idle = grace.Done(), idle
	r.loop.Step(receiver.Shutdown{})
	r.loop.Unlock()

	r.loop.Run(left.Done(), tick)
	r.loop.Handle(receiver.CloseStreams{})
	r.detachAll()
	r.tasks.Wait()
	r.loop.Wait()

	r.loop.Lock()
	defer r.loop.Unlock()
	if !r.loop.Core.Idle() {
		return errors.New("kv receiver: reservations are left after its end")
	}
	return nil
}

// Stats returns a snapshot.
func (r *Receiver) Stats() ReceiverStats {
	r.loop.Lock()
	defer r.loop.Unlock()
	return r.loop.Core.Stats()
}

// received gives the core a message of a stream. It returns the write to do, or nil.
func (r *Receiver) received(ev receiver.Received) (write *receiver.Write) {
	r.loop.Lock()
	defer r.loop.Unlock()
	for _, a := range coreloop.Step(r.loop, (*receiver.Core).HandleReceived, ev) {
		switch a := a.(type) {
		case *receiver.Write:
			write = a
		case receiver.Send:
			if a.Message.GetAccept() != nil {
				r.traceOpen(ev.Message)
			}
		}
	}
	return write
}

// apply carries out the core's actions except a write, which received returns. Requires
// r.loop.
func (r *Receiver) apply(_ time.Time, actions []receiver.Action) {
	for _, a := range actions {
		switch a := a.(type) {
		case receiver.Send:
			if hello := a.Message.GetHello(); hello != nil {
				r.offer(r.streams[a.Stream], hello)
			}
			r.streams[a.Stream].push(a.Message)
		case *receiver.Grant:
			r.streams[a.Stream].grant(a.Bytes)
		case receiver.CloseStream:
			r.loop.After(func() { r.logCut(level(a.Cause), a.Stream, a.Detail) })
			r.shut(r.streams[a.Stream], a.Cause, a.Detail)
		case receiver.Committed:
			r.traceEnd(a.ID, a.Bytes, nil)
			res := r.owner(a.ID, true)
			r.loop.After(func() {
				res.Committed(Arrival{Sender: a.Sender, Sampled: a.Sampled, Bytes: a.Bytes, Approximate: a.Approximate})
			})
		case receiver.Failed:
			r.fail(a.ID, &FailedError{Reason: a.Reason, Detail: a.Detail})
		case receiver.Aborted:
			r.fail(a.ID, &AbortedError{Reason: a.Reason})
		case receiver.Broken:
			r.fail(a.ID, &BrokenError{Err: errors.New("the sender's stream ended")})
		case receiver.Drained:
			r.traceEnd(a.ID, 0, errCancelled)
			r.loop.After(r.owner(a.ID, true).Drained)
		}
	}
	if r.grace != nil && r.loop.Core.Idle() {
		r.idle()
	}
}

func (r *Receiver) fail(id uint64, err error) {
	r.traceEnd(id, 0, err)
	res := r.owner(id, false)
	r.loop.After(func() {
		r.cfg.Logger.Info("kv transfer ended without commit", slog.String("request_id", res.RequestID), slog.Any("error", err))
		res.Failed(err)
	})
}

// logCut must be called without r.loop: logging may be slow, and any client can cause these
// lines.
func (r *Receiver) logCut(level slog.Level, stream receiver.StreamID, detail string) {
	r.cfg.Logger.Log(context.Background(), level, "kv stream broke off", slog.Uint64("stream", uint64(stream)), slog.String("detail", detail))
}

// level is the log level for the end of a stream.
func level(cause receiver.Cause) slog.Level {
	if cause == receiver.Closing {
		return slog.LevelInfo
	}
	return slog.LevelWarn
}

// drawID returns a random id for a transfer. Random ids keep bit flips in transit from
// naming another transfer. Requires r.loop.
func (r *Receiver) drawID() (id uint64) {
	for id == 0 || r.owners[id] != nil {
		id = draw()
	}
	return id
}

func draw() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.LittleEndian.Uint64(b[:])
}
