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
	"github.com/tandem-serving/tandem/pkg/kvtransfer/receiver"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/wire"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
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

	alarm alarm // of Run
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
	}
	r.quiet, r.alarm = sync.NewCond(&r.mu), newAlarm(&r.mu)
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
	tick := func() { r.handle(receiver.Tick{}) }
	r.alarm.run(ctx.Done(), r.core, tick, func() bool { return false })
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.cfg.ShutdownGrace)
	defer cancel()
	r.mu.Lock()
	r.closed, r.grace = true, grace.Done()
	r.mu.Unlock()
	r.handle(receiver.Shutdown{})

	r.alarm.run(grace.Done(), r.core, tick, r.idle)
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
	return r.core.Stats()
}

func (r *Receiver) idle() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.core.Idle()
}

// rearm wakes Run for the next deadline and, in a shutdown, to see whether there is
// something left to wait for. r.mu is held.
func (r *Receiver) rearm() {
	r.alarm.set(r.core)
	if r.closed {
		poke(r.alarm.wake)
	}
}

// handle gives the core an event and does what it asks for. It must be called
// without r.mu, as must received and written.
func (r *Receiver) handle(ev receiver.Event) { drive(r, (*receiver.Core).Handle, ev, nil) }

// received is handle for a message of a stream. The write that it causes, if it
// does, is the caller's: nil is none.
func (r *Receiver) received(ev receiver.Received) *receiver.Write {
	return drive(r, (*receiver.Core).HandleReceived, ev, ev.Message)
}

// written is handle for the end of a copy.
func (r *Receiver) written(ev receiver.Written) { drive(r, (*receiver.Core).HandleWritten, ev, nil) }

// drive does what the core asks for after ev, but for a write. message is what came
// with it, if it did.
func drive[E any](r *Receiver, core func(*receiver.Core, time.Time, E) []receiver.Action, ev E, message *kvtransferv1.SenderMessage) *receiver.Write {
	r.mu.Lock()
	write := r.apply(core(r.core, time.Now(), ev), message)
	due := len(r.calls) > 0 && !r.calling
	r.calling = r.calling || due
	r.mu.Unlock()
	if due {
		r.call()
	}
	return write
}

// apply does what is no callback, and adds to the calls. r.mu is held.
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
			r.calls = append(r.calls, func() {
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
			r.calls = append(r.calls, r.owner(a.ID, true).Drained)
		}
	}
	r.rearm()
	return write
}

func (r *Receiver) fail(id uint64, err error) {
	r.traceEnd(id, 0, err)
	res := r.owner(id, false)
	r.calls = append(r.calls, func() {
		r.cfg.Logger.Info("kv transfer ended without commit",
			slog.String("worker", r.cfg.WorkerID), slog.String("request_id", res.RequestID), slog.Any("error", err))
		res.Failed(err)
	})
}

// logCut must be called without r.mu: a log may be slow, and anybody who can connect
// can cause such lines.
func (r *Receiver) logCut(level slog.Level, stream receiver.StreamID, detail string) {
	r.cfg.Logger.Log(context.Background(), level, "kv stream broke off", slog.String("worker", r.cfg.WorkerID),
		slog.Uint64("stream", uint64(stream)), slog.String("detail", detail))
}

// call makes the callbacks that are due, and those that become due meanwhile: one
// goroutine at a time, which found r.calling unset and set it, keeps them in order.
func (r *Receiver) call() {
	for due := r.nextCall(); due != nil; due = r.nextCall() {
		due()
	}
}

// nextCall takes the call that is due. Nil: there is none, and r.calling is unset.
func (r *Receiver) nextCall() func() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.calls) == 0 {
		r.calls, r.calling = nil, false
		r.quiet.Broadcast()
		return nil
	}
	due := r.calls[0]
	r.calls = r.calls[1:]
	return due
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
