package python_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/kvtransfertest"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// receiver is the real one, on TCP.
type receiver struct {
	*kvtransfer.Receiver
	pages *kvtransfertest.Pages
}

// newReceiver starts one that asks for an encoding.
func newReceiver(t *testing.T, encoding kvtransferv1.Encoding) receiver {
	t.Helper()
	listener, err := kvtransfer.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	slice := layout().SliceBytes
	r := receiver{pages: kvtransfertest.NewPages(layout(), 2*blocks)}
	r.Receiver, err = kvtransfer.NewReceiver(kvtransfer.ReceiverConfig{
		WorkerID: "decode-0", Epoch: 7, Layout: layout(), Addresses: []string{listener.Addr().String()}, Encoding: encoding,
		// So that the sender has to wait for credit.
		MaxChunkBytes: 2*slice + 100, CreditBytes: 3 * slice,
	}, r.pages)
	if err != nil {
		t.Fatal(err)
	}
	server := rpc.NewServer(kvtransfer.Serving(rpc.ServerConfig{}))
	r.Register(server)
	ctx, cancel := context.WithCancel(t.Context())
	var tasks sync.WaitGroup
	tasks.Go(func() { _ = server.Serve(listener) })
	tasks.Go(func() {
		if err := r.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		ended, now := context.WithCancel(context.Background())
		now()
		_ = server.Stop(ended) // it says that calls were cut off
		cancel()
		tasks.Wait()
	})
	return r
}

// ending is what a reservation's owner was told.
type ending struct {
	arrival *kvtransfer.Arrival // nil: without commit
	err     error
}

// reserve makes a reservation over blocks of the pool in another order, and gives
// the ticket in a file.
func (r receiver) reserve(t *testing.T) (table []kvcache.BlockID, ticket string, over <-chan ending) {
	t.Helper()
	for i := range blocks {
		table = append(table, kvcache.BlockID(2*(blocks-1-i)))
	}
	var end ending
	done := make(chan ending, 1)
	issued, err := r.Reserve(kvtransfer.Reservation{
		RequestID: "r", Blocks: table, HeldBlocks: held, PromptBlocks: blocks,
		Committed: func(a kvtransfer.Arrival) { done <- ending{arrival: &a} },
		Failed:    func(err error) { end.err = err },
		Drained:   func() { done <- end },
	})
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := proto.Marshal(issued)
	if err != nil {
		t.Fatal(err)
	}
	ticket = filepath.Join(t.TempDir(), "ticket")
	if err := os.WriteFile(ticket, encoded, 0o600); err != nil {
		t.Fatal(err)
	}
	return table, ticket, done
}

func wait(t *testing.T, over <-chan ending) ending {
	t.Helper()
	select {
	case end := <-over:
		return end
	case <-time.After(patience):
		t.Fatal("the reservation is not over")
		return ending{}
	}
}

// ours is what the blocks of a reservation hold after a transfer between the real
// sender and the real receiver.
func ours(t *testing.T, encoding kvtransferv1.Encoding, kv []byte) (pages [][]byte) {
	t.Helper()
	r := newReceiver(t, encoding)
	table, file, over := r.reserve(t)
	ticket := new(kvtransferv1.Ticket)
	encoded, err := os.ReadFile(file)
	if err == nil {
		err = proto.Unmarshal(encoded, ticket)
	}
	if err != nil {
		t.Fatal(err)
	}
	tr := open(t, newSender(t, pagesOf(t, kv), 1), ticket)
	tr.Commit([]int32{1})
	if end := wait(t, over); end.arrival == nil {
		t.Fatalf("the real ones end with %+v", end)
	}
	for _, block := range table {
		pages = append(pages, r.pages.Page(block))
	}
	return pages
}

func TestPythonSends(t *testing.T) {
	for _, encoding := range []kvtransferv1.Encoding{native, eight} {
		for _, stripes := range []int{1, 2, 5} {
			t.Run(fmt.Sprintf("%s over %d", encoding, stripes), func(t *testing.T) {
				r := newReceiver(t, encoding)
				kv, file := randomKV(t)
				table, ticket, over := r.reserve(t)
				p := run(t, "sender.py", "--ticket", ticket, "--kv", file, "--stripes", strconv.Itoa(stripes), "--tokens", "5,1,4294967")
				var said struct{ Answer, Reason string }
				p.says(&said)
				p.exits()
				end := wait(t, over)
				if said.Answer != "committed" || end.arrival == nil {
					t.Fatalf("the sender says %+v, the receiver %+v", said, end)
				}
				if !slices.Equal(end.arrival.Sampled, []int32{5, 1, 4294967}) || end.arrival.Approximate != (encoding == eight) {
					t.Errorf("%+v arrived", end.arrival)
				}
				want := ours(t, encoding, kv)
				for i, block := range table {
					if !bytes.Equal(r.pages.Page(block), want[i]) {
						t.Errorf("block %d of the reservation has other KV", i)
					}
				}
			})
		}
	}
}

func TestPythonSendsWhatIsWrong(t *testing.T) {
	for _, test := range []struct {
		name    string
		stripes int
		corrupt int
	}{
		{"the first chunk", 1, 1},
		{"a chunk in the middle", 1, 8},
		{"the first chunk of the second stripe", 2, 2},
		{"the last chunk of two stripes", 2, 15},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := newReceiver(t, native)
			_, file := randomKV(t)
			_, ticket, over := r.reserve(t)
			p := run(t, "sender.py", "--ticket", ticket, "--kv", file, "--stripes", strconv.Itoa(test.stripes), "--corrupt", strconv.Itoa(test.corrupt))
			var said struct{ Answer, Reason string }
			p.says(&said)
			p.exits()
			end := wait(t, over)
			failed, is := errors.AsType[*kvtransfer.FailedError](end.err)
			if said.Answer != "failed" || said.Reason != "FAIL_REASON_CHECKSUM" || !is || failed.Reason != kvtransferv1.FailReason_FAIL_REASON_CHECKSUM {
				t.Errorf("the sender says %+v, the receiver %+v", said, end)
			}
		})
	}
}
