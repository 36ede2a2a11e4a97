package rpc

import "context"

// IncomingTrace and OutgoingTrace are what every call passes.
func IncomingTrace(ctx context.Context) context.Context { return incomingTrace(ctx) }

// OutgoingTrace is outgoingTrace.
func OutgoingTrace(ctx context.Context) context.Context { return outgoingTrace(ctx) }

// FrameHeader is what a meter knows of a frame.
type FrameHeader struct {
	Kind, Flags byte
	Stream      uint32
	Bytes       int
}

// Frames are the frames of an HTTP/2 connection whose bytes come in pieces.
func Frames(pieces [][]byte) (found []FrameHeader) {
	var f frames
	for _, piece := range pieces {
		f.scan(piece, func(h frame) { found = append(found, FrameHeader{h.kind, h.flags, h.stream, h.bytes}) })
	}
	return found
}
