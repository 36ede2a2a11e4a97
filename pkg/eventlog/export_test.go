package eventlog

import (
	"bytes"
	"log/slog"

	"github.com/klauspost/compress/zstd"
)

// Framed returns a function that makes a log of records.
func Framed() (func(records []byte) []byte, error) {
	z, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	var e encoder
	e.string("build")
	e.time(e.base)
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
func Stuck(codecs Codecs, logger *slog.Logger) *Log {
	written := make(chan struct{})
	close(written)
	return &Log{
		options: Options{Codecs: codecs, Logger: logger}, full: make(chan []byte, maxWaiting/segmentBytes), closing: make(chan struct{}), written: written,
	}
}

// Waiting is how many bytes wait to be written.
func Waiting(l *Log) int { return l.waiting }

// Spare is how long the buffers are that are kept.
func Spare(l *Log) (n int) {
	for _, b := range l.spare {
		n += cap(b)
	}
	return n
}

// Kept is how many cores a reader knows, and for how many functions it keeps how they are written.
func Kept(r *Reader) (cores, functions int) {
	for _, c := range r.cores {
		functions += len(c.plans)
	}
	return len(r.cores), functions
}
