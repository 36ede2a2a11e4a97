package wire_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/kvtransfertest"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/wire"
)

const (
	stagingSlice = 4096
	stagingCount = 2
)

func newStagingPages() *kvtransfertest.Pages {
	return kvtransfertest.NewStagingPages(kvtransfertest.Layout(layers, stagingSlice), blocks, stagingCount, (blocks+1)*stagingSlice)
}

// staged fails the test if the pages have other staging buffers idle, or other numbers of
// copies, than these.
func staged(t *testing.T, what string, p *kvtransfertest.Pages, idle, copies int) {
	t.Helper()
	if i, c := p.Staging(); i != idle || c != copies {
		t.Errorf("%s: %d staging buffers are idle after %d copies, want %d after %d", what, i, c, idle, copies)
	}
}

// A chunk is read into a staging buffer, which is back when gRPC frees the message. If none
// is left, and for what is too large, other memory does. A receiver writes from one.
func TestStaging(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	codec := wire.Codec()
	from, to := newStagingPages(), newStagingPages()
	for b := range blocks {
		from.Fill(kvcache.BlockID(b), 1)
	}
	chunk := wire.Chunk{TransferID: 1, Runs: []wire.Run{{First: 0, Blocks: 2}}}
	ids := []kvcache.BlockID{3, 4}
	send := func() (message []byte, free func()) {
		data, err := codec.Marshal(&wire.Outbound{Chunk: chunk, Pages: from, Blocks: ids})
		if err != nil {
			t.Fatal(err)
		}
		return data.Materialize(), data.Free
	}
	message, first := send()
	staged(t, "one message", from, stagingCount-1, 1)
	_, second := send()
	staged(t, "two messages", from, 0, 2)
	third, free := send()
	staged(t, "three messages", from, 0, 2)
	if !bytes.Equal(third, message) {
		t.Error("a message in other memory is another")
	}
	first()
	staged(t, "one is sent", from, 1, 2)
	second()
	free()
	staged(t, "all are sent", from, stagingCount, 2)

	pool := newStrictPool(t)
	data := cut(random, pool, message, 5000)
	var in wire.Inbound
	if err := codec.Unmarshal(data, &in); err != nil {
		t.Fatal(err)
	}
	data.Free()
	if err := in.CopyTo(to, ids, nil); err != nil {
		t.Fatal(err)
	}
	in.Free()
	pool.check()
	staged(t, "received", to, stagingCount, 1)
	for _, id := range ids {
		if !bytes.Equal(to.Page(id)[:stagingSlice], from.Page(id)[:stagingSlice]) {
			t.Errorf("block %d has other bytes than were sent", id)
		}
	}

	// A coding goes by one slice at a time, which is staged.
	if _, err := codec.Marshal(&wire.Outbound{Chunk: chunk, Pages: from, Blocks: ids, Coding: twice{stagingSlice}}); err != nil {
		t.Fatal(err)
	}
	staged(t, "coded", from, stagingCount, 2+len(ids))
}

// A buffer comes back if the pages fail.
func TestStagingOfPagesThatFail(t *testing.T) {
	codec := wire.Codec()
	for _, coding := range []wire.Coding{nil, twice{stagingSlice}} {
		t.Run(fmt.Sprint("coding=", coding != nil), func(t *testing.T) {
			from, to := newStagingPages(), newStagingPages()
			out := &wire.Outbound{Chunk: wire.Chunk{TransferID: 1, Runs: []wire.Run{{First: 0, Blocks: 1}}}, Pages: from, Blocks: []kvcache.BlockID{1}, Coding: coding}
			message := marshal(t, out)
			fault := errors.New("the device is lost")
			from.Fail(fault)
			to.Fail(fault)
			if _, err := codec.Marshal(out); !errors.Is(err, fault) {
				t.Errorf("sent: %v", err)
			}
			var in wire.Inbound
			if err := codec.Unmarshal(cut(rand.New(rand.NewPCG(1, 2)), newStrictPool(t), message, 5000), &in); err != nil {
				t.Fatal(err)
			}
			if err := in.CopyTo(to, out.Blocks, coding); !errors.Is(err, fault) {
				t.Errorf("received: %v", err)
			}
			in.Free()
			for what, p := range map[string]*kvtransfertest.Pages{"sender": from, "receiver": to} {
				if idle, _ := p.Staging(); idle != stagingCount {
					t.Errorf("the %s has %d staging buffers idle", what, idle)
				}
			}
		})
	}
}
