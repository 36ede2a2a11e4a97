package kernels_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/driver"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/emulationtest"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/kernels"
)

// bench is a device with the kernels on it: the one that the environment names, or the
// emulated one.
type bench struct {
	t       *testing.T
	device  *driver.Device
	set     *kernels.Set
	stream  *driver.Stream
	program *driver.Program
	random  *rand.Rand
}

var allWeights = []kernels.Weights{kernels.BF16, kernels.Int8, kernels.FP8}

func newBench(t *testing.T) *bench {
	t.Helper()
	path, device := emulationtest.GPU(t)
	if path == "" {
		path = emulationtest.Library(t)
	}
	d, err := driver.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, random: rand.New(rand.NewPCG(1, 2))}
	if b.device, err = d.NewDevice(device); err != nil {
		t.Fatal(err)
	}
	b.atEnd(b.device.Close)
	if b.set, err = kernels.Load(b.device, allWeights...); err != nil {
		t.Fatal(err)
	}
	b.atEnd(b.set.Unload)
	if b.stream, err = b.device.NewStream(driver.High); err != nil {
		t.Fatal(err)
	}
	b.atEnd(b.stream.Close)
	b.program = b.device.NewProgram()
	b.atEnd(func() error { b.program.Free(); return nil })
	return b
}

// attention is the kernels of attention for heads of a size.
func (b *bench) attention(kv kernels.KV, size int) *kernels.Attention {
	b.t.Helper()
	a, err := kernels.LoadAttention(b.device, kv, size)
	if err != nil {
		b.t.Fatal(err)
	}
	b.atEnd(a.Unload)
	return a
}

func (b *bench) atEnd(f func() error) {
	b.t.Cleanup(func() {
		if err := f(); err != nil {
			b.t.Error(err)
		}
	})
}

// run runs what record appends.
func (b *bench) run(record func(p *driver.Program)) {
	b.t.Helper()
	b.program.Reset()
	record(b.program)
	if err := b.stream.Run(b.program); err != nil {
		b.t.Fatal(err)
	}
}

func bytesOf[T any](values []T) []byte {
	var one T
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(values))), len(values)*int(unsafe.Sizeof(one)))
}

// put copies values into device memory of their own.
func put[T any](b *bench, values []T) kernels.Address {
	b.t.Helper()
	bytes := bytesOf(values)
	at, err := b.device.Allocate(int64(len(bytes)))
	if err != nil {
		b.t.Fatal(err)
	}
	b.atEnd(func() error { return b.device.Free(at) })
	host := b.host(len(bytes))
	copy(host.Bytes(), bytes)
	b.run(func(p *driver.Program) { p.CopyIn(at, host, 0, len(bytes)) })
	return at
}

// get copies n values back.
func get[T any](b *bench, at kernels.Address, n int) []T {
	b.t.Helper()
	values := make([]T, n)
	bytes := bytesOf(values)
	host := b.host(len(bytes))
	b.run(func(p *driver.Program) { p.CopyOut(host, 0, at, len(bytes)) })
	copy(bytes, host.Bytes())
	return values
}

func (b *bench) host(bytes int) *driver.Host {
	b.t.Helper()
	host, err := b.device.AllocateHost(bytes)
	if err != nil {
		b.t.Fatal(err)
	}
	b.atEnd(host.Free)
	return host
}

// between is a random number of both bounds and what is between.
func (b *bench) between(least, most int) int { return least + b.random.IntN(most-least+1) }

func (b *bench) floats(n int) []float32 {
	values := make([]float32, n)
	for i := range values {
		values[i] = float32(2*b.random.Float64() - 1)
	}
	return values
}

// matrix is random bf16 in rows of ld, of which the first n are used and the rest zero.
func (b *bench) matrix(rows, n, ld int) []uint16 {
	values := make([]uint16, rows*ld)
	for i := range values {
		if i%ld < n {
			values[i] = narrow(float32(2*b.random.Float64() - 1))
		}
	}
	return values
}

func narrow(x float32) uint16 {
	bits := math.Float32bits(x)
	return uint16((bits + 0x7fff + bits>>16&1) >> 16)
}

func wide(h uint16) float64 { return float64(math.Float32frombits(uint32(h) << 16)) }

// codes is random e4m3, of which none is NaN.
func (b *bench) codes(n int) []byte {
	codes := make([]byte, n)
	for i := range codes {
		codes[i] = byte(b.random.IntN(0x7f) | b.random.IntN(2)<<7)
	}
	return codes
}

// fp8 is what a code of e4m3 stands for.
func fp8(code byte) float64 {
	magnitude := math.Ldexp(float64(code&7), -9)
	if exponent := int(code >> 3 & 15); exponent > 0 {
		magnitude = math.Ldexp(float64(8+code&7), exponent-10)
	}
	if code >= 0x80 {
		return -magnitude
	}
	return magnitude
}

// place is where a dimension's code is among those of its token.
func place(dimension int) int { return dimension&^3 + []int{0, 2, 1, 3}[dimension&3] }

func padded(n, to int) int { return (n + to - 1) / to * to }

// near fails unless got is within limit of want.
func near(t *testing.T, what string, got, want, limit float64) {
	t.Helper()
	if !(math.Abs(got-want) <= limit) {
		t.Fatalf("%s: got %v, want %v within %v", what, got, want, limit)
	}
}
