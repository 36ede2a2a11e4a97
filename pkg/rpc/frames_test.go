package rpc_test

import (
	"bytes"
	"slices"
	"testing"

	"golang.org/x/net/http2"
	"pgregory.net/rapid"

	"github.com/tandem-serving/tandem/pkg/rpc"
)

// However the bytes of a connection are cut, the same frames are in them, and they
// are those that were written.
func TestFrames(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var stream bytes.Buffer
		framer := http2.NewFramer(&stream, nil)
		framer.AllowIllegalWrites = true
		var want []rpc.FrameHeader
		for range rapid.IntRange(0, 10).Draw(t, "frames") {
			h := rpc.FrameHeader{
				Kind: rapid.Byte().Draw(t, "kind"), Flags: rapid.Byte().Draw(t, "flags"),
				Stream: rapid.Uint32Range(0, 1<<31-1).Draw(t, "stream"), Bytes: rapid.IntRange(0, 300).Draw(t, "bytes"),
			}
			if err := framer.WriteRawFrame(http2.FrameType(h.Kind), http2.Flags(h.Flags), h.Stream, make([]byte, h.Bytes)); err != nil {
				t.Fatal(err)
			}
			want = append(want, h)
		}
		var pieces [][]byte
		for rest := stream.Bytes(); len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "piece")
			pieces, rest = append(pieces, rest[:n]), rest[n:]
		}
		if got := rpc.Frames(pieces); !slices.Equal(got, want) {
			t.Fatalf("%v, want %v", got, want)
		}
	})
}

// FuzzFrames cuts any bytes into two pieces: the frames are those of the whole.
func FuzzFrames(f *testing.F) {
	f.Add([]byte("\x00\x00\x04\x08\x00\x00\x00\x00\x00\x00\x3f\x00\x01\x00\x00\x00\x00\x00\x00\x00\x01x"), uint16(3))
	f.Add([]byte("\xff\xff\xff\x00\xff\xff\xff\xff\xff"), uint16(9))
	f.Fuzz(func(t *testing.T, data []byte, cut uint16) {
		at := min(int(cut), len(data))
		if whole, pieces := rpc.Frames([][]byte{data}), rpc.Frames([][]byte{data[:at], data[at:]}); !slices.Equal(whole, pieces) {
			t.Errorf("%v in pieces, %v at once", pieces, whole)
		}
	})
}
