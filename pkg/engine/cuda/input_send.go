package cuda

import "github.com/tandem-serving/tandem/pkg/engine/cuda/internal/driver"

// together is the largest gap in bytes between two pieces that one copy covers: a second copy
// takes a GPU about as long as so many bytes.
const together = 32 << 10

// send appends copies of the pieces in use to a program, as few as possible.
func (in *input) send(p *driver.Program) {
	c := copies{program: p, in: in}
	c.add(in.tables.piece(in.firstBlock, len(in.tables.all)-in.firstBlock))
	c.add(in.counts.piece(0, len(in.counts.all)))
	c.add(in.passes.piece(0, len(in.passes.all)))
	c.add(in.tokens.piece(0, in.batchRows))
	c.add(in.positions.piece(0, in.batchRows))
	c.add(in.slots.piece(0, in.batchRows))
	c.add(in.index.piece(0, in.wanted))
	c.add(in.wishes.piece(0, in.wanted))
	for i := range in.counts.all {
		if i == 1 && !in.narrow {
			break
		}
		s, w := &in.attention[i], &in.work[i]
		c.add(s.joins.piece(0, len(w.joins)))
		c.add(s.thin.piece(0, len(w.thin)))
		c.add(s.tall.piece(0, len(w.tall)))
	}
	c.send()
}

// copies appends copies of pieces, in order, to a program.
type copies struct {
	program *driver.Program
	in      *input
	piece   // not sent yet
}

// add adds a piece. Pieces come in the order of their addresses.
func (c *copies) add(p piece) {
	if p.begin == p.end {
		return
	}
	if c.begin == c.end || p.begin > c.end+together {
		c.send()
		c.begin = p.begin
	}
	c.end = p.end
}

func (c *copies) send() {
	c.program.CopyIn(c.in.device+driver.Address(c.begin), c.in.host, c.begin, c.end-c.begin)
	c.begin = c.end
}
