package packedweights

import "sort"

// stream sees parts of memory as one sequence of bytes, cut into chunks.
type stream struct {
	parts [][]byte
	ends  []int64 // where each part ends in the sequence
	bytes int64
}

func newStream(parts [][]byte) stream {
	s := stream{parts: parts, ends: make([]int64, len(parts))}
	for i, p := range parts {
		s.bytes += int64(len(p))
		s.ends[i] = s.bytes
	}
	return s
}

// bounds are the first byte of chunk i and the one after its last.
func (s stream) bounds(i int64) (first, end int64) {
	return i * chunkBytes, min((i+1)*chunkBytes, s.bytes)
}

// each hands the pieces of chunk i, in order, to do, with their place in the
// sequence.
func (s stream) each(i int64, do func(piece []byte, at int64) error) error {
	at, end := s.bounds(i)
	for k := sort.Search(len(s.ends), func(k int) bool { return s.ends[k] > at }); at < end; k++ {
		part := s.parts[k]
		start := s.ends[k] - int64(len(part))
		piece := part[at-start : min(int64(len(part)), end-start)]
		if len(piece) == 0 {
			continue
		}
		if err := do(piece, at); err != nil {
			return err
		}
		at += int64(len(piece))
	}
	return nil
}
