package kvtransfer_test

import (
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/internal/int8kv"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/kvtransfertest"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/wire"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// The bytes in docs/kv-transfer.md are what the code sends, accepts and sums.

var exampleLayout = kvcache.Layout{
	ModelDigest: "ab12", ArithmeticClass: "cpu/bf16/bf16/1", Layers: 2, KVHeads: 1, HeadSize: 2,
	ElementType: "bf16", BlockTokens: 2, Order: "k-d2t2/v-t2d2/1", SliceBytes: 16,
}

// page returns the page's text.
func page(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/kv-transfer.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// example returns the lines of a named code block of the page.
func example(t *testing.T, name string) []string {
	t.Helper()
	_, rest, found := strings.Cut(page(t), "<!-- example: "+name+" -->\n```\n")
	text, _, closed := strings.Cut(rest, "```")
	if !found || !closed {
		t.Fatalf("docs/kv-transfer.md has no example %q", name)
	}
	return strings.Split(strings.TrimSuffix(text, "\n"), "\n")
}

// exampleBytes parses an example's bytes, ignoring remarks after two spaces.
func exampleBytes(t *testing.T, name string) (all []byte) {
	t.Helper()
	for _, line := range example(t, name) {
		digits, _, _ := strings.Cut(line, "  ")
		b, err := hex.DecodeString(strings.ReplaceAll(digits, " ", ""))
		if err != nil {
			t.Fatalf("%s: %q: %v", name, line, err)
		}
		all = append(all, b...)
	}
	return all
}

// numbers returns the hexadecimal numbers that a pattern's groups match in the page.
func numbers(t *testing.T, pattern string) (all []uint64) {
	t.Helper()
	found := regexp.MustCompile(pattern).FindStringSubmatch(page(t))
	if found == nil {
		t.Fatalf("docs/kv-transfer.md has nothing like %q", pattern)
	}
	for _, digits := range found[1:] {
		var n uint64
		if _, err := fmt.Sscanf(digits, "%x", &n); err != nil {
			t.Fatal(err)
		}
		all = append(all, n)
	}
	return all
}

func castagnoli(text []byte) uint32 { return crc32.Checksum(text, crc32.MakeTable(crc32.Castagnoli)) }

func TestPageChunk(t *testing.T) {
	encoded := exampleBytes(t, "chunk message")
	message := new(kvtransferv1.SenderMessage)
	if err := proto.Unmarshal(encoded, message); err != nil {
		t.Fatal(err)
	}
	chunk := message.GetChunk()
	want := uint32(numbers(t, `crc32c: ([0-9a-f]{8})`)[0])
	if sum := castagnoli(append(exampleBytes(t, "chunk header"), chunk.GetPayload()...)); sum != want || chunk.GetCrc32C() != want {
		t.Errorf("checksum %08x, in the message %08x, in words %08x", sum, chunk.GetCrc32C(), want)
	}

	// The page's example is accepted; changed in any byte with a meaning, it is not.
	blocks := []kvcache.BlockID{4, 2} // the reservation's blocks 1 and 3
	runs := []wire.Run{{First: 1, Blocks: 1}, {First: 3, Blocks: 1}}
	pages := kvtransfertest.NewPages(exampleLayout, 6)
	take := func(encoded []byte) error {
		var in wire.Inbound
		defer in.Free()
		if err := wire.Codec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(encoded)}, &in); err != nil {
			return err
		}
		if in.Message != nil {
			return fmt.Errorf("a message, not a chunk: %v", in.Message)
		}
		if in.Chunk.PayloadBytes != 32 {
			return fmt.Errorf("a payload of %d bytes", in.Chunk.PayloadBytes)
		}
		if err := in.CopyTo(pages, blocks, nil); err != nil {
			return err
		}
		if c := in.Chunk; c.TransferID != chunk.GetTransferId() || c.Sequence != 0 || c.Layer != 1 || !slices.Equal(c.Runs, runs) {
			t.Errorf("% x is taken for %+v", encoded, c)
		}
		landed := make([]byte, 32)
		if err := pages.Read(1, blocks, landed); err != nil || !slices.Equal(landed, chunk.GetPayload()) {
			t.Errorf("% x puts % x into the pages: %v", encoded, landed, err)
		}
		return nil
	}
	if err := take(encoded); err != nil {
		t.Fatal(err)
	}
	taken := 0
	for bit := range 8 * len(encoded) {
		flipped := slices.Clone(encoded)
		flipped[bit/8] ^= 1 << (bit % 8)
		if take(flipped) == nil {
			taken++ // the sequence number, 0 if absent
		}
	}
	if taken > 8 {
		t.Errorf("%d bits are of no matter", taken)
	}
	if err := take(encoded); err != nil {
		t.Fatal(err)
	}

	// The code sends the same bytes from those pages.
	data, err := wire.Codec().Marshal(&wire.Outbound{
		Chunk: wire.Chunk{TransferID: chunk.GetTransferId(), Layer: 1, Runs: runs, PayloadBytes: 32},
		Pages: pages, Blocks: blocks,
	})
	if err != nil {
		t.Fatal(err)
	}
	sent := new(kvtransferv1.SenderMessage)
	if err := proto.Unmarshal(data.Materialize(), sent); err != nil || !proto.Equal(sent, message) {
		t.Errorf("the code sends %v, the page has %v: %v", sent, message, err)
	}
	data.Free()
}

