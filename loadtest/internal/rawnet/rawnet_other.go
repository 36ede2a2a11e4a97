//go:build !linux

package rawnet

import "net"

// Conn is conn.
func Conn(conn net.Conn) net.Conn { return conn }
