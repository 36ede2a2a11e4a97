package simulate

import (
	"github.com/tandem-serving/tandem/pkg/scheduler"
)

// calls are those of a process, by sequence. Sequences are numbered as they come and end
// after about the same time, so that a list from the oldest on is short.
type calls struct {
	oldest scheduler.SequenceID
	list   []opened // from oldest on
}

// opened is a call with what every token of it needs: to read that from the call and from its
// stream would be to wait for memory twice.
type opened struct {
	call       *call // nil: it has ended
	stream     *stream
	connection *connection
}

// of is the call of a sequence, nil if it has ended.
func (s *calls) of(id scheduler.SequenceID) *call {
	return s.at(id).call
}

// at is of with what comes along.
func (s *calls) at(id scheduler.SequenceID) opened {
	if i := id - s.oldest; id >= s.oldest && uint64(i) < uint64(len(s.list)) {
		return s.list[i]
	}
	return opened{}
}

// add adds the call of the next sequence.
func (s *calls) add(c *call) {
	if len(s.list) == 0 {
		s.oldest = c.id
	}
	for s.oldest+scheduler.SequenceID(len(s.list)) < c.id { // numbers of sequences that are no calls
		s.list = append(s.list, opened{})
	}
	s.list = append(s.list, opened{c, c.stream, c.stream.connection})
}

func (s *calls) remove(id scheduler.SequenceID) {
	if s.of(id) == nil {
		return
	}
	s.list[id-s.oldest] = opened{}
	gone := 0
	for gone < len(s.list) && s.list[gone].call == nil {
		gone++
	}
	// Not one by one: what is in front is taken off when it is half of all.
	if 2*gone >= len(s.list) {
		n := copy(s.list, s.list[gone:])
		clear(s.list[n:])
		s.list = s.list[:n]
		s.oldest += scheduler.SequenceID(gone)
	}
}
