package eventlog

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/klauspost/compress/zstd"
)

// Options of a Log.
type Options struct {
	// Codecs are for every configuration, event and action of its cores.
	Codecs Codecs
	// Build names the program that writes.
	Build string
	// Limit is how long the file may become, in bytes.
	Limit int64
	// Logger is told when recording ends before Close.
	Logger *slog.Logger
}

// Log is a file of what some cores take in and do. Its methods are safe for concurrent use.
type Log struct {
	options Options
	base    time.Time
	path    string
	full    chan []byte // segments to be written
	closing chan struct{}
	written chan struct{} // closed when nothing more is written
	err     error         // of writing; read once written is closed
	ended   atomic.Bool   // nothing is recorded any more

	mu      sync.Mutex
	filled  []byte // records
	waiting int    // bytes of full segments that are not written yet
	spare   [][]byte
	last    time.Time // of the last record
	cores   uint64
	why     string // recording ended
}

const (
	// maxWaiting is how many bytes of full segments may wait to be written. They are
	// segmentBytes long at least, so that full always has room.
	maxWaiting = maxRecord + 32*segmentBytes
	// maxSpare is how many buffers are kept to be filled again.
	maxSpare = 4
	// flushEvery is how long a record waits at most, so that little is missing of a
	// process that is killed.
	flushEvery = time.Second
	// closeBytes is how much of the limit is kept for the end.
	closeBytes = 1 << 10
)

// Create begins a new file. The caller has to close the log.
func Create(path string, o Options) (*Log, error) {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600) // prompts are in it
	if err != nil {
		return nil, fmt.Errorf("create an event log: %w", err)
	}
	z, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("create an event log: %w", err)
	}
	l := &Log{
		options: o, base: time.Now(), path: path,
		full: make(chan []byte, maxWaiting/segmentBytes), closing: make(chan struct{}), written: make(chan struct{}),
	}
	l.last = l.base.Round(0)
	w := &writer{log: l, file: file, zstd: z}
	w.begin()
	go w.run()
	return l, nil
}

// Now is a clock for the loops of the cores. It goes on evenly whatever becomes of the wall
// clock, and its times have no monotonic reading, so that they are read as they were.
func (l *Log) Now() time.Time { return l.base.Add(time.Since(l.base)).Round(0) }

// Close writes what is left. Its error is the first one of writing.
func (l *Log) Close() error {
	l.mu.Lock()
	first := !l.ended.Swap(true)
	if first {
		close(l.closing)
	}
	l.mu.Unlock()
	<-l.written
	if !first {
		return nil // it was said
	}
	return l.err
}

// record adds a record, in two parts. It requires l.mu.
func (l *Log) record(head, rest []byte) {
	l.filled = binary.AppendUvarint(l.filled, uint64(len(head)+len(rest)))
	l.filled = append(append(l.filled, head...), rest...)
	switch n := len(l.filled); {
	case n < segmentBytes:
	case l.waiting+n > maxWaiting:
		l.stop("the disk is too slow for what happens")
	default:
		l.full <- l.take()
	}
}

// take returns what is filled, which waits from now on, and begins anew. It requires l.mu.
func (l *Log) take() (records []byte) {
	records, l.filled = l.filled, nil
	l.waiting += len(records)
	if n := len(l.spare); n > 0 {
		l.filled, l.spare = l.spare[n-1], l.spare[:n-1]
	}
	return records
}

// stop ends recording early, which it says once. It requires l.mu.
func (l *Log) stop(why string) {
	if l.why != "" {
		return
	}
	l.why = why
	l.options.Logger.Error("recording of events has ended: the log holds what happened until now",
		slog.String("file", l.path), slog.String("error", why))
	if !l.ended.Swap(true) {
		close(l.closing)
	}
}

// writer writes the file. All but its fields belongs to the log.
type writer struct {
	log   *Log
	file  *os.File
	zstd  *zstd.Encoder
	frame []byte
	size  int64
	err   error
}

// begin writes what the file begins with.
func (w *writer) begin() {
	e := encoder{base: w.log.base}
	e.string(w.log.options.Build)
	e.time(w.log.base)
	w.put([]byte(magic))
	w.put(frame(w.zstd, nil, e.buf))
}

func (w *writer) put(data []byte) {
	if w.err != nil {
		return
	}
	_, w.err = w.file.Write(data)
	w.size += int64(len(data))
}

// run writes segments until the log ends.
func (w *writer) run() {
	l := w.log
	defer close(l.written)
	flush := time.NewTicker(flushEvery)
	defer flush.Stop()
	for closing := false; !closing; {
		select {
		case records := <-l.full:
			w.segment(records)
		case <-flush.C:
			w.rest()
		case <-l.closing:
			closing = true
		}
		if w.err != nil {
			l.mu.Lock()
			l.stop(w.err.Error())
			l.mu.Unlock()
		}
	}
	for len(l.full) > 0 {
		w.segment(<-l.full)
	}
	w.rest()
	var e encoder
	e.buf = append(e.buf, recordClose)
	l.mu.Lock()
	e.string(l.why)
	l.mu.Unlock()
	w.put(frame(w.zstd, w.frame[:0], append(binary.AppendUvarint(nil, uint64(len(e.buf))), e.buf...)))
	if err := w.file.Close(); w.err == nil {
		w.err = err
	}
	l.err = w.err
}

// rest writes the records that make no segment yet.
func (w *writer) rest() {
	l := w.log
	l.mu.Lock()
	// Those that were full were first.
	for len(l.full) > 0 {
		records := <-l.full
		l.mu.Unlock()
		w.segment(records)
		l.mu.Lock()
	}
	if len(l.filled) == 0 {
		l.mu.Unlock()
		return
	}
	records := l.take()
	l.mu.Unlock()
	w.segment(records)
}

// segment writes some records, unless the file would be too long.
func (w *writer) segment(records []byte) {
	l := w.log
	w.frame = frame(w.zstd, w.frame[:0], records)
	if !w.full(len(w.frame)) {
		w.put(w.frame)
	}
	if cap(w.frame) > 2*segmentBytes {
		w.frame = nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting -= len(records)
	if len(l.spare) < maxSpare && cap(records) <= 2*segmentBytes {
		l.spare = append(l.spare, records[:0])
	}
}

// full reports whether so many bytes more are too many, and if so ends the log.
func (w *writer) full(more int) bool {
	l := w.log
	if w.size+int64(more)+closeBytes <= l.options.Limit {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stop("the file has reached its limit")
	// Nothing that comes later may follow.
	w.size = l.options.Limit
	return true
}
