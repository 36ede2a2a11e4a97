// Package rawnet makes TCP and Unix connections whose reads and writes hold on to
// the processor.
//
// Before each system call Go prepares to lose its processor to another thread, in
// case the call blocks; with one processor and thousands of short reads and writes a
// second, a monitor then wakes every 20 µs to look, and often does hand it over. The
// calls of a socket that does not block take microseconds, so there is nothing to
// hand over for.
//
// It starts no goroutines. Only on Linux is anything
// different from net.
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
