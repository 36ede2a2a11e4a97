package signals

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/tandem-serving/tandem/pkg/identity"
	"github.com/tandem-serving/tandem/pkg/telemetry/logthrottle"
)

const (
	// connectTimeout bounds one try to connect to one server.
	connectTimeout = 2 * time.Second
	// reconnectWait lies between tries, with as much again of jitter at most.
	reconnectWait = 250 * time.Millisecond
	// pingInterval and pingsOut find a broken connection within ten seconds.
	pingInterval = 5 * time.Second
	pingsOut     = 2
	// writeTimeout is how long a server may not take bytes.
	writeTimeout = 2 * time.Second
	// sendQueue is how many signals wait to be sent.
	sendQueue = 1024
	// closeTimeout bounds the wait for the last signals.
	closeTimeout = time.Second
	// sayEvery is how often something else that is wrong with a connection is logged at most, and sayBurst how
	// many times more: a first reason, such as a connection that was cut, may hide another.
	sayEvery = time.Minute
	sayBurst = 3
	// saidMost is how many different errors are remembered as said.
	saidMost = 64
)

// Config says which servers to use.
type Config struct {
	// URLs of NATS servers, like "nats://127.0.0.1:4222"; any of them will do.
	URLs []string
	// User, and the file with its password, or a file of credentials with a key that signs the
	// server's nonce, where NATS asks for them. Files are read with each connection.
	User, PasswordFile, CredentialsFile string
	// TLS has the files for tls:// URLs. The zero value: the system's authorities and no
	// certificate.
	TLS identity.Config
	// Name of this client, for the server's own reports.
	Name string
	// Registerer gets the metrics. Several connections may share one. Nil: none.
	Registerer prometheus.Registerer
	// Tracer makes the spans of taking in signals that sampled requests caused.
	// Nil: none.
	Tracer trace.Tracer
}

// Conn is a connection to NATS that comes back by itself, for ever. It is safe
// for concurrent use.
type Conn struct {
	nats    *nats.Conn
	log     *slog.Logger
	metrics *metrics
	tracer  trace.Tracer

	outgoing chan outgoing
	stop     context.CancelFunc
	stopping context.Context
	sender   sync.WaitGroup
	closed   chan struct{} // closed when the NATS client has ended
	logSlow  sync.Once     // of a slow consumer
	close    sync.Once

	mu     sync.Mutex      // for what follows
	said   map[string]bool // by withoutDigits, what was said since the last connection was made
	saidAt logthrottle.Throttle
}

// outgoing is a signal on its way.
type outgoing struct {
	kind    string
	subject string
	payload []byte
	// traceParent is the span that caused it; empty: none that is sampled.
	traceParent string
}

// Connect connects to one of the servers. If none answers, that is no error:
// the connection is made once one does. The error is only about the
// configuration. The caller closes the connection.
func Connect(cfg Config, log *slog.Logger) (*Conn, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	c := &Conn{
		log:      log.With(slog.String("nats", WithoutPasswords(cfg.URLs))),
		metrics:  newMetrics(cfg.Registerer),
		tracer:   cfg.Tracer,
		outgoing: make(chan outgoing, sendQueue),
		closed:   make(chan struct{}),
		said:     make(map[string]bool),
		saidAt:   logthrottle.Throttle{Every: sayEvery, Burst: sayBurst},
	}
	c.stopping, c.stop = context.WithCancel(context.Background())
	options, err := cfg.security(log)
	if err != nil {
		c.stop()
		return nil, err
	}
	connection, err := nats.Connect(strings.Join(cfg.URLs, ","), append(options,
		nats.Name(cfg.Name),
		nats.RetryOnFailedConnect(true),
		nats.MaxReconnects(-1),
		nats.IgnoreAuthErrorAbort(),
		nats.ReconnectWait(reconnectWait),
		nats.ReconnectJitter(reconnectWait, reconnectWait),
		// Negative: nothing is kept while there is no connection. A load report
		// that comes seconds late is worse than none.
		nats.ReconnectBufSize(-1),
		nats.Timeout(connectTimeout),
		nats.PingInterval(pingInterval),
		nats.MaxPingsOutstanding(pingsOut),
		nats.FlusherTimeout(writeTimeout),
		nats.ConnectHandler(func(*nats.Conn) { c.up("connected to NATS") }),
		nats.ReconnectHandler(func(*nats.Conn) { c.up("connected to NATS again") }),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) { c.down(err) }),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) { c.sayWhy(err) }),
		nats.ErrorHandler(c.failed),
		nats.ClosedHandler(func(*nats.Conn) { close(c.closed) }),
	)...)
	if err != nil {
		c.stop()
		return nil, fmt.Errorf("connect to NATS at %s: %w: check the address", WithoutPasswords(cfg.URLs), err)
	}
	c.nats = connection
	if !connection.IsConnected() {
		c.log.Warn("NATS does not answer: continuing without its signals until it does")
	}
	c.sender.Go(c.send)
	return c, nil
}

// Validate checks a configuration.
func (cfg Config) Validate() error {
	if len(cfg.URLs) == 0 {
		return errors.New("no NATS server is configured: give at least one, such as nats://127.0.0.1:4222")
	}
	if err := cfg.validateURLs(); err != nil {
		return fmt.Errorf("NATS server %w", err)
	}
	return nil
}

