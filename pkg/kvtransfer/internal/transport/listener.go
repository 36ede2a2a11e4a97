package transport

import "net"

// Listen wraps a listener: its connections read ahead, so that gRPC does best to
// read from them without a buffer. Only one goroutine at a time may read from such a
// connection, which is what gRPC does.
func Listen(l net.Listener) net.Listener { return listener{l} }

type listener struct{ net.Listener }

// Accept implements net.Listener.
func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return readAhead(c), nil
}
