package wire

import (
	"encoding/binary"

	"github.com/tandem-serving/tandem/pkg/kvtransfer/internal/checksum"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// AcceptChecksum computes Accept.crc32c as specified in the proto file.
func AcceptChecksum(m *kvtransferv1.Accept) uint32 {
	text := binary.LittleEndian.AppendUint64(nil, m.GetTransferId())
	text = binary.LittleEndian.AppendUint32(text, uint32(len(m.GetPages())))
	for _, page := range m.GetPages() {
		text = binary.LittleEndian.AppendUint32(text, page)
	}
	return checksum.Update(0, text)
}

// CommitChecksum computes Commit.crc32c as specified in the proto file.
func CommitChecksum(m *kvtransferv1.Commit) uint32 {
	text := binary.LittleEndian.AppendUint64(nil, m.GetTransferId())
	text = binary.LittleEndian.AppendUint64(text, m.GetEpoch())
	text = binary.LittleEndian.AppendUint32(text, m.GetChunks())
	text = binary.LittleEndian.AppendUint32(text, uint32(len(m.GetSampledTokenIds())))
	for _, token := range m.GetSampledTokenIds() {
		text = binary.LittleEndian.AppendUint32(text, token)
	}
	return checksum.Update(0, text)
}
