package client

import "google.golang.org/grpc/mem"

// DecodeEvent decodes a message as a client does, in that many pieces.
func DecodeEvent(b []byte, keep bool, pieces int) (tokens int, ids []uint32, text string, err error) {
	e := &event{keep: keep}
	var data mem.BufferSlice
	for i := range pieces {
		data = append(data, mem.SliceBuffer(b[len(b)*i/pieces:len(b)*(i+1)/pieces]))
	}
	err = eventCodec{}.Unmarshal(data, e)
	return e.tokens, e.ids, string(e.text), err
}
