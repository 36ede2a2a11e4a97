package eventlog

import (
	"bytes"
	"log/slog"

	"github.com/klauspost/compress/zstd"
)

// Framed returns a function that makes a log of records.
func Framed(codec *Codec) (func(records []byte) []byte, error) {
	z, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	var e encoder
	e.string("build")
	e.time(e.base)
	e.uvarint(codec.schema)
	file := append([]byte(magic), frame(z, nil, e.buf)...)
	return func(records []byte) []byte { return append(bytes.Clone(file), frame(z, nil, records)...) }, nil
}

// Records are those of a log that was not cut, as they stand in it.
func Records(r *Reader) (records []byte) {
	for {
		records = append(records, r.left.data...)
		if r.segment() != nil {
			return records
		}
		r.left.err = nil
	}
}

// Stuck is a log whose disk takes nothing.
func Stuck(codec *Codec, logger *slog.Logger) *Log {
	written := make(chan struct{})
	close(written)
	return &Log{
		options: Options{Codec: codec, Logger: logger}, full: make(chan []byte, queuedSegments), closing: make(chan struct{}), written: written,
	}
}
