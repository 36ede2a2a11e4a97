package kvtransfer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/receiver"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/wire"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// Defaults of zero configuration fields.
const (
	// DefaultLease is short because it bounds how long a dead peer holds blocks.
	DefaultLease = 10 * time.Second
	// DefaultMaxIdle is longer than a prompt waits for its first layer.
	DefaultMaxIdle = 2 * time.Minute
	// DefaultCreditBytes is the bandwidth-delay product of a fast network: 40 GB/s at a
	// round trip of 100 µs. More would only make short transfers wait behind long ones.
	DefaultCreditBytes = 4 << 20
	// DefaultMaxChunkBytes plus its header fits the 1 MiB tier of gRPC's buffer pool.
	DefaultMaxChunkBytes = 1<<20 - 4<<10
	// defaultMaxReservations bounds a receiver's table of reservations.
	defaultMaxReservations = 4096
	// DefaultMaxStreams bounds a receiver's streams.
	DefaultMaxStreams = 1024
	// DefaultMaxConnections is twice DefaultMaxStreams: each stream has its own connection, and
	// streams that are being closed must not keep new ones out.
	DefaultMaxConnections = 2 * DefaultMaxStreams
	// DefaultShutdownGrace is how long a receiver waits for senders to acknowledge a
	// shutdown.
	DefaultShutdownGrace = 2 * time.Second
	// DefaultAnswerTimeout is how long a sender waits for an answer.
	DefaultAnswerTimeout = 10 * time.Second
	// DefaultConnectTimeout is per address.
	DefaultConnectTimeout = 3 * time.Second
	// DefaultIdleTimeout keeps connections open between rare transfers.
	DefaultIdleTimeout = 5 * time.Minute
)

// Bounds on hellos and tickets, checked by both sides.
const (
	largestChunkBytes  = 1 << 30
	largestCreditBytes = 1 << 40
	// maxTicketBlocks bounds what a Sender keeps per ticket.
	maxTicketBlocks = 1 << 20
	// minTicketLease bounds how often a Sender must renew.
	minTicketLease = 100 * time.Millisecond
)

// ReceiverConfig configures a Receiver. WorkerID, Epoch, Addresses and Layout are required.
type ReceiverConfig struct {
	// WorkerID names this worker in tickets and ReceiverHello.
	WorkerID string
	// Epoch is the worker's incarnation epoch, drawn at random at each start.
	Epoch uint64
	// Addresses of the gRPC server that serves the Receiver, best first: "unix:///path" or
	// "host:port".
	Addresses []string
	// Layout describes the pages. Senders with another layout are refused.
	Layout kvcache.Layout
	// Lease is how long a sender may be silent, at least 100 ms. 0 is DefaultLease.
	Lease time.Duration
	// MaxIdle is how long a sender may only renew a transfer, without any KV. 0 is
	// DefaultMaxIdle.
	MaxIdle time.Duration
	// HolderBlocks bounds the blocks that each of a reservation's Holders has in reservations
	// that have not ended, except that one reservation is always allowed. 0: no bound.
	HolderBlocks int
	// Encoding is the payload encoding to ask for. Zero is native.
	Encoding kvtransferv1.Encoding
	// NoLoans makes all payloads go over a connection, even from senders whose pages are in
	// the same memory (engine.Lending). So does setting Encoding.
	NoLoans bool
	// PagesSocket is the path of the Unix socket that ServePages listens on, for senders of
	// this host to map the pages (engine.Sharing). Empty: they are not told of any.
	PagesSocket string
	// CreditBytes is the payload that may be in flight on each stream, over all its
	// transfers. 0 is DefaultCreditBytes, or one chunk if larger.
	CreditBytes int
	// MaxChunkBytes is the largest payload of one message, at least one slice. 0 is
	// DefaultMaxChunkBytes, or one slice if larger. The gRPC server must accept messages of
	// Receiver.MaxMessageBytes.
	MaxChunkBytes int
	// MaxReservations bounds the reservations that have not ended, including quarantined
	// ones. 0 is 4096.
	MaxReservations int
	// MaxStreams bounds the streams of all sessions together. 0 is DefaultMaxStreams.
	MaxStreams int
	// ShutdownGrace is how long Run, after its context ends, waits for senders to
	// acknowledge before it cuts their streams. 0 is DefaultShutdownGrace.
	ShutdownGrace time.Duration
	// Logger says of which worker a line is. It is optional.
	Logger *slog.Logger
	// Tracer, if set, records a span for each transfer of a sampled request.
	Tracer trace.Tracer
}