// The page's other messages parse as it says, by the code and by protobuf.
func TestPageMessages(t *testing.T) {
	digest, epoch, id := exampleLayout.Digest(), uint64(0x1112131415161718), uint64(0x0102030405060708)
	commit := &kvtransferv1.Commit{TransferId: id, Epoch: epoch, Chunks: 1, SampledTokenIds: []uint32{17, 4093}}
	commit.Crc32C = wire.CommitChecksum(commit)
	for name, want := range map[string]*kvtransferv1.SenderMessage{
		"sender hello": {Message: &kvtransferv1.SenderMessage_Hello{Hello: &kvtransferv1.SenderHello{
			Sender: "p-1", Epoch: 0x2122232425262728, Version: 2, LayoutDigest: digest, Session: 0x3132333435363738, Stripes: 1,
		}}},
		"open message": {Message: &kvtransferv1.SenderMessage_Open{Open: &kvtransferv1.Open{
			TransferId: id, Epoch: epoch, Secret: 0x4142434445464748, LayoutDigest: digest, Encoding: kvtransferv1.Encoding_ENCODING_NATIVE,
		}}},
		"commit message": {Message: &kvtransferv1.SenderMessage_Commit{Commit: commit}},
	} {
		encoded, message := exampleBytes(t, name), new(kvtransferv1.SenderMessage)
		if err := proto.Unmarshal(encoded, message); err != nil || !proto.Equal(message, want) {
			t.Errorf("%s: the page has %v, want %v: %v", name, message, want, err)
		}
		var in wire.Inbound
		if err := wire.Codec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(encoded)}, &in); err != nil || !proto.Equal(in.Message, want) {
			t.Errorf("%s is taken for %v: %v", name, in.Message, err)
		}
		in.Free()
		if again, err := (proto.MarshalOptions{Deterministic: true}).Marshal(want); err != nil || len(again) != len(encoded) {
			t.Errorf("%s has %d bytes, the code makes %d: %v", name, len(encoded), len(again), err)
		}
	}
	hello, answer := &kvtransferv1.ReceiverHello{
		Receiver: "d-1", Epoch: epoch, Version: 2, CreditBytes: kvtransfer.DefaultCreditBytes, MaxChunkBytes: kvtransfer.DefaultMaxChunkBytes, LayoutDigest: digest,
	}, new(kvtransferv1.ReceiverMessage)
	if err := proto.Unmarshal(exampleBytes(t, "receiver hello"), answer); err != nil || !proto.Equal(answer.GetHello(), hello) {
		t.Errorf("the page has %v, want %v: %v", answer, hello, err)
	}
}

