package wire_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math/rand/v2"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/wire"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// taker is pages that record what they take.
type taker struct {
	loan   uint64
	layer  int
	blocks []kvcache.BlockID
	err    error
}

func (*taker) Memory() uint64 { return 1 }

func (*taker) Lend(int, []kvcache.BlockID, func()) (uint64, error) {
	return 0, errors.New("nothing to lend")
}
func (*taker) Recall(uint64) {}

func (p *taker) Take(loan uint64, layer int, blocks []kvcache.BlockID) error {
	p.loan, p.layer, p.blocks = loan, layer, blocks
	return p.err
}

// sumLent computes the checksum of a lent chunk as the proto file specifies it.
func sumLent(m *kvtransferv1.Chunk) uint32 {
	text := binary.LittleEndian.AppendUint64(nil, m.GetTransferId())
	text = binary.LittleEndian.AppendUint32(text, m.GetSequence())
	text = binary.LittleEndian.AppendUint32(text, m.GetLayer())
	text = binary.LittleEndian.AppendUint32(text, uint32(len(m.GetRuns())))
	for _, r := range m.GetRuns() {
		text = binary.LittleEndian.AppendUint32(text, r.GetFirstBlock())
		text = binary.LittleEndian.AppendUint32(text, r.GetBlocks())
	}
	text = binary.LittleEndian.AppendUint64(text, m.GetLoan())
	text = binary.LittleEndian.AppendUint32(text, m.GetLentBytes())
	return crc32.Checksum(text, crc32.MakeTable(crc32.Castagnoli))
}

var lent = wire.Chunk{
	TransferID: 1, Sequence: 300, Layer: 2, Runs: []wire.Run{{First: 1, Blocks: 3}, {First: 7, Blocks: 1}}, PayloadBytes: 400, Loan: 0x0102030405060708,
}

// take passes an encoded chunk to pages, like a receiver.
func take(encoded []byte, pages *taker, blocks []kvcache.BlockID) error {
	var in wire.Inbound
	defer in.Free()
	if err := wire.Codec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(encoded)}, &in); err != nil {
		return err
	}
	if in.Message != nil {
		return errors.New("not a chunk")
	}
	return in.TakeTo(pages, blocks)
}

// A lent chunk is valid protobuf, has no payload, and is taken from its loan.
func TestLent(t *testing.T) {
	released := 0
	encoded := marshal(t, &wire.Outbound{Chunk: lent, Released: func(error) { released++ }})
	m := generated(t, encoded)
	want := &kvtransferv1.Chunk{
		TransferId: lent.TransferID, Sequence: lent.Sequence, Layer: lent.Layer, Loan: lent.Loan, LentBytes: 400,
		Runs: []*kvtransferv1.Run{{FirstBlock: 1, Blocks: 3}, {FirstBlock: 7, Blocks: 1}},
	}
	want.Crc32C = sumLent(want)
	if !proto.Equal(m, want) || released != 1 {
		t.Fatalf("%v, want %v; released %d times", m, want, released)
	}
	if ours, err := proto.Marshal(&kvtransferv1.SenderMessage{Message: &kvtransferv1.SenderMessage_Chunk{Chunk: want}}); err != nil || !bytes.Equal(encoded, ours) {
		t.Errorf("% x, protobuf writes % x: %v", encoded, ours, err)
	}
	pages, ids := new(taker), []kvcache.BlockID{1, 2, 3, 7}
	if err := take(encoded, pages, ids); err != nil || pages.loan != lent.Loan || pages.layer != 2 || len(pages.blocks) != 4 {
		t.Errorf("took %+v: %v", pages, err)
	}
	pages.err = errors.New("the device is gone")
	if err := take(encoded, pages, ids); !errors.Is(err, pages.err) {
		t.Errorf("pages that fail: %v", err)
	}
}

// Every bit flip and every truncation is detected before a page is touched.
func TestLentDamage(t *testing.T) {
	encoded := marshal(t, &wire.Outbound{Chunk: lent})
	for bit := range 8 * len(encoded) {
		damaged := bytes.Clone(encoded)
		damaged[bit/8] ^= 1 << (bit % 8)
		if pages := new(taker); take(damaged, pages, nil) == nil || pages.loan != 0 {
			t.Errorf("bit %d of byte %d flipped, and nobody noticed", bit%8, bit/8)
		}
	}
	for n := range encoded {
		if take(encoded[:n], new(taker), nil) == nil {
			t.Errorf("cut off after %d of %d bytes, and nobody noticed", n, len(encoded))
		}
	}
}

// A chunk has either a loan or a payload.
func TestLentIsNoPayload(t *testing.T) {
	pages := newHostPages(layers, 100, blocks)
	pages.fill(rand.New(rand.NewPCG(1, 2)))
	ids := []kvcache.BlockID{1, 2, 3, 7}
	receive := func(out *wire.Outbound) *wire.Inbound {
		in := new(wire.Inbound)
		if err := wire.Codec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(marshal(t, out))}, in); err != nil {
			t.Fatal(err)
		}
		return in
	}
	if err := receive(&wire.Outbound{Chunk: lent}).CopyTo(pages, ids, nil); !errors.Is(err, wire.ErrUndecodable) {
		t.Errorf("copied as a payload: %v", err)
	}
	native := lent
	native.Loan = 0
	if err := receive(&wire.Outbound{Chunk: native, Pages: pages, Blocks: ids}).TakeTo(new(taker), ids); !errors.Is(err, wire.ErrUndecodable) {
		t.Errorf("taken as a loan: %v", err)
	}
}
