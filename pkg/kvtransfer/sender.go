package kvtransfer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/wire"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// maxSessions bounds the sessions that tickets can make a Sender open.
const maxSessions = 1024

// Sender sends KV blocks, with one session per receiver. Its methods are safe for
// concurrent use.
type Sender struct {
	cfg          SenderConfig
	layoutDigest uint64
	pages        engine.Pages
	lending      engine.Lending // the same pages; nil: they cannot lend
	codings      codings
	ctx          context.Context // cancelled by Close; parent of every connection
	cancel       context.CancelFunc

	mu          sync.Mutex
	closed      bool
	connections map[peer]*connection
	tasks       sync.WaitGroup
}

// peer identifies one incarnation of a receiver at certain addresses. Tickets with other
// addresses get another session.
type peer struct {
	receiver  string
	epoch     uint64
	addresses string // those tried, formatted with %q
}

// NewSender returns a sender that reads from pages. It starts nothing before the first
// Open. Close ends what it started.
func NewSender(cfg SenderConfig, pages engine.Pages) (*Sender, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("kv sender: %w", err)
	}
	digest := cfg.Layout.Digest()
	if got := pages.Layout().Digest(); got != digest {
		return nil, fmt.Errorf("kv sender: the engine's pages have layout digest %#x, but the configuration has %#x", got, digest)
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &Sender{
		cfg:          cfg.withDefaults(),
		layoutDigest: digest,
		pages:        pages,
		lending:      lendingOf(pages),
		codings:      newCodings(cfg.Layout),
		ctx:          ctx,
		cancel:       cancel,
		connections:  map[peer]*connection{},
	}, nil
}

// WorkerID is whom the Sender sends as.
func (s *Sender) WorkerID() string { return s.cfg.WorkerID }

// Open begins the transfer of a ticket, connecting if necessary, and waits until the
// receiver accepts. ctx bounds the wait and is not used afterwards. The caller must end the
// transfer with Commit or Abort. If ctx has a sampled span, the receiver's span becomes its
// child.
//
// A session that was there already may end while it waits, as the receiver ends idle ones. Open
// then tries once more over a new one.
//
// Errors: *RefusedError, *BrokenError (the receiver is not registered at the ticket's addresses,
// no address answered, or the stream ended),
// ErrClosed, that of mapped pages which cannot be opened, or that of ctx. After an error a transfer that the receiver may know of is
// aborted, and nothing is left.
func (s *Sender) Open(ctx context.Context, ticket *kvtransferv1.Ticket, requestID string) (*Transfer, error) {
	if err := s.check(ticket); err != nil {
		return nil, fmt.Errorf("open kv transfer: %w", err)
	}
	if len(requestID) > wire.MaxNameBytes {
		return nil, fmt.Errorf("open kv transfer: a request id of %d bytes, more than the limit of %d", len(requestID), wire.MaxNameBytes)
	}
	if s.cfg.Registered != nil {
		if err := s.cfg.Registered(ctx, ticket.GetReceiver(), tried(ticket)...); err != nil {
			return nil, fmt.Errorf("open kv transfer: %w", &BrokenError{Peer: ticket.GetReceiver(), Err: err})
		}
	}
	for again := true; ; {
		conn, err := s.connection(ticket)
		if err != nil {
			return nil, fmt.Errorf("open kv transfer: %w", err)
		}
		t, err := conn.open(ctx, ticket, requestID)
		switch {
		case err == nil:
			return t, nil
		case errors.Is(err, errConnectionOver):
		case errors.Is(err, errUnanswered) && again:
			again = false // a receiver that has accepted it refuses the ticket
		default:
			return nil, fmt.Errorf("open kv transfer: %w", err)
		}
		s.drop(conn)
	}
}

