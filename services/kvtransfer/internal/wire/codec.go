package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	protobuf "google.golang.org/protobuf/proto"

	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// Numbers of the fields that are written and read by hand.
const (
	fieldChunk = 3 // of SenderMessage

	fieldTransferID = 1
	fieldSequence   = 2
	fieldLayer      = 3
	fieldRuns       = 4
	fieldPayload    = 15
	fieldCRC32C     = 16

	fieldFirstBlock = 1 // of Run
	fieldBlocks     = 2
)

// errMalformed is a chunk that is no protobuf of its kind.
var errMalformed = errors.New("kv transfer: a malformed chunk")

// Codec is grpc-go's codec for protobuf, and takes *Outbound and *Inbound besides.
// It is safe for concurrent use.
func Codec() encoding.CodecV2 { return codec{encoding.GetCodecV2(proto.Name)} }

type codec struct{ encoding.CodecV2 }

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	out, is := v.(*Outbound)
	switch {
	case !is:
		return c.CodecV2.Marshal(v)
	case out.Message != nil:
		return c.CodecV2.Marshal(out.Message)
	}
	encoded, err := out.marshal()
	if out.Released != nil {
		out.Released(err)
	}
	if err != nil {
		return nil, err
	}
	return mem.BufferSlice{mem.SliceBuffer(encoded)}, nil
}

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	in, is := v.(*Inbound)
	if !is {
		return c.CodecV2.Unmarshal(data, v)
	}
	in.Free()
	encoded := data.Materialize()
	number, kind, n := protowire.ConsumeTag(encoded)
	if n >= 0 && number == fieldChunk && kind == protowire.BytesType {
		body, m := protowire.ConsumeBytes(encoded[n:])
		if m < 0 || n+m != len(encoded) {
			return errMalformed
		}
		return in.unmarshal(body)
	}
	in.Message = new(kvtransferv1.SenderMessage)
	if err := protobuf.Unmarshal(encoded, in.Message); err != nil {
		return fmt.Errorf("kv transfer: %w", err)
	}
	if in.Message.GetChunk() != nil {
		return errMalformed // written behind another message, which it replaces
	}
	return nil
}

func (out *Outbound) marshal() ([]byte, error) {
	slice := out.Pages.Layout().SliceBytes
	payload := make([]byte, len(out.Blocks)*slice)
	if err := out.Pages.Read(int(out.Chunk.Layer), out.Blocks, payload); err != nil {
		return nil, err
	}
	if out.Coding != nil {
		encoded := make([]byte, len(out.Blocks)*out.Coding.EncodedBytes())
		for i := range out.Blocks {
			out.Coding.Encode(encoded[i*out.Coding.EncodedBytes():(i+1)*out.Coding.EncodedBytes()], payload[i*slice:(i+1)*slice])
		}
		payload = encoded
	}
	body := appendHeader(nil, out.Chunk)
	body = protowire.AppendTag(body, fieldPayload, protowire.BytesType)
	body = protowire.AppendBytes(body, payload)
	body = protowire.AppendTag(body, fieldCRC32C, protowire.Fixed32Type)
	body = protowire.AppendFixed32(body, checksum(out.Chunk, payload))
	message := protowire.AppendTag(nil, fieldChunk, protowire.BytesType)
	return protowire.AppendBytes(message, body), nil
}

// appendHeader appends the fields before the payload.
func appendHeader(b []byte, c Chunk) []byte {
	b = protowire.AppendTag(b, fieldTransferID, protowire.Fixed64Type)
	b = protowire.AppendFixed64(b, c.TransferID)
	for _, f := range []struct {
		number protowire.Number
		value  uint32
	}{{fieldSequence, c.Sequence}, {fieldLayer, c.Layer}} {
		b = protowire.AppendTag(b, f.number, protowire.VarintType)
		b = protowire.AppendVarint(b, uint64(f.value))
	}
	for _, r := range c.Runs {
		run := protowire.AppendTag(nil, fieldFirstBlock, protowire.VarintType)
		run = protowire.AppendVarint(run, uint64(r.First))
		run = protowire.AppendTag(run, fieldBlocks, protowire.VarintType)
		run = protowire.AppendVarint(run, uint64(r.Blocks))
		b = protowire.AppendTag(b, fieldRuns, protowire.BytesType)
		b = protowire.AppendBytes(b, run)
	}
	return b
}

func (in *Inbound) unmarshal(body []byte) error {
	message := new(kvtransferv1.Chunk)
	if err := protobuf.Unmarshal(body, message); err != nil {
		return errMalformed
	}
	in.Chunk = Chunk{
		TransferID: message.GetTransferId(), Sequence: message.GetSequence(), Layer: message.GetLayer(),
		Runs: in.Chunk.Runs[:0], PayloadBytes: len(message.GetPayload()),
	}
	for _, r := range message.GetRuns() {
		in.Chunk.Runs = append(in.Chunk.Runs, Run{First: r.GetFirstBlock(), Blocks: r.GetBlocks()})
	}
	in.payload, in.crc32c = message.GetPayload(), message.GetCrc32C()
	return nil
}

// checksum is that of a chunk: CRC-32C over its header and its payload, as the
// proto file says.
func checksum(c Chunk, payload []byte) uint32 {
	header := binary.LittleEndian.AppendUint64(make([]byte, 0, 20+8*len(c.Runs)), c.TransferID)
	header = binary.LittleEndian.AppendUint32(header, c.Sequence)
	header = binary.LittleEndian.AppendUint32(header, c.Layer)
	header = binary.LittleEndian.AppendUint32(header, uint32(len(c.Runs)))
	for _, r := range c.Runs {
		header = binary.LittleEndian.AppendUint32(header, r.First)
		header = binary.LittleEndian.AppendUint32(header, r.Blocks)
	}
	table := crc32.MakeTable(crc32.Castagnoli)
	return crc32.Update(crc32.Checksum(header, table), table, payload)
}

// CommitChecksum is that of a Commit, as the proto file says.
func CommitChecksum(m *kvtransferv1.Commit) uint32 {
	text := binary.LittleEndian.AppendUint64(nil, m.GetTransferId())
	text = binary.LittleEndian.AppendUint64(text, m.GetEpoch())
	text = binary.LittleEndian.AppendUint32(text, m.GetChunks())
	text = binary.LittleEndian.AppendUint32(text, uint32(len(m.GetSampledTokenIds())))
	for _, token := range m.GetSampledTokenIds() {
		text = binary.LittleEndian.AppendUint32(text, token)
	}
	return crc32.Checksum(text, crc32.MakeTable(crc32.Castagnoli))
}
