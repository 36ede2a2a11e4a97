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

// piece is where n elements from first on are.
func (s section[T]) piece(first, n int) piece {
	begin := s.offset + s.used(first)
	return piece{begin, begin + s.used(n)}
}

// piece is bytes [begin, end) of an input.
type piece struct{ begin, end int }

// input is what the kernels of a step are told about the batch. It is filled in pinned
// memory and copied to the device at the begin of the step. Where in that memory a step's
// tables are depends on the kind of step alone, so that graphs stay valid. A step copies all
// that it reads, and reads nothing that another kind of step left there.
type input struct {
	host   *driver.Host
	device driver.Address
	*inputLayout
	batches inputLayout   // of any batch
	decodes []inputLayout // of each graph

	work [2]work
	runs []rows

	batchRows, wanted int
	firstBlock        int  // of the tables that are in use, which are the last
	narrow            bool // the last layer goes on with the wanted rows alone
}

// inputLayout is where the tables of a kind of step are. Those of a graph are so close that
// one copy takes what is in use of all.
type inputLayout struct {
	single    bool                    // of a graph: all sequences compute one token, all rows go on
	tables    section[int32]          // filled from behind
	counts    section[kernels.Counts] // of all rows, and of those that the last layer goes on with
	passes    section[int32]          // rows of logits of each pass of the head
	tokens    section[int32]
	positions section[int32]
	slots     section[int32]        // where the KV of a row goes
	index     section[int32]        // rows of which logits are wanted
	wishes    section[kernels.Wish] // of those rows
	attention [2]sections           // of all rows, and of those that the last layer goes on with
}

// sections are the tables of attention.
type sections struct {
	joins      section[kernels.Join]
	thin, tall section[kernels.Item]
}

// bounds of an input.
type bounds struct {
	rows, sequences, blocksPerSequence int
	passes                             int
	items                              int   // of each kind
	graphs                             []int // most rows of each
}

// layInput takes the sections: pinned memory when it is there, device memory by arena. All
// layouts begin at the same place.
func layInput(in *input, a *arena, b bounds) {
	begin := a.used
	in.device = a.base + driver.Address(begin)
	in.batches.lay(in, a, b)
	end := a.used
	in.decodes = make([]inputLayout, len(b.graphs))
	for i, rows := range b.graphs {
		a.used = begin
		in.decodes[i].single = true
		in.decodes[i].lay(in, a, bounds{rows: rows, sequences: rows, blocksPerSequence: b.blocksPerSequence, passes: 1})
		end = max(end, a.used)
	}
	a.used = end
	in.use(-1)
}

// lay takes the sections of one layout.
func (l *inputLayout) lay(in *input, a *arena, b bounds) {
	take(in, a, &l.tables, b.sequences*b.blocksPerSequence)
	kinds := len(l.attention)
	if l.single {
		kinds = 1
	}
	take(in, a, &l.counts, kinds)
	take(in, a, &l.passes, b.passes)
	take(in, a, &l.tokens, b.rows)
	take(in, a, &l.positions, b.rows)
	take(in, a, &l.slots, b.rows)
	take(in, a, &l.index, b.rows)
	take(in, a, &l.wishes, b.rows)
	for i := range l.attention[:kinds] {
		s := &l.attention[i]
		if l.single { // a sequence is one item, or joins several
			take(in, a, &s.joins, b.sequences)
			take(in, a, &s.thin, b.sequences+mostSlots)
			continue
		}
		take(in, a, &s.joins, b.items)
		take(in, a, &s.thin, b.items)
		take(in, a, &s.tall, b.items)
	}
}

// take lays one section of n elements.
func take[T any](in *input, a *arena, s *section[T], n int) {
	s.device = a.take(int64(s.used(n)))
	s.offset = int(s.device - in.device)
	if in.host != nil {
		bytes := in.host.Bytes()[s.offset:]
		s.all = unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(bytes))), n)
	}
}

// use chooses the layout of a graph, or with -1 that of any batch.
func (in *input) use(graph int) {
	in.inputLayout = &in.batches
	if graph >= 0 {
		in.inputLayout = &in.decodes[graph]
	}
	for i, s := range in.attention {
		in.work[i] = work{thin: s.thin.all[:0], tall: s.tall.all[:0], joins: s.joins.all[:0]}
	}
}

// fill writes what a batch, which is valid and fits the layout in use, asks for.
func (in *input) fill(batch engine.Batch, p planner, blockTokens, headRows int) {
	in.batchRows, in.wanted, in.firstBlock = 0, 0, len(in.tables.all)
	for i := range batch.Sequences {
		in.firstBlock -= batch.Sequences[i].UsedBlocks(blockTokens)
	}
	block := in.firstBlock
	for i := range batch.Sequences {
		s := &batch.Sequences[i]
		copy(in.tokens.all[in.batchRows:], s.Tokens)
		for j := range s.Tokens {
			position := s.Start + j
			in.positions.all[in.batchRows+j] = int32(position)
			in.slots.all[in.batchRows+j] = slotOf(s.Blocks, position, blockTokens)
		}
		in.batchRows += len(s.Tokens)
		for n := s.LogitRows(); n > 0; n-- {
			in.index.all[in.wanted] = int32(in.batchRows - n)
			in.wishes.all[in.wanted] = wishOf(s, n == 1)
			in.wanted++
		}
		for _, id := range s.Blocks[:s.UsedBlocks(blockTokens)] {
			in.tables.all[block] = int32(id)
			block++
		}
	}
	in.narrow = in.wanted < in.batchRows && !in.single
	in.runs = runsOf(in.runs, batch, func(s *engine.Sequence) int { return len(s.Tokens) }, blockTokens, in.firstBlock)
	p.plan(&in.work[0], in.runs)
	in.count(0, in.batchRows)
	if in.narrow {
		in.runs = runsOf(in.runs, batch, (*engine.Sequence).LogitRows, blockTokens, in.firstBlock)
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
		Rows: int32(rows), Thin: int32(len(w.thin)), Tall: int32(len(w.tall)), Joins: int32(len(w.joins)),
	}
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
