package kvtransfer

import (
	"cmp"
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

// What a zero field of a configuration stands for.
const (
	// DefaultLease is short: it bounds how long a dead peer holds blocks.
	DefaultLease = 10 * time.Second
	// DefaultCreditBytes covers what a fast network has on its way: 40 GB/s over a
	// round trip of 100 µs. What is on its way is before whatever comes next, so more
	// makes short transfers wait behind long ones and nothing faster.
	DefaultCreditBytes = 4 << 20
	// DefaultMaxChunkBytes stays, with its header, within the 1 MiB tier of gRPC's
	// buffer pool.
	DefaultMaxChunkBytes = 1<<20 - 4<<10
	// DefaultMaxReservations bounds the table of a receiver.
	DefaultMaxReservations = 4096
	// DefaultMaxStreams bounds the streams of a receiver.
	DefaultMaxStreams = 1024
	// DefaultShutdownGrace is how long a receiver waits for senders to acknowledge
	// its end.
	DefaultShutdownGrace = 2 * time.Second
	// DefaultAnswerTimeout is how long a sender waits for an answer.
	DefaultAnswerTimeout = 10 * time.Second
	// DefaultConnectTimeout is for one address.
	DefaultConnectTimeout = 3 * time.Second
	// DefaultIdleTimeout keeps a connection while traffic is thin.
	DefaultIdleTimeout = 5 * time.Minute
)

// What a hello and a ticket may say, which both sides check.
const (
	largestChunkBytes  = 1 << 30
	largestCreditBytes = 1 << 40
	// maxTicketBlocks bounds what one ticket makes a Sender keep.
	maxTicketBlocks = 1 << 20
	// minTicketLease bounds how often a ticket can make a Sender renew.
	minTicketLease = 100 * time.Millisecond
)

// ReceiverConfig configures a Receiver. WorkerID, Addresses and Layout have to
// be set; so has Epoch, to the worker's incarnation epoch.
type ReceiverConfig struct {
	// WorkerID names this worker in tickets and ReceiverHello.
	WorkerID string
	// Epoch is drawn at random at every start of the worker.
	Epoch uint64
	// Addresses are where the gRPC server listens that the Receiver is registered
	// in, best first: "unix:///path" or "host:port".
	Addresses []string
	// Layout describes the pages. Senders of another layout are refused.
	Layout kvcache.Layout
	// Lease is how long a sender may be silent, 100 ms at least. 0 is DefaultLease.
	Lease time.Duration
	// Encoding is how payloads are asked for. Zero asks for them as pages have them.
	Encoding kvtransferv1.Encoding
	// NoLoans lets nobody lend slices whose pages are in the same memory (engine.Lending):
	// all payloads go over a connection. They do as well where Encoding asks for one.
	NoLoans bool
	// CreditBytes is the payload that may be on its way on one stream, over all
	// its transfers. A session of several streams has as much on each. 0 is
	// DefaultCreditBytes, or one chunk if that is more.
	CreditBytes int
	// MaxChunkBytes is the largest payload of one message, a slice at least. 0 is
	// DefaultMaxChunkBytes, or one slice if that is more. The gRPC server has to
	// accept messages of Receiver.MaxMessageBytes.
	MaxChunkBytes int
	// MaxReservations bounds the reservations that are not over, quarantined ones
	// included. 0 is DefaultMaxReservations.
	MaxReservations int
	// MaxStreams bounds the streams, those of all sessions together. 0 is DefaultMaxStreams.
	MaxStreams int
	// ShutdownGrace is how long Run, once its context is done, waits for senders to
	// acknowledge before it ends their streams. 0 is DefaultShutdownGrace.
	ShutdownGrace time.Duration
	// Logger may be nil: then nothing is logged.
	Logger *slog.Logger
	// Tracer makes a span of each transfer whose sender says that its request is
	// sampled. Nil: none.
	Tracer trace.Tracer
}

func (c ReceiverConfig) withDefaults() ReceiverConfig {
	c.Lease = cmp.Or(c.Lease, DefaultLease)
	c.MaxChunkBytes = cmp.Or(c.MaxChunkBytes, max(DefaultMaxChunkBytes, c.Layout.SliceBytes))
	c.CreditBytes = cmp.Or(c.CreditBytes, max(DefaultCreditBytes, c.MaxChunkBytes))
	c.MaxReservations = cmp.Or(c.MaxReservations, DefaultMaxReservations)
	c.MaxStreams = cmp.Or(c.MaxStreams, DefaultMaxStreams)
	c.ShutdownGrace = cmp.Or(c.ShutdownGrace, DefaultShutdownGrace)
	c.Logger = orDiscard(c.Logger)
	return c
}

// Validate says what is wrong, zero fields being their defaults.
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
	if c.ShutdownGrace < 0 {
		errs = append(errs, errors.New("shutdown grace: must not be negative"))
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

// CheckCreditBytes checks what is to be a ReceiverConfig's CreditBytes before its layout
// is known: one chunk of DefaultMaxChunkBytes at least, and 1 TiB at most. A receiver of
// larger slices needs one of those.
func CheckCreditBytes(bytes int) error {
	if bytes < DefaultMaxChunkBytes || int64(bytes) > largestCreditBytes {
		return fmt.Errorf("%d is outside %d (one chunk) to %d (1 TiB)", bytes, DefaultMaxChunkBytes, int64(largestCreditBytes))
	}
	return nil
}

// SenderConfig configures a Sender. WorkerID, Epoch, Layout and Dial have to be
// set.
type SenderConfig struct {
	// WorkerID names this worker in SenderHello.
	WorkerID string
	// Epoch is drawn at random at every start of the worker.
	Epoch uint64
	// Layout describes the pages. Receivers of another layout refuse.
	Layout kvcache.Layout
	// Dial makes a connection of its own to an address of a ticket, "host:port" or
	// "unix:///path"; the Sender closes it. It does not wait for the connection. It
	// should ask for keep-alives, since a host that vanishes without a word is else
	// noticed only when an answer is due (AnswerTimeout), and must not retry or
	// bound the size of what is sent below Receiver.MaxMessageBytes.
	Dial func(address string) (*grpc.ClientConn, error)
	// Streams is how many streams a session with a receiver has, each on a connection
	// of its own: 1 to 8. 0 is 1. More carry more where one connection, or the one
	// core that serves it, is what bounds the speed.
	Streams int
	// IdleTimeout closes a session without transfers. 0 is DefaultIdleTimeout.
	IdleTimeout time.Duration
	// ConnectTimeout bounds connecting to one address and its ReceiverHello. 0 is
	// DefaultConnectTimeout.
	ConnectTimeout time.Duration
	// AnswerTimeout is how long a receiver may take to answer Open, Commit or
	// Abort, to grant credit that is waited for, or to take a message. After it, or
	// after the shortest lease of the session's tickets if that is less, the session is
	// broken, with every transfer in it. 0 is DefaultAnswerTimeout.
	AnswerTimeout time.Duration
	// Logger may be nil: then nothing is logged.
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

// Validate says what is wrong, zero fields being their defaults.
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
