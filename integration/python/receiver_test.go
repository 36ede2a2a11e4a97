package python_test

import (
	"bytes"
	"context"
	"encoding/base64"
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
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/services/kvtransfer"
	"github.com/tandem-serving/tandem/services/kvtransfer/kvtransfertest"
)

// newSender is the real one.
func newSender(t *testing.T, pages *kvtransfertest.Pages) *kvtransfer.Sender {
	t.Helper()
	sender, err := kvtransfer.NewSender(kvtransfer.SenderConfig{
		WorkerID: "prefill-0", Epoch: 9, Layout: layout(),
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
func listen(t *testing.T) (p *peer, ticket *kvtransferv1.Ticket, file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "received")
	p = run(t, "receiver.py", "--layout-digest", strconv.FormatUint(layout().Digest(), 10),
		"--blocks", strconv.Itoa(blocks), "--held", strconv.Itoa(held), "--out", file)
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

// open opens a transfer and sends the blocks of a prompt, layer by layer; the table
// is not the reservation's.
func open(t *testing.T, sender *kvtransfer.Sender, ticket *kvtransferv1.Ticket) (tr *kvtransfer.Transfer, table []kvcache.BlockID) {
	t.Helper()
	for i := range blocks {
		table = append(table, kvcache.BlockID(2*i+1))
	}
	tr, err := sender.Open(t.Context(), ticket, "r")
	if err != nil {
		t.Fatal(err)
	}
	for layer := range layers {
		const cut = blocks / 2 // as two chunks of a prompt
		tr.Send(layer, held, table[held:cut])
		tr.Send(layer, cut, table[cut:])
	}
	return tr, table
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
	pages := kvtransfertest.NewPages(layout(), 2*blocks)
	for b := range 2 * blocks {
		pages.Fill(kvcache.BlockID(b), byte(3*b))
	}
	sender := newSender(t, pages)
	p, ticket, file := listen(t)
	tr, table := open(t, sender, ticket)
	tr.Commit([]int32{7, 8})
	ended(t, tr)
	if err := tr.Err(); err != nil {
		t.Fatalf("the transfer ended with %v\n%s", err, p.stderr.String())
	}
	var said outcome
	p.says(&said)
	if said.Outcome != "committed" || !slices.Equal(said.Tokens, []int32{7, 8}) || said.Bytes != (blocks-held)*layout().PageBytes() {
		t.Errorf("the receiver says %+v", said)
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var want []byte
	for i, block := range table {
		if i < held {
			want = append(want, make([]byte, layout().PageBytes())...)
		} else {
			want = append(want, pages.Page(block)...)
		}
	}
	if !bytes.Equal(got, want) {
		t.Error("the receiver has other KV")
	}
	p.exits()
}

func TestPythonDrains(t *testing.T) {
	sender := newSender(t, kvtransfertest.NewPages(layout(), 2*blocks))
	p, ticket, _ := listen(t)
	tr, _ := open(t, sender, ticket)
	tr.Abort(kvtransferv1.AbortReason_ABORT_REASON_FINISHED)
	ended(t, tr)
	var said outcome
	p.says(&said)
	if said.Outcome != "drained" || said.Reason != "ABORT_REASON_FINISHED" {
		t.Errorf("the receiver says %+v", said)
	}
	p.exits()
}
