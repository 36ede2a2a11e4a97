package model

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
	"slices"
)

// maxHeaderBytes is the longest safetensors header that is read: the bound of
// the format's own implementation.
const maxHeaderBytes = 100_000_000

// maxRank bounds the dimensions of a tensor.
const maxRank = 8

// maxEntryBytes bounds the JSON of one tensor, so that a header cannot make a
// shape of millions of dimensions.
const maxEntryBytes = 4096

// headerEntry is what a safetensors header says of one tensor.
type headerEntry struct {
	// Name is the tensor's.
	Name string
	// DType is as in the file: "BF16", "F32", "I64".
	DType string
	// Shape is the size of each dimension, all at least 0, at most 8 of them.
	Shape []int
	// Start and End bound the tensor's bytes, counted from the end of the header.
	Start, End int64
}

// parseHeader reads the JSON header of a safetensors file whose data part is
// dataBytes long, and checks it whole: every tensor's bytes agree with its type
// and shape, no two overlap, none reaches outside, no byte is left over, no name
// comes twice. file is for messages. The entries come in the order of their
// bytes. Memory is bounded by a small multiple of len(header). Errors are of
// type *Error.
func parseHeader(file string, header []byte, dataBytes int64) ([]headerEntry, error) {
	entries, err := decodeHeader(file, header)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(entries, func(a, b headerEntry) int {
		return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(a.End, b.End), cmp.Compare(a.Name, b.Name))
	})
	var at int64
	for _, e := range entries {
		bad := func(problem string) error {
			return &Error{File: file, Tensor: e.Name, Problem: problem, Remedy: remedyDownload}
		}
		if e.End > dataBytes {
			return nil, bad(fmt.Sprintf("bytes %d to %d lie outside the file, which has %d bytes of data: it is truncated or its header is wrong", e.Start, e.End, dataBytes))
		}
		if e.Start < at {
			return nil, bad(fmt.Sprintf("bytes %d to %d overlap those of another tensor, which end at %d", e.Start, e.End, at))
		}
		if e.Start > at {
			return nil, bad(fmt.Sprintf("starts at byte %d, but the tensor before it ends at %d", e.Start, at))
		}
		at = e.End
	}
	if at != dataBytes {
		return nil, &Error{File: file, Problem: fmt.Sprintf("%d bytes of data, but the header accounts for %d", dataBytes, at), Remedy: remedyDownload}
	}
	return entries, nil
}

func decodeHeader(file string, header []byte) ([]headerEntry, error) {
	bad := func(name string, err error) error {
		return &Error{File: file, Tensor: name, Problem: "the header is not valid safetensors JSON", Err: err, Remedy: remedyDownload}
	}
	decoder := json.NewDecoder(bytes.NewReader(header))
	open, err := decoder.Token()
	if err != nil {
		return nil, bad("", err)
	}
	if open != json.Delim('{') {
		return nil, bad("", errors.New("not an object"))
	}
	var entries []headerEntry
	seen := map[string]struct{}{}
	for decoder.More() {
		key, err := decoder.Token()
		if err != nil {
			return nil, bad("", err)
		}
		name, ok := key.(string)
		if !ok {
			return nil, bad("", errors.New("a key is not a string"))
		}
		if _, twice := seen[name]; twice {
			return nil, &Error{File: file, Tensor: name, Problem: "appears twice in the header", Remedy: remedyDownload}
		}
		seen[name] = struct{}{}
		var value json.RawMessage
		if err := decoder.Decode(&value); err != nil {
			return nil, bad(name, err)
		}
		if name == "__metadata__" {
			continue
		}
		entry, err := decodeEntry(file, name, value)
		if err != nil {
			return nil, err
		}
		entries = append(entries, entry)
	}
	if _, err := decoder.Token(); err != nil {
		return nil, bad("", err)
	}
	if rest := bytes.TrimRight(header[decoder.InputOffset():], " \t\r\n\x00"); len(rest) > 0 {
		return nil, bad("", fmt.Errorf("%d more bytes after the object", len(rest)))
	}
	return entries, nil
}