func (c ReceiverConfig) withDefaults() ReceiverConfig {
	c.Lease = cmp.Or(c.Lease, DefaultLease)
	c.MaxIdle = cmp.Or(c.MaxIdle, DefaultMaxIdle)
	c.MaxChunkBytes = cmp.Or(c.MaxChunkBytes, max(DefaultMaxChunkBytes, c.Layout.SliceBytes))
	c.CreditBytes = cmp.Or(c.CreditBytes, max(DefaultCreditBytes, c.MaxChunkBytes))
	c.MaxReservations = cmp.Or(c.MaxReservations, defaultMaxReservations)
	c.MaxStreams = cmp.Or(c.MaxStreams, DefaultMaxStreams)
	c.ShutdownGrace = cmp.Or(c.ShutdownGrace, DefaultShutdownGrace)
	c.Logger = orDiscard(c.Logger)
	return c
}

// Validate reports every invalid field. Zero fields count as their defaults.
func (c ReceiverConfig) Validate() error {
	c = c.withDefaults()
	errs := []error{validateIdentity(c.WorkerID, c.Epoch), validateLayout(c.Layout)}
	if _, err := newCoding(c.Encoding, c.Layout); err != nil {
		errs = append(errs, err)
	}
	if len(c.Addresses) == 0 {
		errs = append(errs, errors.New("addresses: give at least one on which the gRPC server listens"))
	}
	if c.Lease < minTicketLease {
		errs = append(errs, fmt.Errorf("lease: %v is under %v", c.Lease, minTicketLease))
	}
	if c.ShutdownGrace < 0 || c.MaxIdle < 0 {
		errs = append(errs, errors.New("shutdown grace and max idle: must not be negative"))
	}
	if c.HolderBlocks < 0 {
		errs = append(errs, errors.New("holder blocks: must not be negative"))
	}
	if c.MaxChunkBytes < c.Layout.SliceBytes || c.MaxChunkBytes > largestChunkBytes {
		errs = append(errs, fmt.Errorf("max chunk bytes: %d is not between a slice of %d and 1 GiB", c.MaxChunkBytes, c.Layout.SliceBytes))
	}
	if c.CreditBytes < c.MaxChunkBytes || int64(c.CreditBytes) > largestCreditBytes {
		errs = append(errs, fmt.Errorf("credit bytes: %d is not between one chunk of %d and 1 TiB", c.CreditBytes, c.MaxChunkBytes))
	}
	if c.MaxReservations < 0 || c.MaxStreams < 0 {
		errs = append(errs, errors.New("max reservations and max streams: must not be negative"))
	}
	return errors.Join(errs...)
}

// CheckCreditBytes validates a value for ReceiverConfig.CreditBytes before the layout is
// known: from one chunk of DefaultMaxChunkBytes to 1 TiB. Layouts with larger slices need
// at least one slice.
func CheckCreditBytes(bytes int) error {
	if bytes < DefaultMaxChunkBytes || int64(bytes) > largestCreditBytes {
		return fmt.Errorf("%d is outside %d (one chunk) to %d (1 TiB)", bytes, DefaultMaxChunkBytes, int64(largestCreditBytes))
	}
	return nil
}

