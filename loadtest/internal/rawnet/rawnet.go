// Package rawnet makes TCP and Unix connections whose reads and writes keep the
// processor.
//
// Before each system call Go prepares to hand its processor to another thread in case the
// call blocks. With one processor and thousands of short calls a second, the monitor then
// wakes every 20 µs and often does hand it over. Calls on a nonblocking socket take
// microseconds, so that is wasted.
//
// Only loadtest imports it. It starts no goroutines. Only on Linux does it differ from net.
package rawnet

import (
	"context"
	"net"
	"strings"
)

// Dial connects to "host:port" or "unix:///path".
func Dial(ctx context.Context, address string) (net.Conn, error) {
	network := "tcp"
	if path, ok := strings.CutPrefix(address, "unix://"); ok {
		network, address = "unix", path
	}
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return Conn(conn), nil
}

// Listener accepts such connections. It takes over l.
func Listener(l net.Listener) net.Listener { return listener{l} }

type listener struct{ net.Listener }

func (l listener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return Conn(conn), nil
}
