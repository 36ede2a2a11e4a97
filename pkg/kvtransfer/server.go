package kvtransfer

import (
	"errors"
	"io"
	"log/slog"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/receiver"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/wire"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// server is the gRPC face of a Receiver.
type server struct {
	kvtransferv1.UnimplementedKVTransferServer
	receiver *Receiver
}

// inbound is one stream of a Receiver. Its outbox is guarded by its own lock,
// which is taken under Receiver.mu and holds nothing else.
type inbound struct {
	id   receiver.StreamID
	max  int
	stop chan struct{} // closed when the core wants the stream to end
	wake chan struct{} // tells the writer that there is something to send
	sent chan struct{} // closed when the writer has ended

	// flush ends the time to send what the core said last, which is for a stream that
	// ends since the receiver does. It is set before stop; nil: there is none.
	flush <-chan struct{}

	mu     sync.Mutex
	credit int // to be granted
	outbox []*kvtransferv1.ReceiverMessage
	status *status.Status // set with stop
}

// Stream implements the KVTransfer service.
func (s server) Stream(stream senderStream) error { return s.receiver.Serve(stream) }

// senderStream is one stream of a sender.
type senderStream = grpc.BidiStreamingServer[kvtransferv1.SenderMessage, kvtransferv1.ReceiverMessage]

// Serve serves one stream of a sender, as the service of Register does: it is for
// servers whose receiver is not always the same. It only waits: it has to return for the
// reader's Recv to end, whatever reader and writer are stuck in.
func (r *Receiver) Serve(stream grpc.BidiStreamingServer[kvtransferv1.SenderMessage, kvtransferv1.ReceiverMessage]) error {
	in, err := r.attach()
	if err != nil {
		return err
	}
	r.handle(receiver.StreamOpened{Stream: in.id})
	finished := make(chan struct{})
	go func() {
		defer r.tasks.Done()
		defer close(in.sent)
		in.write(stream, finished)
	}()
	go func() {
		defer r.tasks.Done()
		defer close(finished)
		r.read(in, stream)
	}()
	select {
	case <-in.stop:
		if in.flush == nil {
			break
		}
		select {
		case <-in.sent:
		case <-in.flush:
		case <-finished:
		}
	case <-finished:
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.status.Err()
}

// attach counts a stream and its two goroutines.
func (r *Receiver) attach() (*inbound, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, status.Error(codes.Unavailable, "the receiver shuts down")
	}
	r.lastStream++
	in := &inbound{
		id:   r.lastStream,
		max:  1024 + 4*r.cfg.MaxReservations,
		stop: make(chan struct{}),
		wake: make(chan struct{}, 1),
		sent: make(chan struct{}),
	}
	r.streams[in.id] = in
	r.tasks.Add(2)
	return in, nil
}

// read takes the stream's messages one after another and copies their payloads.
// When it ends nothing of the stream will land any more.
func (r *Receiver) read(in *inbound, stream senderStream) {
	var m wire.Incoming
	defer m.Free()
	for {
		err := stream.RecvMsg(&m)
		if err == nil && m.Malformed != nil {
			err = status.Error(codes.InvalidArgument, m.Malformed.Error())
		}
		if err != nil {
			r.unreadable(in, err)
			break
		}
		if w := r.received(receiver.Received{Stream: in.id, Message: m.Message, Chunk: &m.Chunk}); w != nil {
			outcome, detail := r.write(w, &m.Inbound)
			r.written(receiver.Written{Stream: w.Stream, ID: w.ID, Bytes: w.Bytes, Outcome: outcome, Detail: detail})
		}
		m.Free()
		if in.overflows() {
			break
		}
	}
	r.handle(receiver.StreamClosed{Stream: in.id})
	r.mu.Lock()
	delete(r.streams, in.id)
	r.mu.Unlock()
}

// unreadable has a stream end with what its reader met.
func (r *Receiver) unreadable(in *inbound, err error) {
	if errors.Is(err, io.EOF) {
		return
	}
	found := status.Convert(err)
	if found.Code() == codes.InvalidArgument || found.Code() == codes.ResourceExhausted {
		r.logCut(slog.LevelWarn, in.id, found.Message())
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.status == nil {
		in.status = found
	}
}

// write checks a chunk and copies its slices into its pages.
func (r *Receiver) write(w *receiver.Write, m *wire.Inbound) (receiver.Outcome, string) {
	var err error
	switch w.Encoding {
	case kvtransferv1.Encoding_ENCODING_LENT:
		err = m.TakeTo(r.lending, w.Blocks)
	case r.cfg.Encoding:
		err = m.CopyTo(r.pages, w.Blocks, r.coding)
	default:
		err = m.CopyTo(r.pages, w.Blocks, nil)
	}
	switch {
	case err == nil:
		return receiver.Landed, ""
	case errors.Is(err, wire.ErrCorrupt):
		return receiver.Corrupt, err.Error()
	case errors.Is(err, wire.ErrUndecodable):
		return receiver.Undecodable, err.Error()
	case errors.Is(err, engine.ErrNotLent):
		return receiver.Withdrawn, err.Error()
	default:
		return receiver.Unwritable, err.Error()
	}
}

// push puts a message into the outbox.
func (in *inbound) push(m *kvtransferv1.ReceiverMessage) {
	in.mu.Lock()
	in.outbox = append(in.outbox, m)
	in.mu.Unlock()
	poke(in.wake)
}

// grant adds to the next Grant, which goes before all else.
func (in *inbound) grant(bytes int) {
	in.mu.Lock()
	in.credit += bytes
	in.mu.Unlock()
	poke(in.wake)
}

// overflows says whether the sender reads so little that its stream has to end,
// and then sees to it.
func (in *inbound) overflows() bool {
	in.mu.Lock()
	over := len(in.outbox) > in.max
	if over && in.status == nil {
		in.status = status.New(codes.ResourceExhausted, "the sender does not read its messages")
	}
	in.mu.Unlock()
	return over
}

// write sends what is in the outbox until the stream ends, and then what is left.
func (in *inbound) write(stream senderStream, finished <-chan struct{}) {
	grant := new(kvtransferv1.Grant)
	granting := &kvtransferv1.ReceiverMessage{Message: &kvtransferv1.ReceiverMessage_Grant{Grant: grant}}
	for stopping := false; ; {
		in.mu.Lock()
		batch, credit := in.outbox, in.credit
		in.outbox, in.credit = nil, 0
		in.mu.Unlock()
		if credit > 0 {
			grant.CreditBytes = uint64(credit) // Send encodes it before it returns
			if stream.Send(granting) != nil {
				return // the reader hears of it too
			}
		}
		for _, m := range batch {
			if stream.Send(m) != nil {
				return
			}
		}
		if len(batch) > 0 || credit > 0 {
			continue
		}
		if stopping {
			return
		}
		select {
		case <-in.wake:
		case <-in.stop:
			stopping = true
		case <-finished:
			return
		}
	}
}

// shut lets the handler of a stream return. r.mu is held.
func (r *Receiver) shut(in *inbound, cause receiver.Cause, detail string) {
	if cause == receiver.Closing {
		in.flush = r.grace
	}
	in.mu.Lock()
	if in.status == nil {
		in.status = status.New(code(cause), detail)
	}
	in.mu.Unlock()
	close(in.stop)
}

func code(cause receiver.Cause) codes.Code {
	switch cause {
	case receiver.Silence:
		return codes.DeadlineExceeded
	case receiver.Closing, receiver.SessionOver:
		return codes.Unavailable
	case receiver.Full:
		return codes.ResourceExhausted
	case receiver.Version:
		return codes.FailedPrecondition
	default:
		return codes.InvalidArgument
	}
}
