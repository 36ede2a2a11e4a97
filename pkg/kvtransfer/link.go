package kvtransfer

import (
	"net"

	"github.com/tandem-serving/tandem/pkg/kvtransfer/internal/transport"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/wire"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

const (
	// windowBytes is what a connection, and each stream of it, may have on its way
	// that its receiver has not taken. It is no more than DefaultCreditBytes, so that not
	// even a sender that minds no credit makes the receiver hold more, and few enough
	// that buffers are still in the processor's caches when they are used again.
	windowBytes = 4 << 20
	// keptBytes is how much of what was received into is kept for what comes next:
	// what a few connections hold at their fullest, messages that are being read
	// beside their windows.
	keptBytes = 4 * windowBytes
	// bufferBytes is what one system call writes.
	bufferBytes = 256 << 10
)

// Serving returns cfg with what a gRPC server needs that Receivers are registered
// in: the codec, the windows and the buffers. It is to serve on listeners of Listen;
// on others it reads in small pieces. MaxReceiveBytes stays the caller's to raise to
// Receiver.MaxMessageBytes where that is over rpc.DefaultMaxReceiveBytes.
func Serving(cfg rpc.ServerConfig) rpc.ServerConfig {
	cfg.Codec = wire.Codec()
	cfg.WindowBytes, cfg.BufferBytes, cfg.UnbufferedReads = windowBytes, bufferBytes, true
	cfg.BufferPool = wire.Frames(keptBytes)
	return cfg
}

// Dialing returns cfg with what the connections of a Sender need: the same codec and
// windows, and sockets of a size that suits their peer's machine. A Dialer that cfg
// has stays.
func Dialing(cfg rpc.ClientConfig) rpc.ClientConfig {
	cfg.Codec = wire.Codec()
	cfg.WindowBytes, cfg.BufferBytes = windowBytes, bufferBytes
	if cfg.Dialer == nil {
		cfg.Dialer = transport.Dial
	}
	return cfg
}

// Listen is rpc.Listen for a server of Serving.
func Listen(address string) (net.Listener, error) {
	l, err := rpc.Listen(address)
	if err != nil {
		return nil, err
	}
	return transport.Listen(l), nil
}
