package kvtransfer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/internal/sharedpages"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/receiver"
	"github.com/tandem-serving/tandem/pkg/rpc"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// sharing is what a Receiver needs to let senders map its pages.
type sharing struct {
	pages engine.Sharing
	// unavailable is why nobody can map them; empty: they can be mapped.
	unavailable string

	// ended is closed when nobody will be given the pages' blocks again.
	ended chan struct{}

	// Guarded by Receiver.loop.
	keys     map[uint64]receiver.StreamID // of streams that live
	attached map[receiver.StreamID]func() // each stops the wait for a mapping's end
	conns    map[*net.UnixConn]bool       // that ServePages has
}

// newSharing returns nil for a receiver that shares nothing.
func newSharing(cfg ReceiverConfig, pages engine.Pages, native bool) *sharing {
	if cfg.PagesSocket == "" {
		return nil
	}
	s := &sharing{ended: make(chan struct{}), keys: map[uint64]receiver.StreamID{}, attached: map[receiver.StreamID]func(){}, conns: map[*net.UnixConn]bool{}}
	shared, can := pages.(engine.Sharing)
	switch {
	case !native:
		s.unavailable = "the receiver wants KV in fewer bits than its pages have"
	case !can || !shared.Shares():
		s.unavailable = "the receiver's pages are not in memory that can be shared"
	default:
		s.pages = shared
	}
	return s
}

// can reports whether senders can map the pages.
func (s *sharing) can() bool { return s != nil && s.unavailable == "" }

// offer says in a hello how its session can map the pages. Requires r.loop.
func (r *Receiver) offer(in *inboundStream, hello *kvtransferv1.ReceiverHello) {
	switch s := r.sharing; {
	case s == nil || in.key == 0:
	case s.unavailable != "":
		hello.Shared = &kvtransferv1.SharedPages{Unavailable: s.unavailable}
	default:
		s.keys[in.key] = in.id
		hello.Shared = &kvtransferv1.SharedPages{Socket: r.cfg.PagesSocket, Key: in.key}
	}
}

// errShutdown is why a receiver that shuts down shares nothing more.
var errShutdown = errors.New("the receiver shuts down")

// letMap lets the session of a key map the pages, with a ticket. The caller must call detached
// once the pages are not mapped, or once stop was called, when the receiver shuts down.
func (r *Receiver) letMap(key, transfer, secret uint64, stop func()) (detached func(), err error) {
	r.loop.Lock()
	defer r.loop.Unlock()
	s := r.sharing
	stream, known := s.keys[key]
	switch {
	case r.grace != nil:
		return nil, errShutdown
	case !known:
		return nil, errors.New("no session of the receiver has this key")
	}
	for _, a := range r.loop.Step(receiver.Map{Stream: stream, ID: transfer, Secret: secret}) {
		if no, is := a.(receiver.MayNotMap); is {
			return nil, errors.New(no.Why)
		}
	}
	s.attached[stream] = stop
	return func() {
		r.loop.Lock()
		defer r.loop.Unlock()
		delete(s.attached, stream)
		r.loop.Step(receiver.Unmapped{Stream: stream})
	}, nil
}

// detachAll gives up the mappings that are left when the receiver ends. Nobody will be given the
// blocks again: the pages end with it.
func (r *Receiver) detachAll() {
	r.loop.Lock()
	defer r.loop.Unlock()
	if r.sharing == nil {
		return
	}
	close(r.sharing.ended)
	for _, stop := range r.sharing.attached {
		stop()
	}
	for conn := range r.sharing.conns {
		_ = conn.Close() // whatever it waits for
	}
}

// ListenPages listens on an absolute path for ServePages. A socket there of a process that is gone
// is replaced. Only the user of this process can connect.
func ListenPages(path string) (*net.UnixListener, error) {
	listener, err := rpc.ListenUnix("unixpacket", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		_ = listener.Close()
		return nil, err
	}
	return listener, nil
}

// ServePages passes the pages' descriptor to senders that ask for it on a listener of
// ReceiverConfig.PagesSocket ("unixpacket"), until the listener is closed. It also ends
// when ctx does while nobody can be accepted. A sender gets it if
// its process belongs to this one's user, its session has the key of its hello, and it has a
// ticket that it could open, or has open. Run waits for what ServePages starts.
func (r *Receiver) ServePages(ctx context.Context, listener *net.UnixListener) error {
	var pause time.Duration
	for {
		conn, err := listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil { // such as too many open files, for a while
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			r.cfg.Logger.Warn("kv pages: nobody can ask for them for now", slog.Duration("again_after", pause), slog.Any("error", err))
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				return nil
			}
			continue
		}
		pause = 0
		if !r.admitConn(conn) {
			_ = conn.Close() // the sender goes on without the pages
			continue
		}
		go func() {
			defer r.connDone(conn)
			if err := r.share(conn); err != nil {
				r.cfg.Logger.Warn("kv pages are not shared", slog.Any("error", err))
			}
		}()
	}
}

// admitConn counts a connection of ServePages, if it may serve one more.
func (r *Receiver) admitConn(conn *net.UnixConn) bool {
	r.loop.Lock()
	defer r.loop.Unlock()
	if !r.sharing.can() || r.grace != nil || len(r.sharing.conns) >= 2*r.cfg.MaxStreams {
		return false
	}
	r.sharing.conns[conn] = true
	r.tasks.Add(1)
	return true
}

// connDone closes a connection that was served.
func (r *Receiver) connDone(conn *net.UnixConn) {
	_ = conn.Close() // everything was said
	r.loop.Lock()
	delete(r.sharing.conns, conn)
	r.loop.Unlock()
	r.tasks.Done()
}

// share serves one process that asks for the pages, until it has them no longer.
func (r *Receiver) share(conn *net.UnixConn) error {
	peer, request, err := sharedpages.Accept(conn, requestTimeout)
	if err != nil {
		return err
	}
	defer peer.Close()
	detached, err := r.letMap(request.Key, request.Transfer, request.Secret, peer.Stop)
	if err != nil {
		peer.Refuse(err.Error())
		return err
	}
	defer detached()
	file := r.sharing.pages.File()
	if file == nil {
		return errShutdown
	}
	page := r.cfg.Layout.PageBytes()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if err := peer.Grant(file, page, int(info.Size())/page); err != nil {
		return fmt.Errorf("pass the descriptor: %w", err)
	}
	if err := peer.Wait(); err != nil {
		<-r.sharing.ended // what the process may still write to, nobody else gets
	}
	return nil
}

// requestTimeout bounds how long a process that connects may take to ask.
const requestTimeout = 3 * time.Second
