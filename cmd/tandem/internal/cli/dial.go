package cli

import (
	"fmt"

	"google.golang.org/grpc"

	"github.com/tandem-serving/tandem/pkg/rpc"
)

// defaultAddr is where `tandem up` listens.
const defaultAddr = "127.0.0.1:7070"

// maxMessageBytes is the largest message that a command takes from a router: a
// view of thousands of workers is a few megabytes.
const maxMessageBytes = 64 << 20

// dial makes a connection to addr, which the caller closes. It does not wait for
// the other side: the first call fails if nobody is there.
func dial(addr string) (*grpc.ClientConn, error) {
	conn, err := rpc.Dial(addr, rpc.ClientConfig{Name: "tandem", MaxReceiveBytes: maxMessageBytes})
	if err != nil {
		return nil, fmt.Errorf("%w: pass an address like host:port or unix:///path", err)
	}
	return conn, nil
}