// validateURLs checks the URLs that are given, which may be none.
func (cfg Config) validateURLs() error {
	schemes := []string{"nats", "tls", "ws", "wss"}
	for _, address := range cfg.URLs {
		parsed, err := url.Parse(address)
		if err != nil || parsed.Host == "" || !slices.Contains(schemes, parsed.Scheme) || strings.Contains(address, ",") {
			return fmt.Errorf("%q is not a URL such as nats://127.0.0.1:4222", withoutPassword(address))
		}
	}
	return nil
}

// Connected says whether a server answers now.
func (c *Conn) Connected() bool {
	return c.nats.IsConnected()
}

// Close sends what waits, for at most a second, and ends the connection and its
// goroutines. Publishers of a closed connection drop all signals.
func (c *Conn) Close() {
	c.close.Do(func() {
		c.stop()
		c.sender.Wait()
		if c.nats.IsConnected() {
			// Signals are advice: those that cannot go out now are lost.
			_ = c.nats.FlushTimeout(closeTimeout)
		}
		c.nats.Close()
		<-c.closed
	})
}

// enqueue hands a signal to the sender, without waiting.
func (c *Conn) enqueue(signal outgoing) {
	if c.stopping.Err() != nil {
		c.metrics.dropped.WithLabelValues(signal.kind, "closed").Inc()
		return
	}
	select {
	case c.outgoing <- signal:
	default:
		c.metrics.dropped.WithLabelValues(signal.kind, "queue_full").Inc()
	}
}

// send passes signals to the NATS client, which may block while a server does
// not take bytes.
func (c *Conn) send() {
	for {
		select {
		case signal := <-c.outgoing:
			c.publish(signal)
		case <-c.stopping.Done():
			for {
				select {
				case signal := <-c.outgoing:
					c.publish(signal)
				default:
					return
				}
			}
		}
	}
}

func (c *Conn) publish(signal outgoing) {
	// Without a connection the client reports a full buffer; asking first keeps
	// what it would still take into its socket from being sent late.
	if !c.nats.IsConnected() {
		c.metrics.dropped.WithLabelValues(signal.kind, "disconnected").Inc()
		c.sayWhy(c.nats.LastError()) // the client reports no handshake that failed
		return
	}
	if err := c.nats.PublishMsg(c.message(signal)); err != nil {
		c.metrics.dropped.WithLabelValues(signal.kind, "failed").Inc()
		return
	}
	c.metrics.sent.WithLabelValues(signal.kind).Inc()
}

func (c *Conn) up(message string) {
	c.metrics.connects.Inc()
	c.mu.Lock()
	clear(c.said)
	c.mu.Unlock()
	c.log.Info(message)
}

// sayWhy logs why there is no connection.
func (c *Conn) sayWhy(err error) {
	if err != nil && !errors.Is(err, nats.ErrNoServers) {
		c.sayOnce("cannot connect to NATS: trying again", err)
	}
}

// sayOnce logs an error, unless it has since the last connection was made.
func (c *Conn) sayOnce(what string, err error) {
	if c.stopping.Err() != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if why := what + withoutDigits(err.Error()); !c.said[why] {
		if _, due := c.saidAt.Due(time.Now()); due {
			if len(c.said) == saidMost {
				clear(c.said)
			}
			c.said[why] = true
			c.log.Warn(what, slog.Any("error", err))
		}
	}
}

// withoutDigits is a reason as it is compared: the same one has another address with each server, another
// local port with each connection, and for a certificate that has expired another time.
func withoutDigits(why string) string {
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return -1
		}
		return r
	}, why)
}

func (c *Conn) down(err error) {
	if c.stopping.Err() != nil {
		return
	}
	attributes := []any{}
	if err != nil {
		attributes = append(attributes, slog.Any("error", err))
	}
	c.log.Warn("NATS is away: continuing without its signals until it is back", attributes...)
}

// failed is told of what goes wrong in the background.
func (c *Conn) failed(connection *nats.Conn, subscription *nats.Subscription, err error) {
	if errors.Is(err, nats.ErrSlowConsumer) {
		c.metrics.slow.Inc()
		if subscription != nil {
			c.logSlow.Do(func() {
				c.log.Warn("signals arrive faster than they are read, and some are dropped; logged once",
					slog.String("subject", subscription.Subject))
			})
		}
		return
	}
	if !connection.IsConnected() {
		c.sayWhy(err)
		return
	}
	c.sayOnce("NATS reports an error", err)
}

// Check connects to one of the servers, once, and says why it cannot. It takes until ctx's deadline
// at most, which the servers share, or connectTimeout for each.
func Check(ctx context.Context, cfg Config, log *slog.Logger) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	options, err := cfg.security(log)
	if err != nil {
		return err
	}
	each := connectTimeout
	if until, ok := ctx.Deadline(); ok {
		each = min(each, time.Until(until)/time.Duration(len(cfg.URLs)))
	}
	closed := make(chan struct{})
	connection, err := nats.Connect(strings.Join(cfg.URLs, ","), append(options, nats.Name(cfg.Name), nats.NoReconnect(), nats.Timeout(max(each, time.Millisecond)),
		nats.ClosedHandler(func(*nats.Conn) { close(closed) }))...)
	if err != nil {
		return fmt.Errorf("connect to NATS at %s: %w", WithoutPasswords(cfg.URLs), err)
	}
	defer func() {
		connection.Close()
		<-closed
	}()
	if err := connection.FlushWithContext(ctx); err != nil {
		return fmt.Errorf("ask NATS at %s: %w", WithoutPasswords(cfg.URLs), err)
	}
	return nil
}
