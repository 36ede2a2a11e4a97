package rpc

import (
	"errors"
	"io"
	"net"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/credentials"
)

// meteredCredentials are the credentials of a server with limits: after the
// handshake of the inner ones, the connection is metered.
type meteredCredentials struct {
	credentials.TransportCredentials
	limiter *limiter
}

// meteredAuth says to the tap which connection a call is on.
type meteredAuth struct {
	credentials.AuthInfo
	conn *meteredConn
}

var errConnections = errors.New("too many connections: --router-max-connections allows no more")

// ServerHandshake shakes hands and begins to meter.
func (m meteredCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, auth, err := m.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	metered, ok := m.limiter.admit(conn)
	if !ok {
		refuse(conn)
		return nil, nil, errConnections
	}
	return metered, meteredAuth{AuthInfo: auth, conn: metered}, nil
}

// Clone copies the credentials, which have no state of their own.
func (m meteredCredentials) Clone() credentials.TransportCredentials {
	return meteredCredentials{TransportCredentials: m.TransportCredentials.Clone(), limiter: m.limiter}
}

// refuse tells a client why its connection is closed, in HTTP/2's own words: clients
// put them into the error of the calls that wait for it. It takes a second at most.
func refuse(conn net.Conn) {
	if conn.SetDeadline(time.Now().Add(time.Second)) != nil {
		return
	}
	framer := http2.NewFramer(conn, conn)
	if framer.WriteSettings() != nil || framer.WriteGoAway(0, http2.ErrCodeEnhanceYourCalm, []byte(errConnections.Error())) != nil {
		return
	}
	if half, ok := conn.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		// A close before all was read would reset the connection, and lose what was said.
		_, _ = io.CopyN(io.Discard, conn, readBufferBytes)
	}
}
