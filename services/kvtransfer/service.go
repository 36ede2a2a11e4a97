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

	"github.com/tandem-serving/tandem/pkg/engine"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
	"github.com/tandem-serving/tandem/services/kvtransfer/internal/receiver"
	"github.com/tandem-serving/tandem/services/kvtransfer/internal/wire"
)

// Receiver receives KV blocks. All its methods are safe for concurrent use.
type Receiver struct {
	cfg          ReceiverConfig
	layoutDigest uint64
	pages        engine.Pages
	lending      engine.Lending // the same pages; nil: nobody may lend to them
	coding       wire.Coding    // of cfg.Encoding; nil: native
	encodedBytes int            // of one slice in cfg.Encoding

	mu         sync.Mutex
	core       *receiver.Core
	owners     map[uint64]*Reservation
	streams    map[receiver.StreamID]*inbound
	lastStream receiver.StreamID
	closed     bool
	grace      <-chan struct{}       // set with closed: ends when senders have had their time
	spans      map[uint64]trace.Span // of open transfers that are traced

	calls   []func() // callbacks and lines of the log that are due, in order
	calling bool     // some goroutine works through calls
	quiet   *sync.Cond

	armed time.Time     // when Run wakes by itself; zero if it does not
	wake  chan struct{} // tells Run to look again
	tasks sync.WaitGroup
}

// NewReceiver is a receiver into pages. It starts nothing: Register it, and Run
// it.
func NewReceiver(cfg ReceiverConfig, pages engine.Pages) (*Receiver, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("kv receiver: %w", err)
	}
	cfg = cfg.withDefaults()
	digest := cfg.Layout.Digest()
	if got := pages.Layout().Digest(); got != digest {
		return nil, fmt.Errorf("kv receiver: the engine's pages have layout digest %#x, the configuration %#x", got, digest)
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
		core: receiver.New(receiver.Config{
			WorkerID:        cfg.WorkerID,
			Epoch:           cfg.Epoch,
			LayoutDigest:    digest,
			Layers:          cfg.Layout.Layers,
			SliceBytes:      cfg.Layout.SliceBytes,
			Encoding:        cfg.Encoding,
			EncodedBytes:    encodedBytes,
			Lends:           lending != nil,
			Lease:           cfg.Lease,
			CreditBytes:     cfg.CreditBytes,
			MaxChunkBytes:   cfg.MaxChunkBytes,
			MaxReservations: cfg.MaxReservations,
			MaxStreams:      cfg.MaxStreams,
		}),
		owners:  map[uint64]*Reservation{},
		streams: map[receiver.StreamID]*inbound{},
		wake:    make(chan struct{}, 1),
	}
	r.quiet = sync.NewCond(&r.mu)
	return r, nil
}

// Register puts the KVTransfer service into a gRPC server. That server has to
// accept messages of MaxMessageBytes and should ask for keep-alives, so that a
// sender's host that vanishes is noticed before the lease ends.
func (r *Receiver) Register(s grpc.ServiceRegistrar) {
	kvtransferv1.RegisterKVTransferServer(s, server{receiver: r})
}

// MaxMessageBytes is the largest gRPC message that a sender may send.
func (r *Receiver) MaxMessageBytes() int {
	return wire.MaxMessageBytes(r.cfg.MaxChunkBytes, min(r.cfg.Layout.SliceBytes, r.encodedBytes))
}

// Run keeps the leases until ctx is done; without it nothing expires. Then it
// ends every transfer with SHUTDOWN, waits ShutdownGrace for the senders to
// acknowledge, ends the streams that are left, and returns nil once every copy
// has ended and every callback was made. It is called once.
func (r *Receiver) Run(ctx context.Context) error {
	r.keepLeases(ctx.Done(), nil)
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.cfg.ShutdownGrace)
	defer cancel()
	r.mu.Lock()
	r.closed, r.grace = true, grace.Done()
	r.mu.Unlock()
	r.handle(receiver.Shutdown{})

	r.keepLeases(grace.Done(), r.idle)
	r.handle(receiver.CloseStreams{})
	r.tasks.Wait()

	r.mu.Lock()
	defer r.mu.Unlock()
	for r.calling {
		r.quiet.Wait()
	}
	if !r.core.Idle() {
		return errors.New("kv receiver: reservations are left after its end")
	}
	return nil
}

// Stats is a view of the receiver at this moment.
func (r *Receiver) Stats() ReceiverStats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return receiverStats(r.core.Stats())
}

// keepLeases ticks the core until done, or until enough says so.
func (r *Receiver) keepLeases(done <-chan struct{}, enough func() bool) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for enough == nil || !enough() {
		select {
		case <-done:
			return
		case <-r.wake:
		case <-timer.C:
			r.handle(receiver.Tick{})
		}
		r.mu.Lock()
		next, ok := r.core.Next()
		r.armed = next
		if ok {
			timer.Reset(time.Until(next))
		} else {
			r.armed = time.Time{}
			timer.Stop()
		}
		r.mu.Unlock()
	}
}

