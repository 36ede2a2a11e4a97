package eventlog

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"reflect"
	"time"

	"github.com/klauspost/compress/zstd"
)

// CutError says that a log ends before it was closed: its process was killed, or the disk was
// full. What was read before is whole.
type CutError struct {
	// Offset is where in the file the last whole part ends.
	Offset int64
	// Within: the file ends within a part.
	Within bool
}

// Error says where.
func (e *CutError) Error() string {
	if e.Within {
		return fmt.Sprintf("the log is cut short: after byte %d a part is not whole", e.Offset)
	}
	return fmt.Sprintf("the log was not closed: it ends at byte %d with its process", e.Offset)
}

// DamagedError says that a log does not hold what was written.
type DamagedError struct {
	// Offset is where in the file the part begins that is damaged.
	Offset int64
	// Why says what is wrong with it.
	Why string
}

// Error says where and what.
func (e *DamagedError) Error() string {
	return fmt.Sprintf("the log is damaged at byte %d: %s", e.Offset, e.Why)
}

// Reader reads a log, and compares what state machines do now with what they did. It is not
// safe for concurrent use.
type Reader struct {
	codecs Codecs
	in     io.Reader
	zstd   *zstd.Decoder
	offset int64 // where the present segment begins in the file
	after  int64 // and where it ends
	left   decoder
	closed bool
	err    error // of Next
	// Build is the program that wrote the log, and Began when.
	Build string
	Began time.Time
	// Why is why the log does not go on to the end of what it records, once Next has
	// returned io.EOF; "": it does.
	Why string

	last    time.Time
	events  uint64
	cores   map[uint64]*readCore // that have not ended
	only    string
	present *Record
}

// readCore is a core of a log.
type readCore struct {
	codec *Codec
	funcs uint64 // how many functions it had so far
	plans []plansFrom
}

// Record is one event of a state machine, its beginning or its end.
type Record struct {
	// Core is the number of the state machine.
	Core uint64
	// Kind and Config are those of Begin; "" if the record is no beginning.
	Kind   string
	Config any
	// End: the state machine gets nothing more.
	End bool
	// Number counts the events in the file from 1, Now is the event's time. The functions in
	// it answer as they did, until Next is called again. The first of them is the core's
	// function of the number Function.
	Number   uint64
	Now      time.Time
	Event    any
	Function uint64

	reader *Reader
	core   *readCore
	shown  []byte   // the event
	left   decoder  // the calls that are to be made still, and the actions
	start  []byte   // all of them
	calls  []string // that were made
	other  bool     // one of them was another one
}

// NewReader reads the beginning of a log.
func NewReader(in io.Reader, codecs Codecs) (*Reader, error) {
	z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxSegment))
	if err != nil {
		return nil, fmt.Errorf("read an event log: %w", err)
	}
	r := &Reader{codecs: codecs, in: in, zstd: z, cores: make(map[uint64]*readCore)}
	begin := make([]byte, len(magic))
	n, err := io.ReadFull(in, begin)
	switch {
	case errors.Is(err, io.EOF):
		return nil, errors.New("the file is empty, and so no event log")
	case err != nil && !errors.Is(err, io.ErrUnexpectedEOF):
		return nil, fmt.Errorf("read: %w", err)
	case !bytes.HasPrefix(begin[:n], []byte(magicBegin)):
		return nil, errors.New("this is no event log, which serve and up write with --record")
	case err != nil:
		return nil, &CutError{Within: true}
	case string(begin) != magic:
		return nil, fmt.Errorf("the log has the format %q, which this version does not read: replay it with the version that wrote it", begin[len(magicBegin):n-1])
	}
	r.after = int64(n)
	if err := r.segment(); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, &CutError{Offset: r.after}
		}
		return nil, err
	}
	r.Build, r.Began = r.left.string(), r.left.time()
	if r.left.err != nil {
		return nil, r.damaged("%v", r.left.err)
	}
	r.last = r.Began
	return r, nil
}

// Only has Next leave out all cores but those of a kind.
func (r *Reader) Only(kind string) { r.only = kind }

func (r *Reader) damaged(format string, args ...any) error {
	return &DamagedError{Offset: r.offset, Why: fmt.Sprintf(format, args...)}
}