func TestPageCommit(t *testing.T) {
	commit := &kvtransferv1.Commit{TransferId: 0x0102030405060708, Epoch: 0x1112131415161718, Chunks: 1, SampledTokenIds: []uint32{17, 4093}}
	want := uint32(numbers(t, `it is ([0-9a-f]{8}):`)[0])
	if sum, text := wire.CommitChecksum(commit), castagnoli(exampleBytes(t, "commit text")); sum != want || text != want {
		t.Errorf("the code says %08x, the page's bytes %08x, its words %08x", sum, text, want)
	}
	if sum := castagnoli([]byte("123456789")); uint64(sum) != numbers(t, "`123456789` it is ([0-9a-f]{8})")[0] {
		t.Errorf("crc-32c of 123456789 is %08x", sum)
	}
}

func TestPageInt8(t *testing.T) {
	message := new(kvtransferv1.SenderMessage)
	if err := proto.Unmarshal(exampleBytes(t, "chunk message"), message); err != nil {
		t.Fatal(err)
	}
	coding, err := int8kv.New(exampleLayout)
	if err != nil {
		t.Fatal(err)
	}
	encoded := make([]byte, coding.EncodedBytes())
	coding.Encode(encoded, message.GetChunk().GetPayload()[:exampleLayout.SliceBytes])
	if want := exampleBytes(t, "int8 slice"); !slices.Equal(encoded, want) {
		t.Errorf("the code encodes % x, the page has % x", encoded, want)
	}
}

func TestPageLayoutAndHashes(t *testing.T) {
	text := strings.Join(example(t, "layout"), "\n") + "\n"
	want := fmt.Sprintf("model=%s\nclass=%s\nlayers=%d\nkv_heads=%d\nhead_size=%d\nelement=%s\nblock_tokens=%d\norder=%s\nslice_bytes=%d\n",
		exampleLayout.ModelDigest, exampleLayout.ArithmeticClass, exampleLayout.Layers, exampleLayout.KVHeads, exampleLayout.HeadSize,
		exampleLayout.ElementType, exampleLayout.BlockTokens, exampleLayout.Order, exampleLayout.SliceBytes)
	if text != want {
		t.Errorf("the page's layout is %q, the examples' %q", text, want)
	}
	if digest := numbers(t, `That of the examples here is ([0-9a-f]{16})`)[0]; digest != exampleLayout.Digest() {
		t.Errorf("digest %016x, the page says %016x", exampleLayout.Digest(), digest)
	}
	hashes := kvcache.PromptHashes(exampleLayout.ModelDigest, exampleLayout.ArithmeticClass, "", []int32{5, 6, 7, 8}, exampleLayout.BlockTokens)
	said := numbers(t, `5, 6 and 7, 8 are ([0-9a-f]{16}) and ([0-9a-f]{16})`)
	if len(hashes) != 2 || uint64(hashes[0]) != said[0] || uint64(hashes[1]) != said[1] {
		t.Errorf("hashes %016x, the page says %016x", hashes, said)
	}
}

func TestPageLent(t *testing.T) {
	encoded := exampleBytes(t, "lent chunk")
	message := new(kvtransferv1.SenderMessage)
	if err := proto.Unmarshal(encoded, message); err != nil {
		t.Fatal(err)
	}
	chunk := message.GetChunk()
	out := &wire.Outbound{Chunk: wire.Chunk{
		TransferID: chunk.GetTransferId(), Layer: 1, Runs: []wire.Run{{First: 1, Blocks: 1}, {First: 3, Blocks: 1}},
		PayloadBytes: 2 * exampleLayout.SliceBytes, Loan: 0x5152535455565758,
	}}
	data, err := wire.Codec().Marshal(out)
	if err != nil {
		t.Fatal(err)
	}
	sent := new(kvtransferv1.SenderMessage)
	if err := proto.Unmarshal(data.Materialize(), sent); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(sent, message) {
		t.Errorf("sent is %v, the page has %v", sent, message)
	}
}

