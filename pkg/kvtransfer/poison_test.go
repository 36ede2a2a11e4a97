package kvtransfer_test

import (
	"context"
	"net"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/kvtransfertest"
)

// A ticket with a dead address does not affect others for the same receiver.
func TestTicketsThatLeadNowhere(t *testing.T) {
	g := newSocketRig(t, "tcp", 1, kvtransfertest.NewPages)
	dead, err := net.Listen("tcp", "127.0.0.1:0") // connects, then stays silent
	if err != nil {
		t.Fatal(err)
	}
	defer dead.Close()
	right, _ := g.reserve(kvcache.BlockRange(0, 8), 0, 8)
	wrong := proto.CloneOf(right)
	wrong.Addresses = []string{dead.Addr().String()}
	ctx, cancel := context.WithCancel(t.Context())
	var tasks sync.WaitGroup
	tasks.Go(func() { _, _ = g.sender.Open(ctx, wrong, "wrong") })
	conn, err := dead.Accept() // dialling is in progress
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := g.sender.Open(t.Context(), right, "right"); err != nil {
		t.Error(err)
	}
	cancel()
	tasks.Wait()
}