// segment reads the next segment; io.EOF: there is none.
func (r *Reader) segment() error {
	r.offset = r.after
	data := make([]byte, segmentHead)
	n, err := io.ReadFull(r.in, data)
	switch {
	case n == 0 && errors.Is(err, io.EOF):
		return io.EOF
	case errors.Is(err, io.ErrUnexpectedEOF):
		return &CutError{Offset: r.offset, Within: true}
	case err != nil:
		return fmt.Errorf("read at byte %d: %w", r.offset, err)
	}
	stored, raw := binary.LittleEndian.Uint32(data), binary.LittleEndian.Uint32(data[4:])
	if stored > maxSegment || raw > maxSegment {
		return r.damaged("it says to be %d bytes long", max(stored, raw))
	}
	var body bytes.Buffer // grows by what there is, not by what is said
	read, err := io.CopyN(&body, r.in, int64(stored))
	switch {
	case errors.Is(err, io.EOF):
		return &CutError{Offset: r.offset, Within: true}
	case err != nil:
		return fmt.Errorf("read at byte %d: %w", r.offset, err)
	}
	r.after += segmentHead + read
	data = append(data, body.Bytes()...)
	if binary.LittleEndian.Uint32(data[8:]) != sumOf(data) {
		return r.damaged("the checksum is wrong")
	}
	records, err := r.zstd.DecodeAll(data[segmentHead:], nil)
	if err != nil || uint32(len(records)) != raw {
		return r.damaged("it cannot be decompressed")
	}
	r.left = decoder{data: records}
	return nil
}

// Next reads the next record. io.EOF is the end of a log that was closed; for one that was not
// it is a CutError, and for one that cannot be read a DamagedError. The error, too, is the same
// from then on.
func (r *Reader) Next() (record *Record, _ error) {
	if r.err == nil {
		record, r.err = r.next()
	}
	return record, r.err
}

func (r *Reader) next() (*Record, error) {
	for {
		for len(r.left.data) == 0 {
			switch err := r.segment(); {
			case err == nil && r.closed:
				return nil, r.damaged("something follows the end")
			case errors.Is(err, io.EOF) && !r.closed:
				return nil, &CutError{Offset: r.after}
			case err != nil:
				return nil, err
			}
		}
		d := decoder{data: r.left.bytes(r.left.count())}
		if r.left.err != nil {
			return nil, r.damaged("a record: %v", r.left.err)
		}
		record, err := r.record(&d)
		switch {
		case err != nil:
			return nil, err
		case r.closed && len(r.left.data) > 0:
			return nil, r.damaged("something follows the end")
		case record != nil:
			return record, nil
		}
	}
}

// record reads a record; nil: it is the last one, or left out.
func (r *Reader) record(d *decoder) (*Record, error) {
	what := d.bytes(1)[0]
	if what == recordClose {
		r.closed, r.Why = true, d.string()
		return nil, r.damagedBy(d)
	}
	out := &Record{reader: r, Core: d.uvarint()}
	switch what {
	case recordBegin:
		out.Kind = d.string()
		schema, codec := d.uvarint(), r.codecs[out.Kind]
		if r.only != "" && out.Kind != r.only {
			return nil, r.damagedBy(d)
		}
		if d.err == nil && (codec == nil || codec.schema != schema) {
			return nil, fmt.Errorf("the log was written by version %s, whose events of kind %q are not those of this one: replay it with that version", r.Build, out.Kind)
		}
		r.cores[out.Core] = &readCore{codec: codec}
	case recordEvent:
		r.last = r.last.Add(time.Duration(d.varint()))
		r.events++
		out.Number, out.Now = r.events, r.last
	case recordEnd:
		out.End = true
	default:
		d.fail("kind %d is not known", what)
	}
	if out.core = r.cores[out.Core]; out.core == nil || d.err != nil {
		if r.only == "" {
			d.fail("core %d has not begun", out.Core)
		}
		return nil, r.damagedBy(d)
	}
	r.present, out.Function = out, out.core.funcs
	switch what {
	case recordBegin:
		out.Config = out.value(d)
	case recordEvent:
		out.shown = d.data
		out.Event = out.value(d)
		out.left, out.start = *d, d.data
	case recordEnd:
		delete(r.cores, out.Core)
	}
	return out, r.damagedBy(d)
}

// damagedBy says why a record cannot be read; nil: it can.
func (r *Reader) damagedBy(d *decoder) error {
	if d.err == nil {
		return nil
	}
	return r.damaged("a record: %v", d.err)
}

// value reads a configuration or an event.
func (r *Record) value(d *decoder) (value any) {
	d.function = r.answer
	r.core.codec.decodeInterface(d, reflect.ValueOf(&value).Elem())
	d.function = nil
	return value
}
