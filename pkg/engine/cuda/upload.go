package cuda

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/driver"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/kernels"
	"github.com/tandem-serving/tandem/pkg/engine/internal/rotary"
	"github.com/tandem-serving/tandem/pkg/model"
)

// stagingBytes is the size of each of an uploader's two buffers.
const stagingBytes = 16 << 20

// uploader copies to the device by way of two pinned buffers: while one is on its way
// the other is filled. What becomes 8 bits goes to a buffer on the device, of which a kernel
// makes them: the stream does one after the other, so one such buffer is enough. One
// goroutine uses it.
type uploader struct {
	ctx     context.Context
	weights *Weights
	stream  *driver.Stream
	program *driver.Program
	halves  [2]half
	staging driver.Address // on the device, stagingOf bytes
	current int
	used    int            // bytes of the current half
	to      driver.Address // where they go
	rows    int            // of the current half that become 8 bits: 0, or all
	into    matrix         // where those go
	done    func(bytes int)
}

// half is one of the two buffers; sent is recorded behind its last copy.
type half struct {
	buffer *driver.Host
	sent   *driver.Event
}

// stagingOf is the device memory that an uploader takes for weights of a type.
func stagingOf(kind WeightType) int64 {
	if kind == BF16 {
		return 0
	}
	return stagingBytes
}

// newUploader makes one. done, if set, hears of the bytes of the checkpoint that were
// taken.
func newUploader(ctx context.Context, w *Weights, done func(bytes int)) (_ *uploader, err error) {
	device := w.device
	u := &uploader{ctx: ctx, weights: w, program: device.NewProgram(), done: done}
	defer func() {
		if err != nil {
			err = errors.Join(err, u.close())
		}
	}()
	if u.stream, err = device.NewStream(driver.Low); err != nil {
		return nil, err
	}
	if bytes := stagingOf(w.kind); bytes > 0 {
		if u.staging, err = device.Allocate(bytes); err != nil {
			return nil, err
		}
	}
	for i := range u.halves {
		if u.halves[i].buffer, err = device.AllocateHost(stagingBytes); err != nil {
			return nil, err
		}
		if u.halves[i].sent, err = device.NewEvent(); err != nil {
			return nil, err
		}
	}
	return u, nil
}

// close waits for what is on its way and frees everything.
func (u *uploader) close() error {
	var errs []error
	if u.stream != nil {
		errs = append(errs, u.stream.Synchronize(), u.stream.Close())
	}
	for _, h := range u.halves {
		if h.buffer != nil {
			errs = append(errs, h.buffer.Free())
		}
		errs = append(errs, closeMade(h.sent))
	}
	if u.staging != 0 {
		errs = append(errs, u.weights.device.Free(u.staging))
	}
	u.program.Free()
	return errors.Join(errs...)
}

// reserve gives free memory of the current buffer, of at least so many bytes, for what goes to
// the address.
func (u *uploader) reserve(to driver.Address, bytes int) ([]byte, error) {
	follows := u.used > 0 && u.rows == 0 && u.to+driver.Address(u.used) == to
	if !follows || u.used+bytes > stagingBytes {
		if err := u.send(); err != nil {
			return nil, err
		}
		u.to = to
	}
	staged := u.halves[u.current].buffer.Bytes()[u.used : u.used+bytes]
	u.used += bytes
	return staged, nil
}

// reserveRows gives free memory of the current buffer for so many rows of bf16, which become the
// first rows of a matrix.
func (u *uploader) reserveRows(to matrix, rows int) ([]byte, error) {
	if to.kind == kernels.BF16 {
		return u.reserve(to.rows, rows*to.rowBytes())
	}
	if err := u.send(); err != nil {
		return nil, err
	}
	u.rows, u.into = rows, to
	return u.reserve(u.staging, 2*rows*to.ld)
}

// send starts the copy of the current buffer and waits until the other one is free.
func (u *uploader) send() error {
	if u.used == 0 {
		return nil
	}
	if err := u.ctx.Err(); err != nil {
		return err
	}
	h := u.halves[u.current]
	u.program.Reset()
	u.program.CopyIn(u.to, h.buffer, 0, u.used)
	u.program.Record(h.sent)
	if u.rows > 0 {
		u.weights.kernels.Quantize(u.program, u.into.kind, u.rows, kernels.QuantizeArgs{
			From: u.staging, To: u.into.rows, Scales: u.into.scales, Ld: int64(u.into.ld),
		})
		u.rows = 0
	}
	if err := u.stream.Submit(u.program); err != nil {
		return err
	}
	u.current, u.used = 1-u.current, 0
	return u.halves[u.current].sent.Synchronize()
}

