package workers

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/routing"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/telemetry/logthrottle"
)

// Pool keeps one connection to each worker and tells the routing core whether it works.
type Pool struct {
	dial    func(address string) (*grpc.ClientConn, error)
	timeout time.Duration
	notify  func(routing.Event)
	log     *slog.Logger

	// Limits of attempts to connect: to workers that have answered before, to new ones, and to
	// all others. So records at which nobody answers do not delay workers that work.
	known, first, others *dialLimiter
	lists                chan struct{} // holds a token for each ListBlocks that runs

	mu         sync.Mutex
	closed     bool
	members    map[routing.Ref]*member
	number     uint64 // of the last connection
	unanswered logthrottle.Throttle
	wait       sync.WaitGroup
}

// Sizes of the dial limiters.
const (
	maxKnownAttempts = 64
	maxFirstAttempts = 64
	maxOtherAttempts = 16
)

// member is one worker.
type member struct {
	cancel context.CancelFunc
	ctx    context.Context
	moved  chan struct{} // holds a token when the addresses have changed

	// Under pool.mu:
	addresses []string
	conn      *connection // nil while none works
	number    uint64      // of the last connection
}

// connection closes once the worker has another one, or none, and no stream uses it: a server
// that leaves still finishes its streams.
type connection struct {
	grpc   *grpc.ClientConn
	number uint64 // no other connection of this pool has it
	uses   int    // under pool.mu; the member itself counts as one
}

// NewPool returns a pool without workers. It tries each address for timeout, and reports to
// notify, which must not block. What it reports of a worker may come after Remove: see Connection.
func NewPool(dial func(string) (*grpc.ClientConn, error), timeout time.Duration, notify func(routing.Event), log *slog.Logger) *Pool {
	return &Pool{
		dial: dial, timeout: timeout, notify: notify, log: log, members: make(map[routing.Ref]*member), unanswered: logthrottle.Throttle{Every: unansweredEvery, Burst: unansweredBurst},
		known: &dialLimiter{free: maxKnownAttempts}, first: &dialLimiter{free: maxFirstAttempts, newestFirst: true}, others: &dialLimiter{free: maxOtherAttempts},
		lists: make(chan struct{}, maxLists),
	}
}

// Add begins to keep a connection to a worker. If the worker has new addresses, it tries them at
// once. It does not block.
func (p *Pool) Add(ref routing.Ref, role controlv1.Role, addresses []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	if m := p.members[ref]; m != nil {
		m.addresses = addresses
		select {
		case m.moved <- struct{}{}:
		default:
		}
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	m := &member{cancel: cancel, ctx: ctx, moved: make(chan struct{}, 1), addresses: addresses}
	p.members[ref] = m
	p.wait.Go(func() { p.keep(ctx, ref, role, m) })
}

// Remove ends the connection to a worker. Running streams go on.
func (p *Pool) Remove(ref routing.Ref) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if m := p.members[ref]; m != nil {
		m.cancel()
		delete(p.members, ref)
	}
}

// Close ends all connections and waits for their goroutines.
func (p *Pool) Close() {
	p.mu.Lock()
	p.closed = true
	for _, m := range p.members {
		m.cancel()
	}
	clear(p.members)
	p.mu.Unlock()
	p.wait.Wait()
}

// Acquire returns a worker's connection, its number, and a function that gives it back. With an
// error the number is that of the worker's last connection.
func (p *Pool) Acquire(ref routing.Ref) (conn *grpc.ClientConn, number uint64, release func(), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.members[ref]
	if m == nil || m.conn == nil {
		if m != nil {
			number = m.number
		}
		return nil, number, nil, status.Errorf(codes.Unavailable, "there is no connection to worker %s", ref.ID)
	}
	c := m.conn
	c.uses++
	return c.grpc, c.number, sync.OnceFunc(func() { p.release(c) }), nil
}

// Connection is the number of the connection that a worker has; 0: it has none.
func (p *Pool) Connection(ref routing.Ref) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if m := p.members[ref]; m != nil && m.conn != nil {
		return m.conn.number
	}
	return 0
}

