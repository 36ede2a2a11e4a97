package kvtransfer

import (
	"errors"
	"io"
	"log/slog"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tandem-serving/tandem/pkg/coreloop"
	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/identity"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/receiver"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/wire"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// server implements the KVTransfer service.
type server struct {
	kvtransferv1.UnimplementedKVTransferServer
	receiver *Receiver
}

// inboundStream is one stream of a Receiver. Its own lock guards the outbox; it is taken under
// Receiver.loop, and no lock is taken under it.
type inboundStream struct {
	id   receiver.StreamID
	key  uint64 // by which the sender can ask for the pages
	max  int
	stop chan struct{} // closed when the core ends the stream
	wake chan struct{} // tells the writer to look at the outbox
	sent chan struct{} // closed when the writer has ended

	// flush, if set, ends the time for sending the last messages when the receiver shuts
	// down. It is set before stop is closed.
	flush <-chan struct{}

	mu     sync.Mutex
	credit int // to be granted
	outbox []*kvtransferv1.ReceiverMessage
	status *status.Status // set with stop
}

// Stream implements the KVTransfer service.
func (s server) Stream(stream senderStream) error { return s.receiver.Serve(stream) }

type senderStream = grpc.BidiStreamingServer[kvtransferv1.SenderMessage, kvtransferv1.ReceiverMessage]

// Serve serves one stream of a sender, as the service of Register does. It is for servers
// whose receiver changes.
//
// It only waits for its reader and writer, wherever they are stuck: the reader's Recv ends
// only once Serve returns.
func (r *Receiver) Serve(stream grpc.BidiStreamingServer[kvtransferv1.SenderMessage, kvtransferv1.ReceiverMessage]) error {
	in, err := r.attach()
	if err != nil {
		return err
	}
	peer, verified := identity.FromContext(stream.Context())
	r.loop.Handle(receiver.StreamOpened{Stream: in.id, Verified: verified})
	finished := make(chan struct{})
	go func() {
		defer r.tasks.Done()
		defer close(in.sent)
		in.write(stream, finished)
	}()
	go func() {
		defer r.tasks.Done()
		defer close(finished)
		r.read(in, stream, func(hello *kvtransferv1.SenderHello) bool {
			return !verified || peer.Names(hello.GetSender())
		})
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

// attach registers a stream and its two goroutines.
func (r *Receiver) attach() (*inboundStream, error) {
	r.loop.Lock()
	defer r.loop.Unlock()
	if r.grace != nil {
		return nil, status.Error(codes.Unavailable, "the receiver shuts down")
	}
	r.lastStream++
	in := &inboundStream{
		id:   r.lastStream,
		key:  draw(),
		max:  1024 + 4*r.cfg.MaxReservations,
		stop: make(chan struct{}),
		wake: make(chan struct{}, 1),
		sent: make(chan struct{}),
	}
	r.streams[in.id] = in
	r.tasks.Add(2)
	return in, nil
}

// read receives the stream's messages and copies their payloads, one after another. After
// it returns, nothing of the stream is written. It ends the stream of a sender that may not
// call itself what it does.
func (r *Receiver) read(in *inboundStream, stream senderStream, mayBe func(*kvtransferv1.SenderHello) bool) {
	var m wire.Incoming
	defer m.Free()
	for {
		err := stream.RecvMsg(&m)
		if err == nil && m.Malformed != nil {
			err = status.Error(codes.InvalidArgument, m.Malformed.Error())
		}
		if hello := m.Message.GetHello(); err == nil && hello != nil && !mayBe(hello) {
			err = status.Errorf(codes.PermissionDenied, "the certificate is not that of %q", hello.GetSender())
		}
		if err != nil {
			r.unreadable(in, err)
			break
		}
		if w := r.received(receiver.Received{Stream: in.id, Message: m.Message, Chunk: &m.Chunk}); w != nil {
			outcome, detail := r.write(w, &m.Inbound)
			coreloop.Handle(r.loop, (*receiver.Core).HandleWritten, receiver.Written{Stream: w.Stream, ID: w.ID, Bytes: w.Bytes, Outcome: outcome, Detail: detail})
		}
		m.Free()
		if in.overflows() {
			break
		}
	}
	r.loop.Handle(receiver.StreamClosed{Stream: in.id})
	r.loop.Lock()
	delete(r.streams, in.id)
	if r.sharing != nil {
		delete(r.sharing.keys, in.key)
	}
	r.loop.Unlock()
}

// unreadable ends a stream after a read error.
func (r *Receiver) unreadable(in *inboundStream, err error) {
	if errors.Is(err, io.EOF) {
		return
	}
	found := status.Convert(err)
	switch found.Code() {
	case codes.InvalidArgument, codes.ResourceExhausted, codes.PermissionDenied:
		r.logCut(slog.LevelWarn, in.id, found.Message())
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.status == nil {
		in.status = found
	}
}

// write verifies a chunk and copies its slices into the pages, unless they are there.
func (r *Receiver) write(w *receiver.Write, m *wire.Inbound) (receiver.Outcome, string) {
	var err error
	switch w.Encoding {
	case kvtransferv1.Encoding_ENCODING_LENT:
		err = m.TakeTo(r.lending, w.Blocks)
	case kvtransferv1.Encoding_ENCODING_SHARED:
		err = m.Verify(r.pages, w.Blocks)
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

func (in *inboundStream) push(m *kvtransferv1.ReceiverMessage) {
	in.mu.Lock()
	in.outbox = append(in.outbox, m)
	in.mu.Unlock()
	poke(in.wake)
}

// grant adds to the next Grant, which is sent before other messages.
func (in *inboundStream) grant(bytes int) {
	in.mu.Lock()
	in.credit += bytes
	in.mu.Unlock()
	poke(in.wake)
}

// overflows reports whether the sender reads too slowly to keep the stream, and if so ends
// it.
func (in *inboundStream) overflows() bool {
	in.mu.Lock()
	over := len(in.outbox) > in.max
	if over && in.status == nil {
		in.status = status.New(codes.ResourceExhausted, "the sender does not read its messages")
	}
	in.mu.Unlock()
	return over
}

// write sends the outbox until the stream ends, and then what is left of it.
func (in *inboundStream) write(stream senderStream, finished <-chan struct{}) {
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
				return // the reader sees the error too
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

// shut makes the stream's handler return. Requires r.loop.
func (r *Receiver) shut(in *inboundStream, cause receiver.Cause, detail string) {
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