func (r *Receiver) idle() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.core.Idle()
}

// rearm wakes Run if the next deadline is before the one that it waits for, or,
// in a shutdown, if there is nothing left to wait for. r.mu is held.
func (r *Receiver) rearm() {
	next, ok := r.core.Next()
	if ok && (r.armed.IsZero() || next.Before(r.armed)) || r.closed {
		select {
		case r.wake <- struct{}{}:
		default:
		}
	}
}

// handle gives the core an event and does what it asks for. It must be called
// without r.mu.
func (r *Receiver) handle(ev receiver.Event) {
	r.mu.Lock()
	r.apply(r.core.Handle(time.Now(), ev), nil)
}

// received is handle for a message of a stream. The write that it causes, if it
// does, is the caller's: nil is none.
func (r *Receiver) received(ev receiver.Received) *receiver.Write {
	r.mu.Lock()
	return r.apply(r.core.HandleReceived(time.Now(), ev), ev.Message)
}

// written is handle for the end of a copy.
func (r *Receiver) written(ev receiver.Written) {
	r.mu.Lock()
	r.apply(r.core.HandleWritten(time.Now(), ev), nil)
}

// apply does what the core asks for after message, if that was an event, but for a
// write. It takes r.mu over and releases it.
func (r *Receiver) apply(actions []receiver.Action, message *kvtransferv1.SenderMessage) (write *receiver.Write) {
	for _, a := range actions {
		switch a := a.(type) {
		case receiver.Send:
			if a.Message.GetAccept() != nil {
				r.traceOpen(message)
			}
			r.streams[a.Stream].push(a.Message)
		case *receiver.Grant:
			r.streams[a.Stream].grant(a.Bytes)
		case *receiver.Write:
			write = a
		case receiver.CloseStream:
			r.calls = append(r.calls, func() { r.logCut(level(a.Cause), a.Stream, a.Detail) })
			r.shut(r.streams[a.Stream], a.Cause, a.Detail)
		case receiver.Committed:
			r.traceEnd(a.ID, a.Bytes, nil)
			res := r.owner(a.ID, true)
			r.calls = append(r.calls, func() { res.Committed(Arrival{Sampled: a.Sampled, Bytes: a.Bytes, Approximate: a.Approximate}) })
		case receiver.Failed:
			r.fail(a.ID, &FailedError{Reason: a.Reason, Detail: a.Detail})
		case receiver.Aborted:
			r.fail(a.ID, &AbortedError{Reason: a.Reason})
		case receiver.Broken:
			r.fail(a.ID, &BrokenError{Err: errors.New("the sender's stream ended")})
		case receiver.Drained:
			r.traceEnd(a.ID, 0, errCancelled)
			r.calls = append(r.calls, r.owner(a.ID, true).Drained)
		}
	}
	r.rearm()
	r.call()
	return write
}

func (r *Receiver) fail(id uint64, err error) {
	r.traceEnd(id, 0, err)
	res := r.owner(id, false)
	r.calls = append(r.calls, func() {
		r.cfg.Logger.Info("kv transfer ends without commit",
			slog.String("worker", r.cfg.WorkerID), slog.String("request_id", res.RequestID), slog.Any("error", err))
		res.Failed(err)
	})
}

// logCut must be called without r.mu: a log may be slow, and anybody who can connect
// can cause such lines.
func (r *Receiver) logCut(level slog.Level, stream receiver.StreamID, detail string) {
	r.cfg.Logger.Log(context.Background(), level, "kv stream is cut", slog.String("worker", r.cfg.WorkerID),
		slog.Uint64("stream", uint64(stream)), slog.String("detail", detail))
}

// call makes the callbacks that are due, unless another goroutine is at it: one
// at a time keeps them in order. It takes r.mu over and releases it.
func (r *Receiver) call() {
	if r.calling {
		r.mu.Unlock()
		return
	}
	r.calling = true
	for len(r.calls) > 0 {
		due := r.calls[0]
		r.calls = r.calls[1:]
		r.mu.Unlock()
		due()
		r.mu.Lock()
	}
	r.calls, r.calling = nil, false
	r.quiet.Broadcast()
	r.mu.Unlock()
}

// level is how much the end of a stream matters to an operator.
func level(cause receiver.Cause) slog.Level {
	if cause == receiver.Closing {
		return slog.LevelInfo
	}
	return slog.LevelWarn
}

// drawID gives an id for a transfer. It is as random as the secret, so that bits that
// flip on the way do not make it that of another. r.mu is held.
func (r *Receiver) drawID() (id uint64, err error) {
	for id == 0 || r.owners[id] != nil {
		if id, err = draw(); err != nil {
			return 0, err
		}
	}
	return id, nil
}

func draw() (uint64, error) {
	var b [8]byte
	if _, err := rand.Read(b[:]); err != nil {
		return 0, fmt.Errorf("draw a random number: %w", err)
	}
	return binary.LittleEndian.Uint64(b[:]), nil
}