func (p *Pool) release(c *connection) {
	p.mu.Lock()
	c.uses--
	last := c.uses == 0
	p.mu.Unlock()
	if last {
		// The error says only that it is closed already.
		_ = c.grpc.Close()
	}
}

// random is math/rand/v2.
type random struct{}

func (random) IntN(n int) int { return rand.IntN(n) }

// patience is how often a worker that never answered may fail before the log warns.
const patience = 3

// keep connects, waits until the connection is lost, and begins again.
func (p *Pool) keep(ctx context.Context, ref routing.Ref, role controlv1.Role, m *member) {
	log := p.log.With(slog.String("worker", ref.ID))
	var redial routing.Redial
	turn, why, failed := p.first, "", 0
	for ctx.Err() == nil {
		found, err := p.attempt(ctx, turn, ref, role, m)
		if err != nil {
			if turn == p.first {
				turn = p.others
			}
			if ctx.Err() == nil {
				failed++
				changed := err.Error() != why
				why = err.Error()
				// A restarted worker leaves its old record behind for a moment.
				p.complain(log, ref, changed, turn != p.known && (failed == patience || failed > patience && changed), why)
			}
			m.sleep(ctx, redial.Failed(random{}))
			continue
		}
		redial.Connected()
		turn, why, failed = p.known, "", 0
		conn := found.conn
		c := &connection{grpc: conn, uses: 1}
		p.mu.Lock()
		p.number++
		c.number, m.number = p.number, p.number
		m.conn = c
		p.mu.Unlock()
		for _, part := range found.blocks {
			p.notify(part)
		}
		p.notify(routing.Connected{Worker: ref, Record: found.record, Connection: c.number})
		log.Info("connected to worker", slog.String("address", address(conn)))
		conn.WaitForStateChange(ctx, connectivity.Ready)
		p.mu.Lock()
		m.conn = nil
		p.mu.Unlock()
		if ctx.Err() == nil {
			// Requests that lose their worker log it, and a worker that leaves is no news.
			log.Info("connection to worker was lost", slog.String("address", address(conn)))
			p.notify(routing.Disconnected{Worker: ref})
		}
		p.release(c)
	}
}

// address is the address of a connection as in the worker's record.
func address(conn *grpc.ClientConn) string {
	return strings.TrimPrefix(conn.Target(), "passthrough:///")
}

func (p *Pool) ready(ctx context.Context, conn *grpc.ClientConn) error {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	conn.Connect()
	for {
		state := conn.GetState()
		switch state {
		case connectivity.Ready:
			return nil
		case connectivity.TransientFailure, connectivity.Shutdown:
			_, _, err := identify(ctx, conn) // fails at once with the reason
			if problem := rpc.DialProblem(err); problem != "" {
				return errors.New(problem)
			}
			return err
		}
		if !conn.WaitForStateChange(ctx, state) {
			return ctx.Err()
		}
	}
}

// listTimeout bounds a ListBlocks, and maxLists how many run at a time.
const (
	listTimeout = 5 * time.Second
	maxLists    = 8
)

func listBlocks(ctx context.Context, conn *grpc.ClientConn) (*workerv1.ListBlocksResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	return workerv1.NewWorkerClient(conn).ListBlocks(ctx, &workerv1.ListBlocksRequest{})
}

// ListBlocks asks a worker for its prefix cache and hands the answer to the routing core. It
// does not block.
func (p *Pool) ListBlocks(ref routing.Ref) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.members[ref]
	if p.closed || m == nil {
		return
	}
	p.wait.Go(func() {
		events := []routing.BlocksListed{{Worker: ref}}
		if conn, _, release, err := p.Acquire(ref); err == nil {
			defer release()
			p.lists <- struct{}{}
			response, err := listBlocks(m.ctx, conn)
			<-p.lists
			if err == nil {
				events = routing.Listed(ref, response)
			} else if m.ctx.Err() == nil { // the core asks again, ever more rarely
				p.log.Warn("prefix cache of worker is not known", slog.String("worker", ref.ID), slog.Any("error", err))
			}
		}
		for _, event := range events {
			p.notify(event)
		}
	})
}