// finish sends the rest and waits for all.
func (u *uploader) finish() error {
	if err := u.send(); err != nil {
		return err
	}
	return u.stream.Synchronize()
}

// matrix uploads a matrix.
func (u *uploader) matrix(to matrix, t model.Tensor) error {
	return u.spread(to, t, t.Shape[1], t.Shape[1])
}

// spread is matrix for rows whose elements come in groups, which are stride elements apart
// on the device. What lies between is zero.
func (u *uploader) spread(to matrix, t model.Tensor, group, stride int) error {
	rows, columns := t.Shape[0], t.Shape[1]
	row := 2 * to.ld // bytes, on the way
	most := stagingBytes / row
	if most == 0 {
		return fmt.Errorf("tensor %s: rows of %d elements do not fit the staging buffer", t.Name, columns)
	}
	for first := 0; first < rows; first += most {
		n := min(most, rows-first)
		staged, err := u.reserveRows(to.from(first), n)
		if err != nil {
			return fmt.Errorf("tensor %s: %w", t.Name, err)
		}
		if t.DType == model.BF16 && to.ld == columns && group == stride {
			copy(staged, t.Data[first*row:])
		} else {
			for i := range n {
				at, dst := (first+i)*columns, staged[i*row:(i+1)*row]
				clear(dst)
				for g := range columns / group {
					if err := bf16Row(dst[2*g*stride:], t, at+g*group, group); err != nil {
						return err
					}
				}
			}
		}
		u.taken(n * columns * t.DType.Bytes())
	}
	return nil
}

// bf16Row converts n elements, from element at on.
func bf16Row(dst []byte, t model.Tensor, at, n int) error {
	if t.DType == model.BF16 {
		copy(dst, t.Data[2*at:2*(at+n)])
		return nil
	}
	var wide [256]float32
	for i := 0; i < n; i += len(wide) {
		part := wide[:min(len(wide), n-i)]
		if err := t.Float32s(part, at+i); err != nil {
			return err
		}
		for j, v := range part {
			binary.LittleEndian.PutUint16(dst[2*(i+j):], toBF16(v))
		}
	}
	return nil
}

// toBF16 rounds to nearest, ties to even.
func toBF16(v float32) uint16 {
	bits := math.Float32bits(v)
	if v != v {
		return uint16(bits>>16) | 1<<6 // a NaN stays one
	}
	return uint16((bits + 0x7fff + bits>>16&1) >> 16)
}

// vector uploads a tensor as float32.
func (u *uploader) vector(to driver.Address, t model.Tensor) error {
	values := make([]float32, t.Elements())
	if err := t.Float32s(values, 0); err != nil {
		return err
	}
	u.taken(len(t.Data))
	return u.floats(to, values)
}

// floats uploads values.
func (u *uploader) floats(to driver.Address, values []float32) error {
	for len(values) > 0 {
		n := min(len(values), stagingBytes/4)
		staged, err := u.reserve(to, 4*n)
		if err != nil {
			return err
		}
		for i, v := range values[:n] {
			binary.LittleEndian.PutUint32(staged[4*i:], math.Float32bits(v))
		}
		values, to = values[n:], to+driver.Address(4*n)
	}
	return nil
}

// angles uploads the rotary embedding's tables of so many positions.
func (u *uploader) angles(cos, sin driver.Address, spec model.Spec) error {
	const positions = 1024 // at once
	embedding, half := rotary.New(spec), spec.HeadSize/2
	c, s := make([]float32, positions*half), make([]float32, positions*half)
	for start := 0; start < spec.ContextTokens; start += positions {
		n := min(positions, spec.ContextTokens-start)
		embedding.Fill(c[:n*half], s[:n*half], start, n)
		at := driver.Address(4 * start * half)
		if err := errors.Join(u.floats(cos+at, c[:n*half]), u.floats(sin+at, s[:n*half])); err != nil {
			return err
		}
	}
	return nil
}

func (u *uploader) taken(bytes int) {
	if u.done != nil {
		u.done(bytes)
	}
}
