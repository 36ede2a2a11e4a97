package kvtransfer

import (
	"net"

	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/services/kvtransfer/internal/wire"
)

const (
	// windowBytes is what a connection, and each stream of it, may have on its way
	// that its receiver has not taken. It is below DefaultCreditBytes, so that not
	// even a sender that minds no credit makes the receiver hold more.
	windowBytes = 16 << 20
	// bufferBytes is what one system call reads or writes.
	bufferBytes = 256 << 10
)

// Serving returns cfg with what a gRPC server needs that Receivers are registered
// in: the codec, the windows and the buffers. MaxReceiveBytes stays the caller's to
// raise to Receiver.MaxMessageBytes where that is over rpc.DefaultMaxReceiveBytes.
func Serving(cfg rpc.ServerConfig) rpc.ServerConfig {
	cfg.Codec = wire.Codec()
	cfg.WindowBytes, cfg.BufferBytes = windowBytes, bufferBytes
	cfg.BufferPool = wire.Frames(windowBytes)
	return cfg
}

// Dialing returns cfg with what the connections of a Sender need: the same.
func Dialing(cfg rpc.ClientConfig) rpc.ClientConfig {
	cfg.Codec = wire.Codec()
	cfg.WindowBytes, cfg.BufferBytes = windowBytes, bufferBytes
	cfg.BufferPool = wire.Frames(windowBytes)
	return cfg
}

// Listen is rpc.Listen for a server that Receivers are registered in.
func Listen(address string) (net.Listener, error) { return rpc.Listen(address) }