// The page's written chunk is what the code sends once the slices are in the receiver's pages.
// Changed in any byte with a meaning, or with any other bit in the pages, it is not accepted.
func TestPageWritten(t *testing.T) {
	native, message := new(kvtransferv1.SenderMessage), new(kvtransferv1.SenderMessage)
	encoded := exampleBytes(t, "written chunk")
	if err := proto.Unmarshal(exampleBytes(t, "chunk message"), native); err != nil {
		t.Fatal(err)
	}
	if err := proto.Unmarshal(encoded, message); err != nil {
		t.Fatal(err)
	}
	runs := []wire.Run{{First: 1, Blocks: 1}, {First: 3, Blocks: 1}}
	source, blocks := kvtransfertest.NewPages(exampleLayout, 6), []kvcache.BlockID{5, 1}
	if err := source.Write(1, blocks, native.GetChunk().GetPayload()); err != nil {
		t.Fatal(err)
	}
	pages, targets := kvtransfertest.NewHostPages(exampleLayout, 6), []kvcache.BlockID{4, 2}
	data, err := wire.Codec().Marshal(&wire.Outbound{
		Chunk: wire.Chunk{TransferID: message.GetChunk().GetTransferId(), Layer: 1, Runs: runs},
		Pages: source, Blocks: blocks, Into: pages, Targets: targets,
	})
	if err != nil {
		t.Fatal(err)
	}
	sent := new(kvtransferv1.SenderMessage)
	if err := proto.Unmarshal(data.Materialize(), sent); err != nil || !proto.Equal(sent, message) {
		t.Errorf("the code sends %v, the page has %v: %v", sent, message, err)
	}
	data.Free()
	verify := func(encoded []byte) error {
		var in wire.Inbound
		defer in.Free()
		if err := wire.Codec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(encoded)}, &in); err != nil {
			return err
		}
		return in.Verify(pages, targets)
	}
	if err := verify(encoded); err != nil {
		t.Fatal(err)
	}
	taken := 0
	for bit := range 8 * len(encoded) {
		flipped := slices.Clone(encoded)
		flipped[bit/8] ^= 1 << (bit % 8)
		if verify(flipped) == nil {
			taken++ // the sequence number, 0 if absent
		}
	}
	if taken > 8 {
		t.Errorf("%d bits are of no matter", taken)
	}
	for _, target := range targets {
		for bit := range 8 * exampleLayout.SliceBytes {
			view := pages.View(1, target)
			view[bit/8] ^= 1 << (bit % 8)
			if err := verify(encoded); !errors.Is(err, wire.ErrCorrupt) {
				t.Errorf("bit %d of page %d is wrong: %v", bit, target, err)
			}
			view[bit/8] ^= 1 << (bit % 8)
		}
	}
}

// A socket for pages replaces one of a process that is gone, and nothing else.
func TestListenPages(t *testing.T) {
	folder := t.TempDir()
	stale, file := filepath.Join(folder, "stale"), filepath.Join(folder, "file")
	gone, err := kvtransfer.ListenPages(stale)
	if err != nil {
		t.Fatal(err)
	}
	gone.SetUnlinkOnClose(false)
	if err := errors.Join(gone.Close(), os.WriteFile(file, []byte("mine"), 0o600)); err != nil {
		t.Fatal(err)
	}
	listener, err := kvtransfer.ListenPages(stale)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if _, err := kvtransfer.ListenPages(stale); err == nil {
		t.Error("a socket that answers is replaced")
	}
	if _, err := kvtransfer.ListenPages(file); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("where a file is: %v", err)
	}
	if kept, err := os.ReadFile(file); err != nil || string(kept) != "mine" {
		t.Errorf("the file has %q: %v", kept, err)
	}
}

// The page's request for shared pages is what a sender asks with.
func TestPageRequest(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pages")
	listener, err := kvtransfer.ListenPages(path)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	asked := make(chan []byte, 1)
	go func() {
		defer close(asked)
		conn, err := listener.AcceptUnix()
		if err != nil {
			return
		}
		defer conn.Close()
		b := make([]byte, 100)
		if n, err := conn.Read(b); err == nil {
			asked <- b[:n]
			_, _ = conn.Write([]byte("no"))
		}
	}()
	if _, err := kvtransfer.MapPages(t.Context(), kvtransfer.MapRequest{
		Address: "unix:///kv", Socket: path, Key: 0x6162636465666768, TransferID: 0x0102030405060708, Secret: 0x4142434445464748, Layout: exampleLayout,
	}); err == nil || !strings.Contains(err.Error(), "no") {
		t.Errorf("what is refused is mapped: %v", err)
	}
	if got, want := <-asked, exampleBytes(t, "pages request"); !slices.Equal(got, want) {
		t.Errorf("the code asks with % x, the page has % x", got, want)
	}
}
