package wire_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/kvtransfertest"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/wire"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

const (
	layers = 3
	blocks = 12
)

// Sent chunks match the proto file and arrive unchanged, with both kinds of pages, with and
// without a coding.
func TestRoundTrip(t *testing.T) {
	sizes := []int{1, 24, 1000, 4096, 40_000}
	if testing.Short() { // the last is slow under the race detector, and of one goroutine
		sizes = sizes[:4]
	}
	for _, slice := range sizes {
		for _, kind := range []string{"host", "device", "staging"} {
			for _, coding := range []wire.Coding{nil, twice{slice}} {
				t.Run(fmt.Sprintf("%s/slice=%d/coding=%t", kind, slice, coding != nil), func(t *testing.T) {
					random := rand.New(rand.NewPCG(uint64(slice), 1))
					pool := newStrictPool(t)
					codec := wire.Codec()
					var in wire.Inbound
					for range 10 {
						from, to := newHostPages(layers, slice, blocks), newHostPages(layers, slice, blocks)
						from.fill(random)
						source, sink := engine.Pages(from), engine.Pages(to)
						if kind == "device" {
							source, sink = devicePages{from}, devicePages{to}
						}
						if kind == "staging" {
							source, sink = newStaging(from), newStaging(to)
						}
						c, ids := randomChunk(random, layers, blocks)
						released := 0
						encoded := marshal(t, &wire.Outbound{Chunk: c, Pages: source, Blocks: ids, Coding: coding, Released: func(err error) {
							released++
							if err != nil {
								t.Error(err)
							}
						}})
						if released != 1 {
							t.Errorf("released %d times", released)
						}
						if m := generated(t, encoded); m.GetCrc32C() != sum(m) || m.GetTransferId() != c.TransferID ||
							m.GetSequence() != c.Sequence || m.GetLayer() != c.Layer || len(m.GetRuns()) != len(c.Runs) {
							t.Fatalf("sent %v, want %v with checksum %#x", m, c, sum(m))
						}
						data := cut(random, pool, encoded, 20_000)
						if err := codec.Unmarshal(data, &in); err != nil {
							t.Fatal(err)
						}
						data.Free()
						c.PayloadBytes = in.Chunk.PayloadBytes
						if in.Message != nil || fmt.Sprint(in.Chunk) != fmt.Sprint(c) {
							t.Fatalf("received %v, want %v", in.Chunk, c)
						}
						if err := in.CopyTo(sink, ids, coding); err != nil {
							t.Fatal(err)
						}
						in.Free()
						in.Free()
						want := newHostPages(layers, slice, blocks)
						for _, id := range ids {
							copy(want.View(int(c.Layer), id), from.View(int(c.Layer), id))
						}
						if !bytes.Equal(to.all(), want.all()) {
							t.Fatal("the pages have other bytes than were sent, or others than those sent were written")
						}
					}
					pool.check()
				})
			}
		}
	}
}

// shuffled encodes a chunk as another implementation may: fields in any order, unknown
// fields, and repeated fields, of which the last counts.
func shuffled(random *rand.Rand, m *kvtransferv1.Chunk) []byte {
	var fields [][]byte
	for _, part := range []*kvtransferv1.Chunk{
		{TransferId: m.GetTransferId()}, {Sequence: m.GetSequence()}, {Layer: m.GetLayer()}, {Payload: m.GetPayload()}, {Crc32C: m.GetCrc32C()},
	} {
		encoded, err := proto.Marshal(part)
		if err != nil {
			panic(err)
		}
		fields = append(fields, encoded)
	}
	for range random.IntN(4) {
		number := protowire.Number(17 + random.IntN(1000))
		if random.IntN(2) == 0 {
			number = 5
		}
		switch random.IntN(4) {
		case 0:
			fields = append(fields, protowire.AppendVarint(protowire.AppendTag(nil, number, protowire.VarintType), random.Uint64()))
		case 1:
			fields = append(fields, protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), make([]byte, random.IntN(3000))))
		case 2:
			group := protowire.AppendTag(nil, number, protowire.StartGroupType)
			group = protowire.AppendFixed32(protowire.AppendTag(group, 1, protowire.Fixed32Type), 1)
			fields = append(fields, protowire.AppendTag(group, number, protowire.EndGroupType))
		case 3:
			// A known field number with another wire type counts as unknown.
			fields = append(fields, protowire.AppendFixed64(protowire.AppendTag(nil, 2, protowire.Fixed64Type), 1))
		}
	}
	random.Shuffle(len(fields), func(i, j int) { fields[i], fields[j] = fields[j], fields[i] })
	var body []byte
	if random.IntN(3) == 0 { // overridden by what follows
		body = protowire.AppendBytes(protowire.AppendTag(body, 15, protowire.BytesType), make([]byte, random.IntN(3000)))
	}
	runs := m.GetRuns()
	for _, field := range fields {
		body = append(body, field...)
		for len(runs) > 0 && random.IntN(2) == 0 {
			body, runs = appendRun(random, body, runs[0]), runs[1:]
		}
	}
	for _, r := range runs {
		body = appendRun(random, body, r)
	}
	return protowire.AppendBytes(protowire.AppendTag(nil, 3, protowire.BytesType), body)
}

