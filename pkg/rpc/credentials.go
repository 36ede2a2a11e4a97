package rpc

import (
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
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

// Unwrap are the inner credentials' words about the connection.
func (m meteredAuth) Unwrap() credentials.AuthInfo { return m.AuthInfo }

var errNotHTTP2 = errors.New("the client does not speak HTTP/2")

// prefacePrefix is how every HTTP/2 client begins (RFC 9113, section 3.4), and no request
// of HTTP/1.
const prefacePrefix = "PRI "

// ServerHandshake shakes hands and begins to meter.
func (m meteredCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, auth, err := m.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	metered, ok := m.limiter.admit(conn, m.Info().SecurityProtocol == insecure.NewCredentials().Info().SecurityProtocol)
	if !ok {
		err := fmt.Errorf("too many connections: %s allows no more", m.limiter.limits.ConnectionsBy)
		refuse(conn, err)
		return nil, nil, err
	}
	if begins, err := metered.buffered.Peek(len(prefacePrefix)); err == nil && string(begins) != prefacePrefix {
		explain(conn)
		_ = metered.Close()
		return nil, nil, errNotHTTP2
	}
	return metered, meteredAuth{AuthInfo: auth, conn: metered}, nil
}

// Clone copies the credentials, which have no state of their own.
func (m meteredCredentials) Clone() credentials.TransportCredentials {
	return meteredCredentials{TransportCredentials: m.TransportCredentials.Clone(), limiter: m.limiter}
}

// explain answers a client that speaks HTTP/1, such as a browser or curl.
func explain(conn net.Conn) {
	const text = "This port speaks gRPC. The HTTP API has a port of its own, which --http sets: by default http://127.0.0.1:8080.\n"
	if conn.SetDeadline(time.Now().Add(time.Second)) != nil {
		return
	}
	if _, err := fmt.Fprintf(conn, "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", len(text), text); err == nil {
		linger(conn)
	}
}

// refuse tells a client why its connection is closed, in HTTP/2's own words: clients
// put them into the error of the calls that wait for it. It takes a second at most.
func refuse(conn net.Conn, why error) {
	if conn.SetDeadline(time.Now().Add(time.Second)) != nil {
		return
	}
	framer := http2.NewFramer(conn, conn)
	if framer.WriteSettings() != nil || framer.WriteGoAway(0, http2.ErrCodeEnhanceYourCalm, []byte(why.Error())) != nil {
		return
	}
	linger(conn)
}

// lingerBytes is the most that a client that is turned away may have sent by then.
const lingerBytes = 16 << 10

// linger lets the client read what was said before its connection is closed: a close
// before all was read would reset the connection.
func linger(conn net.Conn) {
	if half, ok := conn.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		_, _ = io.CopyN(io.Discard, conn, lingerBytes)
	}
}
