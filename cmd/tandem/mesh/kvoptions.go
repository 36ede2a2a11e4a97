package mesh

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"github.com/tandem-serving/tandem/services/kvtransfer"
)

// Transports of KV that can be asked for.
const (
	TransportAuto = "auto"
	TransportTCP  = "tcp"
	TransportUnix = "unix"
)

// Values of --kv-socket beside a path.
const (
	SocketAuto = "auto"
	SocketOff  = "off"
)

// KVOptions say how KV gets from worker to worker.
type KVOptions struct {
	// Transport is TransportAuto, or the only one that is listened on and sent over. With
	// another than TransportAuto no worker lends KV to one in the same memory.
	Transport string
	// Socket is SocketAuto, SocketOff or the path of the Unix socket on which KV is
	// received.
	Socket string
	// Connections are how many join a sender of KV, worker or block store, to a receiver, 1
	// to maxKVConnections.
	Connections int
	// MaxStreams and MaxConnections bound what a receiver of KV has open, of all senders
	// together: maxKVConnections streams at least, and maxKVConnections more connections
	// than streams, since a sender is connected before an idle one is let go for it.
	MaxStreams, MaxConnections int
}

// maxKVConnections is the most that the protocol allows between two workers.
const maxKVConnections = 8

func (k *KVOptions) registerFlags(fs *pflag.FlagSet) {
	fs.StringVar(&k.Transport, "kv-transport", TransportAuto, "how KV gets from worker to worker: auto (within the device where both are in one process on one GPU, a Unix socket on the same host, else TCP), tcp or unix")
	fs.StringVar(&k.Socket, "kv-socket", SocketAuto, "Unix socket on which a worker receives KV: a path, auto (in a private folder that goes with the process) or off")
	fs.IntVar(&k.MaxStreams, "kv-max-streams", kvtransfer.DefaultMaxStreams, "streams of KV that a worker or a block store receives at a time, of all senders together, 8 or more: for one more, the sender that was idle for longest is let go")
	fs.IntVar(&k.MaxConnections, "kv-max-connections", kvtransfer.DefaultMaxConnections, "connections on which a worker or a block store receives KV at a time, of all senders together, 8 more than --kv-max-streams at least, so that a sender gets in for which an idle one is let go: one more is closed at once")
	fs.IntVar(&k.Connections, "kv-connections", 1, "connections over which a worker or a block store sends KV to each that receives it, 1 to 8: more can pay where one core cannot fill the network")
}

func (k *KVOptions) validate() error {
	switch {
	case k.Transport != TransportAuto && k.Transport != TransportTCP && k.Transport != TransportUnix:
		return fmt.Errorf("--kv-transport: %q is none of %s, %s and %s", k.Transport, TransportAuto, TransportTCP, TransportUnix)
	case k.Connections < 1 || k.Connections > maxKVConnections:
		return fmt.Errorf("--kv-connections: %d is outside 1 to %d", k.Connections, maxKVConnections)
	case k.MaxStreams < maxKVConnections:
		return fmt.Errorf("--kv-max-streams: %d is less than one sender may have, %d", k.MaxStreams, maxKVConnections)
	case k.MaxConnections < k.MaxStreams || k.MaxConnections-k.MaxStreams < maxKVConnections:
		return fmt.Errorf("--kv-max-connections: %d is less than %d more than --kv-max-streams, %d: each stream has one of its own, and a sender that comes needs up to %d before an idle one can be let go for it",
			k.MaxConnections, maxKVConnections, k.MaxStreams, maxKVConnections)
	case k.Socket == SocketAuto || k.Socket == SocketOff:
	case !filepath.IsAbs(k.Socket):
		return fmt.Errorf("--kv-socket: %q is neither %s nor %s nor an absolute path", k.Socket, SocketAuto, SocketOff)
	}
	if k.Transport == TransportUnix && k.Socket == SocketOff {
		return errors.New("--kv-socket: off leaves nothing to --kv-transport=unix: pass auto or a path")
	}
	return nil
}

// lends says whether KV may stay in a memory that two workers share.
func (k KVOptions) lends() bool { return k.Transport == TransportAuto }

// sockets says whether KV may come over a Unix socket, and whether it must.
func (k KVOptions) sockets() (wanted, needed bool) {
	named := k.Socket != SocketAuto && k.Socket != SocketOff
	wanted = k.Transport != TransportTCP && k.Socket != SocketOff
	return wanted, wanted && (named || k.Transport == TransportUnix)
}

// checkKVPlace refuses what --kv-listen and --kv-advertise cannot mean.
func checkKVPlace(listen, advertise string) error {
	if strings.HasPrefix(listen, unixScheme) {
		return errors.New("--kv-listen: give host:port; the Unix socket is --kv-socket")
	}
	if listen != "" {
		if _, _, err := net.SplitHostPort(listen); err != nil {
			return fmt.Errorf("--kv-listen: %q is not host:port", listen)
		}
	}
	if strings.HasPrefix(advertise, unixScheme) {
		return errors.New("--kv-advertise: give host:port; the Unix socket is --kv-socket")
	}
	return checkAdvertise("--kv-advertise", advertise)
}

// unixScheme begins the addresses of Unix sockets.
const unixScheme = "unix://"