func appendRun(random *rand.Rand, b []byte, r *kvtransferv1.Run) []byte {
	encoded, err := proto.Marshal(r)
	if err != nil {
		panic(err)
	}
	if random.IntN(2) == 0 {
		encoded = append(protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 77), encoded...)
		if r.GetFirstBlock() == 0 {
			encoded = append(encoded, 1<<3, 0x80, 0x00) // a zero in two bytes
		}
	}
	return protowire.AppendBytes(protowire.AppendTag(b, 4, protowire.BytesType), encoded)
}

func TestOtherImplementations(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	pool := newStrictPool(t)
	codec := wire.Codec()
	var in wire.Inbound
	for range 500 {
		slice := 1 + random.IntN(5000)
		from, to := newHostPages(layers, slice, blocks), newHostPages(layers, slice, blocks)
		from.fill(random)
		c, ids := randomChunk(random, layers, blocks)
		m := generated(t, marshal(t, &wire.Outbound{Chunk: c, Pages: from, Blocks: ids}))
		encoded := shuffled(random, m)
		data := cut(random, pool, encoded, 1+random.IntN(5000))
		if err := codec.Unmarshal(data, &in); err != nil {
			t.Fatal(err)
		}
		data.Free()
		if err := in.CopyTo(to, ids, nil); err != nil {
			t.Fatal(err)
		}
		in.Free()
		for _, id := range ids {
			if !bytes.Equal(to.View(int(c.Layer), id), from.View(int(c.Layer), id)) {
				t.Fatalf("block %d has other bytes", id)
			}
		}
	}
	pool.check()
}

// arrives checks that a message decodes to the original chunk.
func arrives(encoded []byte, random *rand.Rand) error {
	var in wire.Inbound
	defer in.Free()
	if err := wire.Codec().Unmarshal(cut(random, mem.DefaultBufferPool(), encoded, 3000), &in); err != nil {
		return err
	}
	if in.Message != nil {
		return errors.New("another message")
	}
	// A receiver writes where the chunk says if the payload's size is right.
	blocks := 0
	for _, r := range in.Chunk.Runs {
		blocks += int(r.Blocks)
	}
	slice := in.Chunk.PayloadBytes / max(blocks, 1)
	if blocks == 0 || blocks > 100 || slice == 0 || in.Chunk.Layer >= layers {
		return errors.New("not a chunk of the reservation")
	}
	return in.CopyTo(newHostPages(layers, slice, 1), make([]kvcache.BlockID, blocks), nil)
}

// Every bit flip and every truncation is detected.
func TestDamage(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	from := newHostPages(layers, 100, blocks)
	from.fill(random)
	// No field has its default value: omitting it would be no damage.
	c := wire.Chunk{TransferID: 1, Sequence: 300, Layer: 2, Runs: []wire.Run{{First: 1, Blocks: 3}, {First: 7, Blocks: 1}}}
	ids := []kvcache.BlockID{1, 2, 3, 7}
	encoded := marshal(t, &wire.Outbound{Chunk: c, Pages: from, Blocks: ids})
	if err := arrives(encoded, random); err != nil {
		t.Fatal(err)
	}
	for bit := range 8 * len(encoded) {
		damaged := bytes.Clone(encoded)
		damaged[bit/8] ^= 1 << (bit % 8)
		if arrives(damaged, random) == nil {
			t.Errorf("bit %d of byte %d flipped, and nobody noticed", bit%8, bit/8)
		}
	}
	for n := range encoded {
		if arrives(encoded[:n], random) == nil {
			t.Errorf("cut off after %d of %d bytes, and nobody noticed", n, len(encoded))
		}
	}
	zero := generated(t, encoded)
	zero.Crc32C = 0
	if err := arrives(shuffled(random, zero), random); !errors.Is(err, wire.ErrCorrupt) {
		t.Errorf("without a checksum: %v", err)
	}
}

