package cuda

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/blaslt"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/driver"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/kernels"
)

// Limits are what a device reached, by its own clock. Rates are per second.
type Limits struct {
	// CopyBytes is copying within device memory: bytes read and bytes written.
	CopyBytes float64
	// ReadBytes is the weights that the engine's product of one row reads, of a matrix
	// that the cache does not hold, and of the type that the layers' are.
	ReadBytes float64
	// ProductFLOPs is the engine's product of as many rows as outputs, with weights of that
	// type; CublasLtFLOPs is cuBLASLt's in bf16, 0 where nobody asked for it.
	ProductFLOPs, CublasLtFLOPs float64
	// HostToDeviceBytes and DeviceToHostBytes are copies of pinned memory, one way at a
	// time.
	HostToDeviceBytes, DeviceToHostBytes float64
	// GraphKernel is what each of many kernels in a graph takes that do nothing.
	GraphKernel time.Duration
}

const (
	meterBytes   = 1 << 30   // of each half of the memory, where there is memory
	leastMeter   = 128 << 10 // what a product of 128 by 128 by 128 takes
	pinnedBytes  = 64 << 20
	mostSide     = 8192 // of the product of many rows
	timedTimes   = 8    // how often each thing is done
	emptyKernels = 256  // in the graph
)

// MeterConfig says what to measure with.
type MeterConfig struct {
	// Bytes of each of two pieces of device memory, as few as it can work with if that is
	// more; 0: a gibibyte, or a quarter of what is free if that is less.
	Bytes int64
	// Products is CublasLt if its product is a limit too, and CublasLt where it is: as in
	// Config.
	Products Products
	CublasLt string
}

// Meter measures the limits of the device that weights are on, as often as it is asked
// to. It holds device memory, and the weights stay open until it is closed. One
// goroutine uses it, while nothing else uses the device.
type Meter struct {
	weights    *Weights
	bytes      int64 // of each half
	side       int   // of the product of many rows
	from, to   driver.Address
	counts     driver.Address // 0, 1 and side
	parts      driver.Address // of the product, where it is sliced
	arranged   driver.Address // and where it is wide
	pinned     *driver.Host
	stream     *driver.Stream
	start, end *driver.Event
	program    *driver.Program
	empty      *driver.Graph

	handle  *blaslt.Handle // nil without cuBLASLt
	plan    *blaslt.Plan
	scratch driver.Address
}

// NewMeter makes a meter, for which the device has to have memory.
func (w *Weights) NewMeter(config MeterConfig) (_ *Meter, err error) {
	bytes := config.Bytes
	free, err := w.FreeBytes()
	if err != nil {
		return nil, fmt.Errorf("measure the device: %w", err)
	}
	if bytes == 0 {
		bytes = min(meterBytes, free/4)
	}
	bytes = max(bytes, leastMeter) / alignment * alignment
	if err := w.acquire(); err != nil {
		return nil, fmt.Errorf("measure the device: %w", err)
	}
	m := &Meter{weights: w, bytes: bytes, program: w.device.NewProgram()}
	for m.side = mostSide; productBytes(m.side) > bytes; m.side -= kernels.Tile {
	}
	err = m.open()
	if err == nil && config.Products == CublasLt {
		err = m.openCublasLt(config.CublasLt)
	}
	if err != nil {
		return nil, fmt.Errorf("measure the device: %w", errors.Join(err, m.Close()))
	}
	return m, nil
}

// productBytes is a square product's: weights and rows in bf16, results in float32.
func productBytes(side int) int64 { return 8 * int64(side) * int64(side) }

func (m *Meter) open() (err error) {
	device := m.weights.device
	parts := (kernels.PartsBytes(kernels.Store, m.side, m.side) + alignment - 1) / alignment * alignment
	bytes := 2*m.bytes + alignment + parts + kernels.ArrangedBytes(kernels.BF16, m.side, m.side)
	if err := m.weights.checkFree(bytes, "measuring its memory"); err != nil {
		return err
	}
	if m.from, err = device.Allocate(bytes); err != nil {
		return err
	}
	m.to, m.counts = m.from+driver.Address(m.bytes), m.from+driver.Address(2*m.bytes)
	m.parts = m.counts + alignment
	m.arranged = m.parts + driver.Address(parts)
	if m.pinned, err = device.AllocateHost(int(min(pinnedBytes, m.bytes))); err != nil {
		return err
	}
	if m.stream, err = device.NewStream(driver.High); err != nil {
		return err
	}
	if m.start, err = device.NewTimer(); err != nil {
		return err
	}
	if m.end, err = device.NewTimer(); err != nil {
		return err
	}
	for i, count := range []int{0, 1, m.side} {
		binary.LittleEndian.PutUint32(m.pinned.Bytes()[4*i:], uint32(count))
	}
	m.program.CopyIn(m.counts, m.pinned, 0, 12)
	// What is read are weights, since other bytes may be read at another speed: the bytes
	// count, not the numbers that they are in another type.
	for at := int64(0); at < m.bytes; {
		n := min(m.bytes-at, m.weights.Bytes())
		m.program.Copy(m.from+driver.Address(at), m.weights.memory, int(n))
		at += n
	}
	m.program.Fill(m.to, 0, m.bytes)
	if err := m.stream.Run(m.program); err != nil {
		return err
	}
	m.program.Reset()
	for range emptyKernels {
		m.weights.kernels.Gather(m.program, 1, kernels.GatherArgs{Count: m.counts, Index: m.counts, From: m.from, To: m.to, RowBytes: 16})
	}
	m.empty, err = m.stream.Capture(m.program)
	return err
}