func decodeEntry(file, name string, value json.RawMessage) (headerEntry, error) {
	bad := func(problem string) (headerEntry, error) {
		return headerEntry{}, &Error{File: file, Tensor: name, Problem: problem, Remedy: remedyDownload}
	}
	if len(value) > maxEntryBytes {
		return bad(fmt.Sprintf("a header entry of %d bytes, more than %d", len(value), maxEntryBytes))
	}
	var raw struct {
		DType   string   `json:"dtype"`
		Shape   *[]int64 `json:"shape"`
		Offsets []int64  `json:"data_offsets"`
	}
	if err := json.Unmarshal(value, &raw); err != nil {
		return bad("header entry: " + err.Error())
	}
	if raw.Shape == nil {
		return bad("has no shape")
	}
	if len(*raw.Shape) > maxRank {
		return bad(fmt.Sprintf("%d dimensions, more than %d", len(*raw.Shape), maxRank))
	}
	if len(raw.Offsets) != 2 || raw.Offsets[0] < 0 || raw.Offsets[1] < raw.Offsets[0] {
		return bad(fmt.Sprintf("data_offsets %s are not a start and an end", shownInts(raw.Offsets)))
	}
	size, ok := elementBytes(raw.DType)
	if !ok {
		return headerEntry{}, &Error{File: file, Tensor: name, Problem: "element type " + clip(raw.DType) + " is not known", Remedy: "use a bf16, f16 or f32 checkpoint"}
	}
	total := uint64(size)
	shape := make([]int, 0, len(*raw.Shape))
	for _, d := range *raw.Shape {
		if d < 0 {
			return bad(fmt.Sprintf("shape %v has a negative dimension", *raw.Shape))
		}
		high, low := bits.Mul64(total, uint64(d))
		if high != 0 || low > math.MaxInt64 {
			return bad(fmt.Sprintf("shape %v is larger than any file", *raw.Shape))
		}
		total = low
		shape = append(shape, int(d))
	}
	if length := raw.Offsets[1] - raw.Offsets[0]; uint64(length) != total {
		return bad(fmt.Sprintf("shape %v of %s takes %d bytes, but data_offsets give it %d", shape, raw.DType, total, length))
	}
	return headerEntry{Name: name, DType: raw.DType, Shape: shape, Start: raw.Offsets[0], End: raw.Offsets[1]}, nil
}

// shownInts bounds what a message repeats of a list out of a file.
func shownInts(list []int64) string {
	if len(list) > maxRank {
		return fmt.Sprintf("%v and %d more", list[:maxRank], len(list)-maxRank)
	}
	return fmt.Sprint(list)
}

// elementBytes is the size of the format's element types. Only three of them may
// hold weights, but buffers that are ignored come in others.
func elementBytes(dtype string) (int, bool) {
	switch dtype {
	case "BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0":
		return 1, true
	case "BF16", "F16", "I16", "U16":
		return 2, true
	case "F32", "I32", "U32":
		return 4, true
	case "F64", "I64", "U64":
		return 8, true
	}
	return 0, false
}

// weightType is the DType of a safetensors type that may hold weights.
func weightType(dtype string) (DType, bool) {
	switch dtype {
	case "BF16":
		return BF16, true
	case "F16":
		return F16, true
	case "F32":
		return F32, true
	}
	return 0, false
}

// readHeader reads the entries of the file behind r, which is size bytes long,
// and where its data begin.
func readHeader(file string, r io.ReaderAt, size int64) (entries []headerEntry, dataStart int64, err error) {
	bad := func(problem, remedy string) ([]headerEntry, int64, error) {
		return nil, 0, &Error{File: file, Problem: problem, Remedy: remedy}
	}
	var prefix [8]byte
	if size < int64(len(prefix)) {
		return bad(fmt.Sprintf("%d bytes are too few for a safetensors file", size), remedyDownload)
	}
	if _, err := r.ReadAt(prefix[:], 0); err != nil {
		return nil, 0, &Error{File: file, Problem: "cannot be read", Err: err}
	}
	if string(prefix[:]) == lfsPointer[:len(prefix)] {
		return bad(problemLFS, remedyLFS)
	}
	length := binary.LittleEndian.Uint64(prefix[:])
	if length > maxHeaderBytes {
		return bad(fmt.Sprintf("the header claims %d bytes, more than %d", length, maxHeaderBytes), remedyDownload)
	}
	dataStart = int64(len(prefix)) + int64(length)
	if dataStart > size {
		return bad(fmt.Sprintf("the header claims %d bytes, but the file ends after %d", length, size), remedyDownload)
	}
	header := make([]byte, length)
	if _, err := r.ReadAt(header, int64(len(prefix))); err != nil {
		return nil, 0, &Error{File: file, Problem: "cannot be read", Err: err}
	}
	entries, err = parseHeader(file, header, size-dataStart)
	return entries, dataStart, err
}
