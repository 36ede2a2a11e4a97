package cuda

import (
	"fmt"
	"unsafe"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/driver"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/kernels"
)

// section is a table of a step's input: a piece of pinned memory, and the piece of
// device memory that it is copied to, at the same distance from the input's begin.
type section[T any] struct {
	all    []T // of pinned memory
	offset int // bytes
	device driver.Address
}

// used is how many bytes the first n elements have.
func (s section[T]) used(n int) int {
	var one T
	return n * int(unsafe.Sizeof(one))
}

// input is what the kernels of a step are told about the batch. It is filled in pinned
// memory and copied to the device at the begin of the step; its addresses never change,
// so that graphs stay valid.
type input struct {
	host *driver.Host

	counts    section[kernels.Counts] // of all rows, and of those that the last layer goes on with
	passes    section[int32]          // rows of logits of each pass of the head
	tokens    section[int32]
	positions section[int32]
	slots     section[int32]        // where the KV of a row goes
	index     section[int32]        // rows of which logits are wanted
	wishes    section[kernels.Wish] // of those rows
	tables    section[int32]
	attention [2]sections // of all rows, and of those that the last layer goes on with

	work [2]work
	runs []rows

	batchRows, wanted, blocks int
	narrow                    bool // the last layer goes on with the wanted rows alone
}

// sections are the tables of attention.
type sections struct {
	thin, tall section[kernels.Item]
	joins      section[kernels.Join]
}

// bounds of an input.
type bounds struct {
	rows, sequences, blocksPerSequence int
	passes                             int
	items                              int // of each kind
}

// layInput takes the sections: pinned memory when it is there, device memory by arena.
func layInput(in *input, a *arena, b bounds) {
	begin := a.used
	take(in, a, begin, &in.counts, 2)
	take(in, a, begin, &in.passes, b.passes)
	take(in, a, begin, &in.tokens, b.rows)
	take(in, a, begin, &in.positions, b.rows)
	take(in, a, begin, &in.slots, b.rows)
	take(in, a, begin, &in.index, b.rows)
	take(in, a, begin, &in.wishes, b.rows)
	for i := range in.attention {
		s := &in.attention[i]
		take(in, a, begin, &s.thin, b.items)
		take(in, a, begin, &s.tall, b.items)
		take(in, a, begin, &s.joins, b.items)
		in.work[i] = work{thin: s.thin.all[:0], tall: s.tall.all[:0], joins: s.joins.all[:0]}
	}
	take(in, a, begin, &in.tables, b.sequences*b.blocksPerSequence)
}

// take lays one section of n elements.
func take[T any](in *input, a *arena, begin int64, s *section[T], n int) {
	s.offset = int(a.used - begin)
	s.device = a.take(int64(s.used(n)))
	if in.host != nil {
		bytes := in.host.Bytes()[s.offset:]
		s.all = unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(bytes))), n)
	}
}

// fill writes what a batch, which is valid, asks for. keep is how many rows of a
// sequence, from the last on, become logits.
func (in *input) fill(batch engine.Batch, p planner, blockTokens, headRows int) {
	in.batchRows, in.wanted, in.blocks = 0, 0, 0
	for i := range batch.Sequences {
		s := &batch.Sequences[i]
		copy(in.tokens.all[in.batchRows:], s.Tokens)
		for j := range s.Tokens {
			position := s.Start + j
			in.positions.all[in.batchRows+j] = int32(position)
			in.slots.all[in.batchRows+j] = slotOf(s.Blocks, position, blockTokens)
		}
		in.batchRows += len(s.Tokens)
		for n := wanted(s); n > 0; n-- {
			in.index.all[in.wanted] = int32(in.batchRows - n)
			in.wishes.all[in.wanted] = wishOf(s, n == 1)
			in.wanted++
		}
		for _, block := range s.Blocks[:blocksOf(s, blockTokens)] {
			in.tables.all[in.blocks] = int32(block)
			in.blocks++
		}
	}
	in.narrow = in.wanted < in.batchRows
	in.runs = runsOf(in.runs, batch, func(s *engine.Sequence) int { return len(s.Tokens) }, blockTokens)
	p.plan(&in.work[0], in.runs)
	in.count(0, in.batchRows)
	if in.narrow {
		in.runs = runsOf(in.runs, batch, wanted, blockTokens)
		p.plan(&in.work[1], in.runs)
		in.count(1, in.wanted)
	}
	in.passes.all[0] = 0
	for pass, left := 0, in.wanted; left > 0; pass++ {
		in.passes.all[pass] = int32(min(left, headRows))
		left -= headRows
	}
}

// count fills one of the two counts.
func (in *input) count(i, rows int) {
	w := &in.work[i]
	in.counts.all[i] = kernels.Counts{
		Rows: int32(rows), Wanted: int32(in.wanted), Thin: int32(len(w.thin)), Tall: int32(len(w.tall)), Joins: int32(len(w.joins)),
	}
}

// send appends the copies to a program: what is in use of each section, small ones
// that lie side by side together.
func (in *input) send(p *driver.Program) {
	small := in.index.offset + in.index.used(in.batchRows)
	p.CopyIn(in.counts.device, in.host, in.counts.offset, small)
	sendUsed(p, in.host, in.wishes, in.wanted)
	attention := in.attention[:1]
	if in.narrow {
		attention = in.attention[:]
	}
	for i, s := range attention {
		w := &in.work[i]
		sendUsed(p, in.host, s.thin, len(w.thin))
		sendUsed(p, in.host, s.tall, len(w.tall))
		sendUsed(p, in.host, s.joins, len(w.joins))
	}
	sendUsed(p, in.host, in.tables, in.blocks)
}

func sendUsed[T any](p *driver.Program, host *driver.Host, s section[T], n int) {
	if n > 0 {
		p.CopyIn(s.device, host, s.offset, s.used(n))
	}
}

// wanted is how many rows of a sequence, from the last on, become logits.
func wanted(s *engine.Sequence) int {
	switch {
	case s.Logits == engine.LogitsAll:
		return len(s.Tokens)
	case s.Logits == engine.LogitsLast || s.Sample != nil:
		return 1
	}
	return 0
}

// wishOf is how the device draws from a row of a sequence: the likeliest token where
// nobody asks, or where the host draws.
func wishOf(s *engine.Sequence, last bool) kernels.Wish {
	if !last || s.Sample == nil || !drawnByDevice(s.Sample) {
		return kernels.Wish{}
	}
	p := &s.Sample.Params
	return kernels.Wish{
		Temperature: p.Temperature, TopK: int32(p.TopK), TopP: p.TopP, MinP: p.MinP, Seed: p.Seed, Offset: s.Sample.Offset,
	}
}

// newInput makes an input whose sections lie in an arena with a base.
func newInput(device *driver.Device, a *arena, b bounds) (*input, error) {
	var measured arena
	layInput(&input{}, &measured, b)
	in := &input{}
	host, err := device.AllocateHost(int(measured.used))
	if err != nil {
		return nil, fmt.Errorf("input of a step: %w", err)
	}
	in.host = host
	layInput(in, a, b)
	in.runs = make([]rows, 0, b.sequences)
	return in, nil
}
