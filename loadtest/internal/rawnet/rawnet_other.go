//go:build !linux

package rawnet

import "net"

// Conn returns conn.
func Conn(conn net.Conn) net.Conn { return conn }