func TestRefused(t *testing.T) {
	chunk := protowire.AppendBytes(protowire.AppendTag(nil, 3, protowire.BytesType), []byte{2 << 3, 1})
	hello := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), nil)
	runs := bytes.Repeat([]byte{4<<3 | 2, 0}, 1<<16+1)
	deep := append(bytes.Repeat([]byte{9<<3 | 3}, 10_000), bytes.Repeat([]byte{9<<3 | 4}, 10_000)...)
	for _, test := range []struct {
		name    string
		encoded []byte
	}{
		{"a chunk twice", append(bytes.Clone(chunk), chunk...)},
		{"a chunk behind a hello", append(bytes.Clone(hello), chunk...)},
		{"a chunk before a hello", append(bytes.Clone(chunk), hello...)},
		{"more runs than there may be", protowire.AppendBytes(protowire.AppendTag(nil, 3, protowire.BytesType), runs)},
		{"groups in groups", append(deep, chunk...)},
		{"a length beyond the end", []byte{3<<3 | 2, 100, 15<<3 | 2, 50}},
		{"a length of 2^63", append([]byte{3<<3 | 2}, protowire.AppendVarint(nil, 1<<63)...)},
		{"a payload beyond its chunk", append([]byte{3<<3 | 2, 2, 15<<3 | 2, 50}, make([]byte, 50)...)},
		{"a run beyond its chunk", append([]byte{3<<3 | 2, 2, 4<<3 | 2, 50}, make([]byte, 50)...)},
		{"a run that ends within a number", []byte{3<<3 | 2, 4, 4<<3 | 2, 1, 1 << 3, 1}},
		{"a number of eleven bytes", append([]byte{3<<3 | 2, 12, 2 << 3}, bytes.Repeat([]byte{0xff}, 11)...)},
		{"a loan beside a payload", []byte{3<<3 | 2, 14, 6<<3 | 1, 1, 1, 1, 1, 1, 1, 1, 1, 7 << 3, 1, 15<<3 | 2, 1, 1}},
		{"a loan of no bytes", []byte{3<<3 | 2, 9, 6<<3 | 1, 1, 1, 1, 1, 1, 1, 1, 1}},
		{"bytes of no loan", []byte{3<<3 | 2, 2, 7 << 3, 1}},
		{"field 0", []byte{3<<3 | 2, 2, 0, 0}},
		{"the end of no group", []byte{3<<3 | 2, 1, 9<<3 | 4}},
		{"a long message that is no chunk", protowire.AppendBytes(protowire.AppendTag(nil, 6, protowire.BytesType), make([]byte, 2<<20))},
	} {
		t.Run(test.name, func(t *testing.T) {
			var in wire.Inbound
			if err := wire.Codec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(test.encoded)}, &in); err == nil {
				t.Errorf("taken as %v", in.Chunk)
			}
		})
	}
}

// Other messages use the protobuf library.
func TestMessages(t *testing.T) {
	sent := &kvtransferv1.SenderMessage{Message: &kvtransferv1.SenderMessage_Renew{Renew: &kvtransferv1.Renew{TransferIds: []uint64{1, 2, 3}}}}
	encoded := marshal(t, sent)
	var in wire.Inbound
	for range 2 {
		if err := wire.Codec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(encoded)}, &in); err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(in.Message, sent) {
			t.Errorf("received %v, want %v", in.Message, sent)
		}
	}
	var plain kvtransferv1.SenderMessage
	if err := wire.Codec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(encoded)}, &plain); err != nil || !proto.Equal(&plain, sent) {
		t.Errorf("received %v, want %v: %v", &plain, sent, err)
	}
}

