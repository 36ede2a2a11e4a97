package router

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/services/router/internal/fleet"
)

// pool keeps one connection to each worker and tells the policy whether it
// works.
type pool struct {
	dial    func(address string) (*grpc.ClientConn, error)
	timeout time.Duration
	notify  func(fleet.Event)
	log     *slog.Logger

	mu      sync.Mutex
	closed  bool
	members map[fleet.Ref]*member
	wait    sync.WaitGroup
}

// member is one worker.
type member struct {
	cancel context.CancelFunc
	ctx    context.Context
	conn   *connection // nil while there is none that works
}

// connection closes once it is not the worker's any more and no stream uses it:
// a server that leaves still finishes the streams it has.
type connection struct {
	grpc *grpc.ClientConn
	uses int // under pool.mu; the member's own is one
}

func newPool(dial func(string) (*grpc.ClientConn, error), timeout time.Duration, notify func(fleet.Event), log *slog.Logger) *pool {
	return &pool{dial: dial, timeout: timeout, notify: notify, log: log, members: make(map[fleet.Ref]*member)}
}

// add begins to keep a connection. It does not block.
func (p *pool) add(ref fleet.Ref, addresses []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.members[ref] != nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	m := &member{cancel: cancel, ctx: ctx}
	p.members[ref] = m
	p.wait.Go(func() { p.keep(ctx, ref, m, addresses) })
}

// remove ends it. Streams that run go on.
func (p *pool) remove(ref fleet.Ref) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if m := p.members[ref]; m != nil {
		m.cancel()
		delete(p.members, ref)
	}
}

// close ends everything and waits.
func (p *pool) close() {
	p.mu.Lock()
	p.closed = true
	for ref, m := range p.members {
		m.cancel()
		delete(p.members, ref)
	}
	p.mu.Unlock()
	p.wait.Wait()
}

// acquire returns the worker's connection and a function that gives it back.
func (p *pool) acquire(ref fleet.Ref) (*grpc.ClientConn, func(), error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.members[ref]
	if m == nil || m.conn == nil {
		return nil, nil, status.Errorf(codes.Unavailable, "there is no connection to worker %s", ref.ID)
	}
	c := m.conn
	c.uses++
	return c.grpc, sync.OnceFunc(func() { p.release(c) }), nil
}

func (p *pool) release(c *connection) {
	p.mu.Lock()
	c.uses--
	last := c.uses == 0
	p.mu.Unlock()
	if last {
		// The error says only that it is closed already.
		_ = c.grpc.Close()
	}
}

// Bounds of the wait after all addresses of a worker failed.
const (
	redialLeast = 50 * time.Millisecond
	redialMost  = time.Second
)

// keep connects, stays until the connection is lost, and begins again.
func (p *pool) keep(ctx context.Context, ref fleet.Ref, m *member, addresses []string) {
	log := p.log.With(slog.String("worker", ref.ID))
	wait := redialLeast
	for ctx.Err() == nil {
		conn, blocks, err := p.connect(ctx, ref, addresses)
		if err != nil {
			if ctx.Err() == nil {
				log.Debug("worker is not reachable", slog.Any("error", err))
			}
			timer := time.NewTimer(wait)
			select {
			case <-ctx.Done():
			case <-timer.C:
			}
			timer.Stop()
			wait = min(2*wait, redialMost)
			continue
		}
		wait = redialLeast
		c := &connection{grpc: conn, uses: 1}
		p.mu.Lock()
		m.conn = c
		p.mu.Unlock()
		p.notify(fleet.Connected{Worker: ref, Blocks: blocks})
		log.Info("connected to worker", slog.String("address", address(conn)))
		conn.WaitForStateChange(ctx, connectivity.Ready)
		p.mu.Lock()
		m.conn = nil
		p.mu.Unlock()
		if ctx.Err() == nil {
			// Requests that suffer from it say so; a worker that leaves is no news.
			log.Info("connection to worker was lost", slog.String("address", address(conn)))
			p.notify(fleet.Disconnected{Worker: ref})
		}
		p.release(c)
	}
}

// address is where a connection goes to, as the worker's record has it.
func address(conn *grpc.ClientConn) string {
	return strings.TrimPrefix(conn.Target(), "passthrough:///")
}

// connect returns a connection that is ready, to the first address where this
// incarnation of the worker answers, and its prefix cache, nil if that is not
// known.
func (p *pool) connect(ctx context.Context, ref fleet.Ref, addresses []string) (*grpc.ClientConn, *workerv1.ListBlocksResponse, error) {
	last := fmt.Errorf("the worker's record has no address")
	for _, candidate := range addresses {
		conn, err := p.dial(candidate)
		if err != nil {
			last = err
			continue
		}
		blocks, err := p.meet(ctx, ref, conn)
		if err != nil {
			last = fmt.Errorf("connect to %s: %w", candidate, err)
			_ = conn.Close()
			continue
		}
		return conn, blocks, nil
	}
	return nil, nil, last
}

// meet connects and makes sure who is there: a worker that was started again may
// listen where the old one did.
func (p *pool) meet(ctx context.Context, ref fleet.Ref, conn *grpc.ClientConn) (*workerv1.ListBlocksResponse, error) {
	if err := p.ready(ctx, conn); err != nil {
		return nil, err
	}
	blocks, err := listBlocks(ctx, conn)
	switch {
	case status.Code(err) == codes.Unavailable, status.Code(err) == codes.DeadlineExceeded, ctx.Err() != nil:
		return nil, err
	case err != nil:
		// Somebody is there. Should it be another, it refuses each call for this one.
		p.log.Warn("prefix cache of worker is not known", slog.String("worker", ref.ID), slog.Any("error", err))
		return nil, nil
	case blocks.GetEpoch() != ref.Epoch:
		return nil, errors.New("another worker answers there")
	}
	return blocks, nil
}

func (p *pool) ready(ctx context.Context, conn *grpc.ClientConn) error {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	conn.Connect()
	for {
		state := conn.GetState()
		switch state {
		case connectivity.Ready:
			return nil
		case connectivity.TransientFailure, connectivity.Shutdown:
			return fmt.Errorf("state is %s", state)
		}
		if !conn.WaitForStateChange(ctx, state) {
			return ctx.Err()
		}
	}
}

// listTimeout bounds ListBlocks.
const listTimeout = 5 * time.Second

func listBlocks(ctx context.Context, conn *grpc.ClientConn) (*workerv1.ListBlocksResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	return workerv1.NewWorkerClient(conn).ListBlocks(ctx, &workerv1.ListBlocksRequest{})
}

// listBlocks asks a worker for its prefix cache and hands the answer to the
// policy. It does not block.
func (p *pool) listBlocks(ref fleet.Ref) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.members[ref]
	if p.closed || m == nil {
		return
	}
	p.wait.Go(func() {
		event := fleet.BlocksListed{Worker: ref}
		if conn, release, err := p.acquire(ref); err == nil {
			defer release()
			response, err := listBlocks(m.ctx, conn)
			if err == nil {
				event.Response = response
			} else if m.ctx.Err() == nil {
				p.log.Warn("prefix cache of worker is not known", slog.String("worker", ref.ID), slog.Any("error", err))
			}
		}
		p.notify(event)
	})
}