// Close aborts every transfer, waits for the receivers to acknowledge, and closes the
// connections. If ctx ends first, it cuts the connections and returns ctx's error. After
// Close every Transfer is done.
func (s *Sender) Close(ctx context.Context) error {
	defer s.tasks.Wait()
	defer s.cancel()
	s.mu.Lock()
	s.closed = true
	open := slices.Collect(maps.Values(s.connections))
	s.mu.Unlock()
	for _, conn := range open {
		conn.close()
	}
	return awaitEnds(ctx, open)
}

// endSessionsTimeout bounds how long EndSessions waits.
const endSessionsTimeout = 2 * time.Second

// EndSessions closes the sessions that have no transfers, since they take the places of other senders at
// the receivers, and waits for that. The others, and those that are dialled, close once they have none.
// A later Open connects again. If ctx ends first, or 2 s have passed, they end in the background.
func (s *Sender) EndSessions(ctx context.Context) {
	s.mu.Lock()
	open := slices.Collect(maps.Values(s.connections))
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, endSessionsTimeout)
	defer cancel()
	err := awaitEnds(ctx, slices.DeleteFunc(open, func(conn *connection) bool {
		conn.unwanted.Store(true)
		return !conn.endUnwanted()
	}))
	if err != nil {
		s.cfg.Logger.Warn("kv sessions did not end in time", "error", err)
	}
}

func awaitEnds(ctx context.Context, ending []*connection) error {
	for _, conn := range ending {
		select {
		case <-conn.ended:
		case <-ctx.Done():
			return fmt.Errorf("close kv sender: %w", context.Cause(ctx))
		}
	}
	return nil
}

// check validates a ticket before anything is sent.
func (s *Sender) check(ticket *kvtransferv1.Ticket) error {
	switch {
	case ticket.GetLayoutDigest() != s.layoutDigest:
		return &RefusedError{
			Reason: kvtransferv1.RefuseReason_REFUSE_REASON_LAYOUT,
			Detail: fmt.Sprintf("layout digest is %#x here, but %#x in the ticket", s.layoutDigest, ticket.GetLayoutDigest()),
		}
	case ticket.GetSender() != "" && ticket.GetSender() != s.cfg.WorkerID:
		return &RefusedError{
			Reason: kvtransferv1.RefuseReason_REFUSE_REASON_WRONG_SENDER,
			Detail: fmt.Sprintf("the ticket is for %q, but this is %q", ticket.GetSender(), s.cfg.WorkerID),
		}
	case len(ticket.GetAddresses()) == 0:
		return errors.New("the ticket names no address")
	case ticket.GetBlocks() > maxTicketBlocks || ticket.GetHeldBlocks() > ticket.GetBlocks():
		return fmt.Errorf("the ticket has %d blocks, %d of them held: one of the numbers is out of range", ticket.GetBlocks(), ticket.GetHeldBlocks())
	case ticket.GetLease().AsDuration() < minTicketLease:
		return fmt.Errorf("the ticket's lease of %v is under %v", ticket.GetLease().AsDuration(), minTicketLease)
	}
	return nil
}

// tried are the addresses of a ticket that are tried.
func tried(ticket *kvtransferv1.Ticket) []string {
	return ticket.GetAddresses()[:min(len(ticket.GetAddresses()), maxAddresses)]
}

// connection returns the session with the ticket's receiver, or a new one.
func (s *Sender) connection(ticket *kvtransferv1.Ticket) (*connection, error) {
	addresses := tried(ticket)
	to := peer{receiver: ticket.GetReceiver(), epoch: ticket.GetEpoch(), addresses: fmt.Sprintf("%q", addresses)}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	conn := s.connections[to]
	if conn == nil {
		if len(s.connections) >= maxSessions {
			return nil, fmt.Errorf("%d sessions are already open", maxSessions)
		}
		conn = newConnection(s, to, addresses, ticket)
		s.connections[to] = conn
		s.tasks.Go(conn.run)
	}
	return conn, nil
}

// drop makes the next Open connect anew.
func (s *Sender) drop(conn *connection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.connections[conn.peer] == conn {
		delete(s.connections, conn.peer)
	}
}
