package kvtransfer

import (
	"net"

	"github.com/tandem-serving/tandem/pkg/kvtransfer/internal/transport"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/wire"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

const (
	// windowBytes is the HTTP/2 flow-control window of a connection and of each of its
	// streams. At most DefaultCreditBytes, so that a sender that ignores credit cannot make
	// the receiver hold more, and small enough that reused buffers are still in the
	// processor's caches.
	windowBytes = 4 << 20
	// keptBytes is how much free receive buffer is kept: the most that a few connections
	// use, including messages being read beyond their windows.
	keptBytes = 4 * windowBytes
	// bufferBytes is the size of one write system call.
	bufferBytes = 256 << 10
)

// Serving returns cfg with the codec, windows and buffers that a gRPC server with Receivers
// needs. It should serve on listeners of Listen; on others it reads in small pieces. The
// caller must raise MaxReceiveBytes to Receiver.MaxMessageBytes if that exceeds
// rpc.DefaultMaxReceiveBytes.
func Serving(cfg rpc.ServerConfig) rpc.ServerConfig {
	cfg.Codec = wire.Codec()
	cfg.WindowBytes, cfg.BufferBytes, cfg.UnbufferedReads = windowBytes, bufferBytes, true
	cfg.BufferPool = wire.Frames(keptBytes)
	return cfg
}

// Dialing returns cfg with what a Sender's connections need: the same codec and windows,
// and socket buffers sized for the peer's location. A Dialer set in cfg is kept.
func Dialing(cfg rpc.ClientConfig) rpc.ClientConfig {
	cfg.Codec = wire.Codec()
	cfg.WindowBytes, cfg.BufferBytes = windowBytes, bufferBytes
	if cfg.Dialer == nil {
		cfg.Dialer = transport.Dial
	}
	return cfg
}

// Listen is rpc.Listen for servers configured by Serving.
func Listen(address string) (net.Listener, error) {
	l, err := rpc.Listen(address)
	if err != nil {
		return nil, err
	}
	return transport.Listen(l), nil
}
