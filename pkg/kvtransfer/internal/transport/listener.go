package transport

import "net"

// Listen wraps a listener so that its connections read ahead; gRPC should read them
// unbuffered. Only one goroutine at a time may read from a connection, as gRPC does.
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
