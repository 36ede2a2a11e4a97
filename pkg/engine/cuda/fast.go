package cuda

import (
	"errors"
	"fmt"
	"math/bits"

	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/blaslt"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/driver"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/kernels"
)

const (
	// fastRows is the most rows that the engine's own kernels multiply with CublasLt: for
	// so few the weights have to be read and nothing else counts.
	fastRows = 64
	// fastWorkspace is what cuBLASLt may use beside the matrices, bytes.
	fastWorkspace = 32 << 20
)

// bucket is the number of rows that a product of more than fastRows is computed with. It
// rounds rows up to a multiple of kernels.Tile or, if that is more, by at most an eighth. So
// there are few buckets, and all are planned at the start.
func bucket(rows int) int { return padded(rows, max(kernels.Tile, 1<<(bits.Len(uint(rows))-1)/8)) }

// fast computes products by cuBLASLt. It also computes the rows of a bucket past a step's own,
// from whatever the buffers hold there. Nothing reads those results.
type fast struct {
	handle    *blaslt.Handle
	plans     map[blaslt.Shape]*blaslt.Plan
	workspace driver.Address
	both      driver.Address // bf16 gates, and what they let through behind them
	err       error          // the first that a plan failed by
}

// newFast starts cuBLASLt for an engine that is configured for it.
func newFast(w *Weights, c Config, k *workspace) (*fast, error) {
	library, err := blaslt.Open(c.CublasLt)
	if err != nil {
		return nil, err
	}
	handle, err := library.NewHandle(w.device)
	if err != nil {
		return nil, err
	}
	return &fast{handle: handle, plans: map[blaslt.Shape]*blaslt.Plan{}, workspace: k.scratch, both: k.both}, nil
}

// plan is the plan of a shape, which is made when it is first asked for: by prepare.
func (f *fast) plan(s blaslt.Shape) *blaslt.Plan {
	if p := f.plans[s]; p != nil || f.err != nil {
		return p
	}
	var p *blaslt.Plan
	if p, f.err = f.handle.Plan(s, fastWorkspace); f.err == nil {
		f.plans[s] = p
	}
	return p
}

// product appends a product of more than fastRows rows.
func (f *fast) product(l *launcher, then kernels.Epilogue, args kernels.ProductArgs, rows int) {
	s := blaslt.Shape{
		Rows: bucket(rows), Outputs: int(args.Outputs), K: int(args.K), LdA: int(args.LdA), LdW: int(args.LdW), LdOut: int(args.LdOut),
		Add: then == kernels.Add,
	}
	if then != kernels.SwiGLU {
		f.multiply(l, s, args.A, args.W, args.Out)
		return
	}
	up := padded(s.Outputs, kernels.Tile) // where its weights are, behind those of the gates
	s.Outputs, s.LdOut, s.Narrow = up+s.Outputs, 2*up, true
	f.multiply(l, s, args.A, args.W, f.both)
	l.weights.kernels.SwiGLU(l.program, rows, kernels.SwiGLUArgs{
		Count: args.Count, Both: f.both, Out: args.Out, Ld: int64(s.LdOut), LdOut: args.LdOut, Up: int32(up), Width: args.Outputs,
	})
}

func (f *fast) multiply(l *launcher, s blaslt.Shape, a, w, out driver.Address) {
	if p := f.plan(s); p != nil {
		p.Multiply(l.program, a, w, out, f.workspace)
	}
}

// prepare makes all plans that a step may need and computes each once, on buffers of zeros,
// in steps of no rows: cuBLASLt loads its kernels when they are first used.
func (e *cudaEngine) prepare() error {
	e.program.Reset()
	for rows := fastRows + 1; rows <= e.config.MaxBatchTokens; rows = bucket(rows) + 1 {
		e.rows = bucket(rows)
		e.keys(0)
		e.rest(0, e.whole())
	}
	if rows := e.config.headRows(); rows > fastRows {
		e.launcher.head(e.whole(), 0, 0, rows)
	}
	if e.fast.err != nil {
		return e.fast.err
	}
	return e.stream.Run(e.program)
}

// checkWeights refuses weights that cuBLASLt does not multiply here.
func (c Config) checkWeights(kind WeightType) error {
	if c.Products == CublasLt && kind != BF16 {
		return fmt.Errorf("%s multiplies only weights in %s, and these are in %s: load them as %s, or use the engine's own kernels", CublasLt, BF16, kind, BF16)
	}
	return nil
}

// usesFast says whether an engine has products that are not its own.
func (c Config) usesFast() bool { return c.Products == CublasLt && c.MaxBatchTokens > fastRows }

// bufferRows is how many rows buffers have for a step of so many.
func (c Config) bufferRows(rows int) int {
	if c.usesFast() && rows > fastRows {
		return bucket(rows)
	}
	return rows
}

func (f *fast) close() error {
	var errs []error
	for _, p := range f.plans {
		errs = append(errs, p.Close())
	}
	return errors.Join(append(errs, f.handle.Close())...)
}