func TestPagesThatFail(t *testing.T) {
	fault := errors.New("the device is gone")
	pages := kvtransfertest.NewPages(kvtransfertest.Layout(layers, 100), blocks)
	c, ids := randomChunk(rand.New(rand.NewPCG(1, 1)), layers, blocks)
	encoded := marshal(t, &wire.Outbound{Chunk: c, Pages: pages, Blocks: ids})
	pages.Fail(fault)
	for _, coding := range []wire.Coding{nil, twice{100}} {
		var released error
		_, err := wire.Codec().Marshal(&wire.Outbound{Chunk: c, Pages: pages, Blocks: ids, Coding: coding, Released: func(err error) { released = err }})
		if !errors.Is(err, fault) || !errors.Is(released, fault) {
			t.Errorf("sent with %v, released with %v", err, released)
		}
	}
	var in wire.Inbound
	if err := wire.Codec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(encoded)}, &in); err != nil {
		t.Fatal(err)
	}
	if err := in.CopyTo(pages, ids, nil); !errors.Is(err, fault) {
		t.Errorf("received with %v", err)
	}
	if err := in.CopyTo(newHostPages(layers, 99, blocks), ids, nil); err == nil || errors.Is(err, wire.ErrCorrupt) {
		t.Errorf("a payload of another size: %v", err)
	}
}

// FuzzUnmarshal checks that chunks are accepted exactly when the protobuf library accepts
// them.
func FuzzUnmarshal(f *testing.F) {
	random := rand.New(rand.NewPCG(9, 9))
	from := newHostPages(layers, 50, blocks)
	from.fill(random)
	for range 20 {
		c, ids := randomChunk(random, layers, blocks)
		encoded := marshal(f, &wire.Outbound{Chunk: c, Pages: from, Blocks: ids})
		f.Add(encoded, uint64(1))
		f.Add(shuffled(random, generated(f, encoded)), uint64(2))
		c.Loan, c.PayloadBytes = random.Uint64()|1, 50*len(ids)
		f.Add(marshal(f, &wire.Outbound{Chunk: c}), uint64(3))
	}
	f.Fuzz(func(t *testing.T, encoded []byte, seed uint64) {
		pool := newStrictPool(t)
		data := cut(rand.New(rand.NewPCG(seed, 0)), pool, encoded, 1+int(seed%2000))
		var in wire.Inbound
		err := wire.Codec().Unmarshal(data, &in)
		data.Free()
		defer pool.check()
		defer in.Free()
		var want kvtransferv1.SenderMessage
		if wantErr := proto.Unmarshal(encoded, &want); wantErr != nil && err == nil {
			t.Fatalf("taken as %v %v, but %v", in.Message, in.Chunk, wantErr)
		}
		if err != nil {
			return // some messages only protobuf accepts: see TestRefused
		}
		if in.Message != nil {
			if !proto.Equal(in.Message, &want) {
				t.Fatalf("got %v, want %v", in.Message, &want)
			}
			return
		}
		m := want.GetChunk()
		if m == nil || in.Chunk.TransferID != m.GetTransferId() || in.Chunk.Sequence != m.GetSequence() ||
			in.Chunk.Layer != m.GetLayer() || in.Chunk.PayloadBytes != len(m.GetPayload())+int(m.GetLentBytes()) || in.Chunk.Loan != m.GetLoan() || len(in.Chunk.Runs) != len(m.GetRuns()) {
			t.Fatalf("got %v, want %v", in.Chunk, m)
		}
		for i, r := range m.GetRuns() {
			if in.Chunk.Runs[i] != (wire.Run{First: r.GetFirstBlock(), Blocks: r.GetBlocks()}) {
				t.Fatalf("run %d: got %v, want %v", i, in.Chunk.Runs[i], r)
			}
		}
		if m.GetLoan() != 0 {
			if err := in.TakeTo(new(taker), nil); (sumLent(m) == m.GetCrc32C()) != (err == nil) {
				t.Fatalf("checksum %#x of %#x: %v", m.GetCrc32C(), sumLent(m), err)
			}
			return
		}
		if len(m.GetPayload()) == 0 || in.Chunk.Layer >= 64 {
			return
		}
		to := newHostPages(64, len(m.GetPayload()), 1)
		copied := in.CopyTo(to, []kvcache.BlockID{0}, nil)
		if (sum(m) == m.GetCrc32C()) != (copied == nil) {
			t.Fatalf("checksum %#x of %#x: %v", m.GetCrc32C(), sum(m), copied)
		}
		if !bytes.Equal(to.View(int(in.Chunk.Layer), 0), m.GetPayload()) {
			t.Fatal("other bytes than those of the payload")
		}
	})
}
