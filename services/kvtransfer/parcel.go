package kvtransfer

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
)

// parcel is a message that was encoded before it is sent.
type parcel struct{ data mem.BufferSlice }

// free gives back what was not sent.
func (p *parcel) free() {
	p.data.Free()
	p.data = nil
}

// parcels is a codec that takes parcels besides.
type parcels struct{ encoding.CodecV2 }

// Marshal implements encoding.CodecV2. What a parcel holds is given away by it.
func (p parcels) Marshal(v any) (mem.BufferSlice, error) {
	encoded, is := v.(*parcel)
	if !is {
		return p.CodecV2.Marshal(v)
	}
	data := encoded.data
	encoded.data = nil
	return data, nil
}