// openCublasLt prepares cuBLASLt's product of many rows.
func (m *Meter) openCublasLt(path string) error {
	library, err := blaslt.Open(path)
	if err != nil {
		return err
	}
	if m.handle, err = library.NewHandle(m.weights.device); err != nil {
		return err
	}
	if m.scratch, err = m.weights.device.Allocate(fastWorkspace); err != nil {
		return err
	}
	side := m.side
	m.plan, err = m.handle.Plan(blaslt.Shape{Rows: side, Outputs: side, K: side, LdA: side, LdW: side, LdOut: side}, fastWorkspace)
	return err
}

// Measure measures each limit once.
func (m *Meter) Measure(ctx context.Context) (l Limits, err error) {
	bytes, host, side := float64(m.bytes), len(m.pinned.Bytes()), m.side
	matrix := float64(m.kind().Bytes()) * float64(m.readK()) * float64(m.readOutputs())
	var empty float64
	type part struct {
		what  string
		to    *float64
		units float64 // of one time
		do    func()
	}
	flops := 2 * float64(side) * float64(side) * float64(side)
	parts := []part{
		{"copying", &l.CopyBytes, 2 * bytes, func() { m.program.Copy(m.to, m.from, int(m.bytes)) }},
		{"reading", &l.ReadBytes, matrix, m.read},
		{"multiplying", &l.ProductFLOPs, flops, m.multiply},
		{"copying to the host", &l.DeviceToHostBytes, float64(host), func() { m.program.CopyOut(m.pinned, 0, m.from, host) }},
		{"copying from the host", &l.HostToDeviceBytes, float64(host), func() { m.program.CopyIn(m.to, m.pinned, 0, host) }},
		{"launching kernels", &empty, emptyKernels, func() { m.program.Graph(m.empty) }},
	}
	if m.plan != nil {
		parts = append(parts, part{"multiplying by cuBLASLt", &l.CublasLtFLOPs, flops, func() {
			m.plan.Multiply(m.program, m.from, m.weightsOf(m.side), m.to, m.scratch)
		}})
	}
	for _, part := range parts {
		if err := ctx.Err(); err != nil {
			return Limits{}, fmt.Errorf("measure the device: %w", err)
		}
		if *part.to, err = m.rate(part.units, part.do); err != nil {
			return Limits{}, fmt.Errorf("measure the device: %s: %w", part.what, err)
		}
	}
	l.GraphKernel = time.Duration(float64(time.Second) / empty)
	return l, nil
}

// rate does something once, then several times with a clock, and gives units a second.
func (m *Meter) rate(units float64, do func()) (float64, error) {
	m.program.Reset()
	do()
	m.program.Record(m.start)
	for range timedTimes {
		do()
	}
	m.program.Record(m.end)
	if err := m.stream.Run(m.program); err != nil {
		return 0, err
	}
	took, err := m.end.Elapsed(m.start)
	if err != nil {
		return 0, err
	}
	if took <= 0 {
		return 0, errors.New("the device's clock measured no time: measure more bytes")
	}
	return timedTimes * units / took.Seconds(), nil
}

// read appends a product of one row with a matrix that is as large as half the memory.
func (m *Meter) read() {
	k := m.readK()
	m.weights.kernels.Product(m.program, m.kind(), kernels.Store, 1, kernels.ProductArgs{
		Count: m.counts + 4, A: m.from, W: m.from, Scales: m.scales(), Out: m.to, Parts: m.parts,
		LdA: int64(k), LdW: int64(k), LdOut: m.bytes / 4, K: int32(k), Outputs: int32(m.readOutputs()),
	})
}

// kind is the type of weights that is measured.
func (m *Meter) kind() kernels.Weights { return m.weights.kind.layers() }

// scales are those of 8-bit weights: what is there, since nobody looks at the results.
func (m *Meter) scales() driver.Address {
	if m.kind() == kernels.BF16 {
		return 0
	}
	return m.from
}

// readK and readOutputs are the shape of its matrix, whose rows fill whole tiles.
func (m *Meter) readK() int { return min(m.side, 4096) }

func (m *Meter) readOutputs() int {
	return int(m.bytes/int64(m.kind().Bytes()*m.readK())) / kernels.Tile * kernels.Tile
}

// multiply appends a product of many rows.
func (m *Meter) multiply() {
	side := int64(m.side)
	m.weights.kernels.Product(m.program, m.kind(), kernels.Store, m.side, kernels.ProductArgs{
		Count: m.counts + 8, A: m.from, W: m.weightsOf(m.side), Scales: m.scales(), Out: m.to, Parts: m.parts, Arranged: m.arranged,
		LdA: side, LdW: side, LdOut: side, K: int32(side), Outputs: int32(side),
	})
}

// weightsOf is where the weights of a square product are, behind its rows.
func (m *Meter) weightsOf(side int) driver.Address {
	return m.from + driver.Address(2*side*side)
}

// Close frees the memory and lets go of the weights. It is called once.
func (m *Meter) Close() error {
	errs := []error{
		closeMade(m.plan), closeMade(m.handle), closeMade(m.empty),
		closeMade(m.stream), closeMade(m.start), closeMade(m.end),
	}
	if m.pinned != nil {
		errs = append(errs, m.pinned.Free())
	}
	m.program.Free()
	errs = append(errs, m.weights.device.Free(m.scratch), m.weights.device.Free(m.from))
	m.weights.release()
	return closing(errs)
}
