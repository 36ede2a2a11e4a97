package kvtransfer

import (
	"fmt"
	"path/filepath"
	"slices"

	"github.com/spf13/pflag"

	"github.com/tandem-serving/tandem/pkg/kvtransfer/receiver"
)

// Values of --kv-transport.
const (
	TransportAuto = "auto"
	TransportTCP  = "tcp"
	TransportUnix = "unix"
	TransportShm  = "shm"
)

// Values of --kv-socket other than a path.
const (
	SocketAuto = "auto"
	SocketOff  = "off"
)

// Config is the operator's choice of how KV moves between workers.
type Config struct {
	// Transport is TransportAuto or the only transport to use. Unless it is TransportAuto,
	// workers in one memory do not lend KV to each other. With TransportShm messages go over a
	// Unix socket, and KV too where pages cannot be mapped.
	Transport string
	// Socket is SocketAuto, SocketOff or the path of the Unix socket to receive KV on.
	Socket string
	// Connections is the number of connections from one sender (worker or block store) to
	// one receiver, 1 to receiver.MaxStripes.
	Connections int
	// MaxStreams and MaxConnections bound a KV receiver over all senders. MaxStreams is at
	// least receiver.MaxStripes. MaxConnections exceeds it by at least receiver.MaxStripes,
	// since a new sender connects before an idle one is closed for it.
	MaxStreams, MaxConnections int
}

// RegisterFlags registers the flags with their defaults.
func (c *Config) RegisterFlags(fs *pflag.FlagSet) {
	fs.StringVar(&c.Transport, "kv-transport", TransportAuto, "transport of KV between workers: auto (within the GPU if one process runs both there; on one host a Unix socket; otherwise TCP), tcp, unix, or shm (prefill workers of one host write into the decode worker's pages where both can; otherwise a Unix socket)")
	fs.StringVar(&c.Socket, "kv-socket", SocketAuto, "Unix socket on which a worker receives KV: an absolute path, auto (in a private temporary folder) or off")
	fs.IntVar(&c.MaxStreams, "kv-max-streams", DefaultMaxStreams, "maximum streams of KV that a worker or block store receives at a time, 8 or more; to make place for one more, it disconnects the longest idle sender")
	fs.IntVar(&c.MaxConnections, "kv-max-connections", DefaultMaxConnections, "maximum connections on which a worker or block store receives KV at a time, at least 8 more than --kv-max-streams; it closes further ones at once")
	fs.IntVar(&c.Connections, "kv-connections", 1, "connections over which a worker or block store sends KV to each receiver, 1 to 8; more can help if one core cannot fill the network")
}

// Validate reports the first invalid flag.
func (c *Config) Validate() error {
	switch {
	case !slices.Contains([]string{TransportAuto, TransportTCP, TransportUnix, TransportShm}, c.Transport):
		return fmt.Errorf("--kv-transport: %q is none of %s, %s, %s and %s", c.Transport, TransportAuto, TransportTCP, TransportUnix, TransportShm)
	case c.Connections < 1 || c.Connections > receiver.MaxStripes:
		return fmt.Errorf("--kv-connections: %d is outside 1 to %d", c.Connections, receiver.MaxStripes)
	case c.MaxStreams < receiver.MaxStripes:
		return fmt.Errorf("--kv-max-streams: %d is less than the streams that one sender may have, %d", c.MaxStreams, receiver.MaxStripes)
	case c.MaxConnections < c.MaxStreams || c.MaxConnections-c.MaxStreams < receiver.MaxStripes:
		return fmt.Errorf("--kv-max-connections: %d is less than %d more than --kv-max-streams, %d: each stream has its own connection, and a new sender needs up to %d before an idle one can be disconnected for it",
			c.MaxConnections, receiver.MaxStripes, c.MaxStreams, receiver.MaxStripes)
	case c.Socket == SocketAuto || c.Socket == SocketOff:
	case !filepath.IsAbs(c.Socket):
		return fmt.Errorf("--kv-socket: %q is neither %s nor %s nor an absolute path", c.Socket, SocketAuto, SocketOff)
	}
	if c.socketsOnly() && c.Socket == SocketOff {
		return fmt.Errorf("--kv-socket: off contradicts --kv-transport=%s: pass auto or a path", c.Transport)
	}
	return nil
}

// Lends reports whether workers that share memory may lend KV.
func (c *Config) Lends() bool { return c.Transport == TransportAuto }

// Shares reports whether decode workers share their pages with prefill workers of the same host.
// Only who asks for it has that: a prefill worker can then read and write all pages
// (docs/decisions/0067-shared-memory.md).
func (c *Config) Shares() bool { return c.Transport == TransportShm }

// socketsOnly reports that nothing comes over TCP.
func (c *Config) socketsOnly() bool {
	return c.Transport == TransportUnix || c.Transport == TransportShm
}

// Reaches reports whether KV may go to an address: a Unix socket or another one.
func (c *Config) Reaches(isUnix bool) bool {
	if isUnix {
		return c.Transport != TransportTCP
	}
	return !c.socketsOnly()
}

// Sockets reports whether to receive KV on a Unix socket, and whether failing to is an
// error.
func (c *Config) Sockets() (wanted, needed bool) {
	named := c.Socket != SocketAuto && c.Socket != SocketOff
	wanted = c.Transport != TransportTCP && c.Socket != SocketOff
	return wanted, wanted && (named || c.socketsOnly())
}