// SenderConfig configures a Sender. WorkerID, Epoch, Layout and Dial are required.
type SenderConfig struct {
	// WorkerID names this worker in SenderHello.
	WorkerID string
	// Epoch is the worker's incarnation epoch, drawn at random at each start.
	Epoch uint64
	// Layout describes the pages. Receivers with another layout refuse.
	Layout kvcache.Layout
	// Dial returns a new connection to a ticket's address, "host:port" or "unix:///path",
	// without waiting for it to be established. The Sender closes it. Dial should enable
	// keep-alives, since otherwise a vanished host is noticed only by AnswerTimeout. It
	// must not enable retries, nor limit sent messages below Receiver.MaxMessageBytes.
	Dial func(address string) (*grpc.ClientConn, error)
	// Registered refuses receivers that are not registered, or not at these addresses: nothing
	// else that a ticket names is dialled. It may wait a little, but not beyond its context.
	// Nil: all are taken.
	Registered func(ctx context.Context, receiver string, addresses ...string) error
	// MapPages maps the pages of receivers on this host that share them, so that KV is written
	// there. Nil: none are mapped. MapPages of this package is the real one.
	MapPages func(ctx context.Context, r MapRequest) (MappedPages, error)
	// OnlyMapped refuses receivers whose pages cannot be mapped.
	OnlyMapped bool
	// Streams is the number of streams per session, each on its own connection, 1 to 8. 0
	// is 1. More help where one connection, or the core that serves it, is the bottleneck.
	Streams int
	// IdleTimeout is how long a session without transfers stays open. 0 is
	// DefaultIdleTimeout.
	IdleTimeout time.Duration
	// ConnectTimeout bounds connecting to one address, up to its ReceiverHello. 0 is
	// DefaultConnectTimeout.
	ConnectTimeout time.Duration
	// AnswerTimeout is how long a receiver may take to answer Open, Commit or Abort, to
	// grant needed credit, or to take a message. After it, or after the shortest lease of
	// the session's tickets if that is shorter, the session and all its transfers are
	// broken. 0 is DefaultAnswerTimeout.
	AnswerTimeout time.Duration
	// Logger is optional.
	Logger *slog.Logger
}

func (c SenderConfig) withDefaults() SenderConfig {
	c.Streams = cmp.Or(c.Streams, 1)
	c.IdleTimeout = cmp.Or(c.IdleTimeout, DefaultIdleTimeout)
	c.ConnectTimeout = cmp.Or(c.ConnectTimeout, DefaultConnectTimeout)
	c.AnswerTimeout = cmp.Or(c.AnswerTimeout, DefaultAnswerTimeout)
	c.Logger = orDiscard(c.Logger)
	return c
}

// Validate reports every invalid field. Zero fields count as their defaults.
func (c SenderConfig) Validate() error {
	c = c.withDefaults()
	errs := []error{validateIdentity(c.WorkerID, c.Epoch), validateLayout(c.Layout)}
	if c.Dial == nil {
		errs = append(errs, errors.New("dial: must be set"))
	}
	if c.Streams < 0 || c.Streams > receiver.MaxStripes {
		errs = append(errs, fmt.Errorf("streams: %d is not between 1 and %d", c.Streams, receiver.MaxStripes))
	}
	if c.IdleTimeout < 0 || c.ConnectTimeout < 0 || c.AnswerTimeout < 0 {
		errs = append(errs, errors.New("timeouts: must not be negative"))
	}
	return errors.Join(errs...)
}

// Exchange is how a worker or a block store exchanges KV with others, as whoever starts it says.
type Exchange struct {
	// Dial connects to a receiver of KV. Each receiver gets KVConnections connections; 0 is
	// one.
	Dial          func(address string) (*grpc.ClientConn, error)
	KVConnections int
	// Registered refuses workers and stores that are not registered with these addresses for
	// KV. Nil: all will do.
	Registered func(ctx context.Context, worker string, kvAddresses ...string) error
	// KVMaxStreams bounds the streams that bring KV; 0 is DefaultMaxStreams.
	KVMaxStreams int
	// KVNoLoans makes KV come over connections even from those whose pages are in the same
	// memory.
	KVNoLoans bool
}

func validateIdentity(workerID string, epoch uint64) error {
	if workerID == "" || epoch == 0 {
		return errors.New("worker id and epoch: must be set")
	}
	if len(workerID) > wire.MaxNameBytes {
		return fmt.Errorf("worker id: %d bytes are more than %d", len(workerID), wire.MaxNameBytes)
	}
	return nil
}

func validateLayout(l kvcache.Layout) error {
	if l.Layers <= 0 || l.SliceBytes <= 0 {
		return fmt.Errorf("layout: %d layers of %d bytes a slice: both must be above 0", l.Layers, l.SliceBytes)
	}
	return nil
}

func orDiscard(l *slog.Logger) *slog.Logger {
	if l == nil {
		return slog.New(slog.DiscardHandler)
	}
	return l
}
