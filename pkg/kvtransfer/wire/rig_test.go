package wire_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math/rand/v2"
	"sync"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/kvtransfertest"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/wire"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// hostPages are so many pages in host memory.
type hostPages struct {
	*kvtransfertest.Pages
	blocks int
}

func newHostPages(layers, slice, blocks int) *hostPages {
	return &hostPages{kvtransfertest.NewHostPages(kvtransfertest.Layout(layers, slice), blocks), blocks}
}

func (p *hostPages) fill(random *rand.Rand) {
	for block := range p.blocks {
		for layer := range p.Layout().Layers {
			slice := p.View(layer, kvcache.BlockID(block))
			for i := range slice {
				slice[i] = byte(random.Uint32())
			}
		}
	}
}

// all returns a copy of all pages.
func (p *hostPages) all() (all []byte) {
	for block := range p.blocks {
		all = append(all, p.Page(kvcache.BlockID(block))...)
	}
	return all
}

// devicePages are the same behind Read and Write.
type devicePages struct{ *hostPages }

func (p devicePages) View(int, kvcache.BlockID) []byte { return nil }

func (p devicePages) Read(layer int, blocks []kvcache.BlockID, dst []byte) error {
	for i, b := range blocks {
		copy(dst[i*p.Layout().SliceBytes:], p.hostPages.View(layer, b))
	}
	return nil
}

func (p devicePages) Write(layer int, blocks []kvcache.BlockID, src []byte) error {
	for i, b := range blocks {
		copy(p.hostPages.View(layer, b), src[i*p.Layout().SliceBytes:])
	}
	return nil
}

// stagingPages are devicePages with two staging buffers, which hold most chunks.
type stagingPages struct {
	devicePages
	idle chan []byte
}

func newStaging(p *hostPages) stagingPages {
	s := stagingPages{devicePages{p}, make(chan []byte, 2)}
	for range cap(s.idle) {
		s.idle <- make([]byte, 8*p.Layout().SliceBytes+2000)
	}
	return s
}

func (p stagingPages) Stage(bytes int) (memory []byte, release func()) {
	select {
	case b := <-p.idle:
		back := func() { p.idle <- b }
		if len(b) >= bytes {
			return b, back
		}
		back()
	default:
	}
	return nil, nil
}

// twice is a Coding that writes each byte and its complement.
type twice struct{ slice int }

var errNotTwice = errors.New("not a byte and its complement")

func (c twice) EncodedBytes() int { return 2 * c.slice }

func (c twice) Encode(dst, src []byte) {
	for i, b := range src {
		dst[2*i], dst[2*i+1] = b, ^b
	}
}

func (c twice) Decode(dst, src []byte) error {
	for i := range dst {
		if src[2*i] != ^src[2*i+1] {
			return errNotTwice
		}
		dst[i] = src[2*i]
	}
	return nil
}

// strictPool is a buffer pool that detects use after free, double free and leaks.
type strictPool struct {
	t   testing.TB
	mu  sync.Mutex
	out map[*[]byte]bool
}

func newStrictPool(t testing.TB) *strictPool { return &strictPool{t: t, out: map[*[]byte]bool{}} }

func (p *strictPool) Get(n int) *[]byte {
	b := make([]byte, n)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.out[&b] = true
	return &b
}

func (p *strictPool) Put(b *[]byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.out[b] {
		p.t.Error("a buffer was given back twice")
	}
	delete(p.out, b)
	for i := range *b {
		(*b)[i] = 0xdd // a later read sees garbage
	}
}

func (p *strictPool) check() {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.out) > 0 {
		p.t.Errorf("%d buffers were not given back", len(p.out))
	}
}

// cut splits a message into buffers at arbitrary points. Pieces above 1 KiB come from the
// pool.
func cut(random *rand.Rand, pool mem.BufferPool, message []byte, most int) mem.BufferSlice {
	var slice mem.BufferSlice
	for len(message) > 0 {
		n := min(1+random.IntN(most), len(message))
		slice = append(slice, mem.Copy(message[:n], pool))
		message = message[n:]
	}
	return slice
}

// sum computes a chunk's checksum as the proto file specifies it.
func sum(c *kvtransferv1.Chunk) uint32 {
	var text bytes.Buffer
	words := []any{c.GetTransferId(), c.GetSequence(), c.GetLayer(), uint32(len(c.GetRuns()))}
	for _, r := range c.GetRuns() {
		words = append(words, r.GetFirstBlock(), r.GetBlocks())
	}
	for _, word := range words {
		if err := binary.Write(&text, binary.LittleEndian, word); err != nil {
			panic(err)
		}
	}
	text.Write(c.GetPayload())
	return crc32.Checksum(text.Bytes(), crc32.MakeTable(crc32.Castagnoli))
}

// marshal returns a message's bytes on the wire.
func marshal(t testing.TB, out any) []byte {
	t.Helper()
	data, err := wire.Codec().Marshal(out)
	if err != nil {
		t.Fatal(err)
	}
	defer data.Free()
	return data.Materialize()
}

// randomChunk describes random blocks of a reservation that begins at block 0.
func randomChunk(random *rand.Rand, layers, blocks int) (wire.Chunk, []kvcache.BlockID) {
	c := wire.Chunk{TransferID: random.Uint64(), Sequence: random.Uint32() >> random.IntN(32), Layer: uint32(random.IntN(layers))}
	var ids []kvcache.BlockID
	for at := random.IntN(3); at < blocks; {
		n := 1 + random.IntN(blocks-at)
		c.Runs = append(c.Runs, wire.Run{First: uint32(at), Blocks: uint32(n)})
		for i := range n {
			ids = append(ids, kvcache.BlockID(at+i))
		}
		at += n + 1 + random.IntN(3)
	}
	return c, ids
}

// generated decodes a chunk with the protobuf library.
func generated(t testing.TB, encoded []byte) *kvtransferv1.Chunk {
	t.Helper()
	var m kvtransferv1.SenderMessage
	if err := proto.Unmarshal(encoded, &m); err != nil {
		t.Fatal(err)
	}
	if len(m.ProtoReflect().GetUnknown())+len(m.GetChunk().ProtoReflect().GetUnknown()) > 0 {
		t.Fatal("there are fields that the proto file does not have")
	}
	return m.GetChunk()
}
