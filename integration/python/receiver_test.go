package python_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/kvtransfertest"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// pagesOf is pages that hold the KV of a reservation's blocks in every other block.
func pagesOf(t *testing.T, kv []byte) *kvtransfertest.Pages {
	t.Helper()
	pages := kvtransfertest.NewPages(layout(), 2*blocks)
	for i, block := range source() {
		for layer := range layers {
			at := i*layout().PageBytes() + layer*layout().SliceBytes
			if err := pages.Write(layer, []kvcache.BlockID{block}, kv[at:at+layout().SliceBytes]); err != nil {
				t.Fatal(err)
			}
		}
	}
	return pages
}

// source is the sender's blocks.
func source() (table []kvcache.BlockID) {
	for i := range blocks {
		table = append(table, kvcache.BlockID(2*i+1))
	}
	return table
}

// newSender is the real one.
func newSender(t *testing.T, pages *kvtransfertest.Pages, streams int) *kvtransfer.Sender {
	t.Helper()
	sender, err := kvtransfer.NewSender(kvtransfer.SenderConfig{
		WorkerID: "prefill-0", Epoch: 9, Layout: layout(), Streams: streams,
		Dial: func(address string) (*grpc.ClientConn, error) {
			return rpc.Dial(address, kvtransfer.Dialing(rpc.ClientConfig{}))
		},
	}, pages)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := sender.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return sender
}

// outcome is what the receiver says last.
type outcome struct {
	Outcome, Reason string
	Tokens          []int32
	Bytes           int
	Chunks          []int // by stripe
}

// listen starts the receiver and reads its ticket.
func listen(t *testing.T, encoding string) (p *peer, ticket *kvtransferv1.Ticket, file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "received")
	p = run(t, "receiver.py", "--layout-digest", strconv.FormatUint(layout().Digest(), 10),
		"--blocks", strconv.Itoa(blocks), "--held", strconv.Itoa(held), "--encoding", encoding, "--out", file)
	var said struct{ Ticket string }
	p.says(&said)
	encoded, err := base64.StdEncoding.DecodeString(said.Ticket)
	if err != nil {
		t.Fatal(err)
	}
	ticket = new(kvtransferv1.Ticket)
	if err := proto.Unmarshal(encoded, ticket); err != nil {
		t.Fatal(err)
	}
	return p, ticket, file
}

// open opens a transfer and sends the blocks of a prompt, layer by layer.
func open(t *testing.T, sender *kvtransfer.Sender, ticket *kvtransferv1.Ticket) *kvtransfer.Transfer {
	t.Helper()
	table := source()
	tr, err := sender.Open(t.Context(), ticket, "r")
	if err != nil {
		t.Fatal(err)
	}
	for layer := range layers {
		const cut = blocks / 2 // as two chunks of a prompt
		tr.Send(layer, held, table[held:cut])
		tr.Send(layer, cut, table[cut:])
	}
	return tr
}

func ended(t *testing.T, tr *kvtransfer.Transfer) {
	t.Helper()
	select {
	case <-tr.Done():
	case <-time.After(patience):
		t.Fatal("the transfer does not end")
	}
}

func TestPythonReceives(t *testing.T) {
	for _, test := range []struct {
		encoding string
		streams  int
	}{{"native", 1}, {"native", 2}, {"native", 5}, {"int8", 1}, {"int8", 2}} {
		t.Run(fmt.Sprintf("%s over %d", test.encoding, test.streams), func(t *testing.T) {
			kv, _ := randomKV(t)
			p, ticket, file := listen(t, test.encoding)
			tr := open(t, newSender(t, pagesOf(t, kv), test.streams), ticket)
			tr.Commit([]int32{7, 8})
			ended(t, tr)
			if err := tr.Err(); err != nil {
				t.Fatalf("the transfer ended with %v\n%s", err, p.stderr.String())
			}
			var said outcome
			p.says(&said)
			if said.Outcome != "committed" || !slices.Equal(said.Tokens, []int32{7, 8}) || len(said.Chunks) != test.streams {
				t.Errorf("the receiver says %+v", said)
			}
			t.Logf("chunks by stripe: %v", said.Chunks)
			got, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if want := bytes.Join(ours(t, ticket.GetEncoding(), kv), nil); !bytes.Equal(got, want) {
				t.Error("the receiver has other KV")
			}
			p.exits()
		})
	}
}

func TestPythonDrains(t *testing.T) {
	for _, streams := range []int{1, 3} {
		kv, _ := randomKV(t)
		p, ticket, _ := listen(t, "native")
		tr := open(t, newSender(t, pagesOf(t, kv), streams), ticket)
		tr.Abort(kvtransferv1.AbortReason_ABORT_REASON_FINISHED)
		ended(t, tr)
		var said outcome
		p.says(&said)
		if said.Outcome != "drained" || said.Reason != "ABORT_REASON_FINISHED" {
			t.Errorf("over %d streams, the receiver says %+v", streams, said)
		}
		p.exits()
	}
}
