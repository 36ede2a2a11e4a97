//go:build !linux

package sharedpages

import (
	"context"
	"errors"
	"net"
	"os"
	"time"

	"github.com/tandem-serving/tandem/pkg/kvcache"
)

var errUnsupported = errors.New("this system cannot share pages between processes")

// Peer does not exist on this system.
type Peer struct{}

// Accept fails.
func Accept(*net.UnixConn, time.Duration) (*Peer, Request, error) {
	return nil, Request{}, errUnsupported
}

// Refuse does nothing.
func (*Peer) Refuse(string) {}

// Grant fails.
func (*Peer) Grant(*os.File, int, int) error { return errUnsupported }

// Wait fails.
func (*Peer) Wait() error { return errUnsupported }

// Stop does nothing.
func (*Peer) Stop() {}

// Close does nothing.
func (*Peer) Close() {}

// Mapping does not exist on this system.
type Mapping struct{}

// Dial fails.
func Dial(context.Context, string, Request, kvcache.Layout) (*Mapping, error) {
	return nil, errUnsupported
}

// View is nil.
func (*Mapping) View(int, kvcache.BlockID) []byte { return nil }

// Open fails.
func (*Mapping) Open([]kvcache.BlockID) error { return errUnsupported }

// Shut fails.
func (*Mapping) Shut([]kvcache.BlockID) error { return errUnsupported }

// Close does nothing.
func (*Mapping) Close() {}
