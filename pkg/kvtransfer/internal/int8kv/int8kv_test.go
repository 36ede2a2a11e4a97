package int8kv_test

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/internal/int8kv"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/wire"
)

func layout(heads, headSize, blockTokens int) kvcache.Layout {
	return kvcache.Layout{
		Layers: 1, KVHeads: heads, HeadSize: headSize, BlockTokens: blockTokens,
		ElementType: "bf16", Order: "k-d2t2/v-t2d2/1", SliceBytes: 2 * heads * headSize * blockTokens * 2,
	}
}

func newCoding(t testing.TB, l kvcache.Layout) wire.Coding {
	t.Helper()
	c, err := int8kv.New(l)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// encode returns the encoded bytes and checks that all were written.
func encode(c wire.Coding, src []byte) []byte {
	dst := bytes.Repeat([]byte{0xa5}, c.EncodedBytes())
	c.Encode(dst, src)
	return dst
}

func decode(t testing.TB, l kvcache.Layout, c wire.Coding, src []byte) []byte {
	t.Helper()
	dst := bytes.Repeat([]byte{0xa5}, l.SliceBytes)
	if err := c.Decode(dst, src); err != nil {
		t.Fatal(err)
	}
	return dst
}

func slice(elements ...uint16) []byte {
	var b []byte
	for _, e := range elements {
		b = binary.LittleEndian.AppendUint16(b, e)
	}
	return b
}

// TestBytes pins the bytes that any other implementation must produce.
func TestBytes(t *testing.T) {
	const (
		one, two, half, third = 0x3f80, 0x4000, 0x3f00, 0x3eab
		minus                 = 0x8000
		inf, nan, tiny        = 0x7f80, 0x7fc1, 0x0001
	)
	l := layout(1, 2, 2)
	c := newCoding(t, l)
	for _, test := range []struct {
		name    string
		src     []uint16
		scales  [2]uint32
		codes   [8]int8
		decoded []uint16
	}{
		{
			"keys and values have scales of their own",
			[]uint16{one, half, third, minus | one, two, one, 0, minus | half},
			[2]uint32{0x3c010204, 0x3c810204}, [8]int8{127, 64, 42, -127, 127, 64, 0, -32},
			[]uint16{one, 0x3f01, 0x3ea9, minus | one, two, 0x3f81, 0, minus | 0x3f01},
		},
		{
			"nothing", []uint16{0, minus, tiny, 0x0080, 0, 0, 0, 0},
			[2]uint32{}, [8]int8{}, make([]uint16, 8),
		},
		{
			"what is not finite", []uint16{inf, minus | inf, nan, one, inf, nan, 0, 0},
			[2]uint32{0x3c010204, 0}, [8]int8{127, -127, 0, 127},
			[]uint16{one, minus | one, 0, one, 0, 0, 0, 0},
		},
		{
			"the largest there are", []uint16{0x7f7f, 0xff7f, 0, 0, one, one, one, one},
			[2]uint32{0x7c008102, 0x3c010204}, [8]int8{127, -127, 0, 0, 127, 127, 127, 127},
			[]uint16{0x7f7f, 0xff7f, 0, 0, one, one, one, one},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			var want []byte
			for _, s := range test.scales {
				want = binary.LittleEndian.AppendUint32(want, s)
			}
			for _, code := range test.codes {
				want = append(want, byte(code))
			}
			got := encode(c, slice(test.src...))
			if !bytes.Equal(got, want) {
				t.Errorf("encoded %x, want %x", got, want)
			}
			if got := decode(t, l, c, want); !bytes.Equal(got, slice(test.decoded...)) {
				t.Errorf("decoded %x, want %x", got, slice(test.decoded...))
			}
		})
	}
}

// drawSlice draws elements of one kind per head: KV-like, arbitrary bits, or zeros.
func drawSlice(t *rapid.T, l kvcache.Layout) []byte {
	random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
	var b []byte
	for range 2 * l.KVHeads {
		kind := rapid.IntRange(0, 3).Draw(t, "kind")
		exponent := rapid.IntRange(-133, 127).Draw(t, "exponent")
		for range l.HeadSize * l.BlockTokens {
			element := uint16(0)
			switch kind {
			case 0:
				element = uint16(math.Float32bits(float32(random.NormFloat64())) >> 16)
			case 1:
				element = uint16(random.Uint32())
			case 2:
				x := float32(math.Ldexp(random.Float64()*2-1, exponent))
				element = uint16(math.Float32bits(x) >> 16)
			}
			b = binary.LittleEndian.AppendUint16(b, element)
		}
	}
	return b
}

func drawLayout(t *rapid.T) kvcache.Layout {
	return layout(rapid.IntRange(1, 3).Draw(t, "heads"), 2*rapid.IntRange(1, 9).Draw(t, "half head"), 2*rapid.IntRange(1, 5).Draw(t, "pairs of tokens"))
}

func TestAgainstTheDefinition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := drawLayout(t)
		c, err := int8kv.New(l)
		if err != nil {
			t.Fatal(err)
		}
		src := drawSlice(t, l)
		encoded := encode(c, src)
		if want := referenceEncode(l, src); !bytes.Equal(encoded, want) {
			t.Fatalf("encoded %x, want %x", encoded, want)
		}
		decoded := make([]byte, l.SliceBytes)
		if err := c.Decode(decoded, encoded); err != nil {
			t.Fatal(err)
		}
		if want := referenceDecode(l, encoded); !bytes.Equal(decoded, want) {
			t.Fatalf("decoded %x, want %x", decoded, want)
		}
		if again := encode(c, decoded); !bytes.Equal(again, encoded) {
			t.Fatalf("encoded again %x, first %x", again, encoded)
		}
		checkError(t, l, src, decoded)
	})
}

// checkError checks that each finite element is within half a scale, plus the rounding to
// bf16.
func checkError(t *rapid.T, l kvcache.Layout, src, decoded []byte) {
	elements := l.HeadSize * l.BlockTokens
	at := func(b []byte, i int) float64 { return float64(widen(binary.LittleEndian.Uint16(b[2*i:]))) }
	for h := range 2 * l.KVHeads {
		largest := 0.0
		for i := h * elements; i < (h+1)*elements; i++ {
			if x := math.Abs(at(src, i)); finite(float32(x)) {
				largest = max(largest, x)
			}
		}
		for i := h * elements; i < (h+1)*elements; i++ {
			x, y := at(src, i), at(decoded, i)
			if bound := largest/127/2*(1+0x1p-15) + math.Abs(y)*0x1p-8; finite(float32(x)) && math.Abs(y-x) > max(bound, 0x1p-100) {
				t.Fatalf("element %d is %g and comes as %g: the largest of its head is %g", i, x, y, largest)
			}
		}
	}
}

func TestWrongScales(t *testing.T) {
	l := layout(2, 4, 4)
	c := newCoding(t, l)
	good := encode(c, make([]byte, l.SliceBytes))
	for _, test := range []struct {
		name  string
		scale uint32
		ok    bool
	}{
		{"zero", 0, true},
		{"one", math.Float32bits(1), true},
		{"the least", math.Float32bits(0x1p-126), true},
		{"the largest", 0x7c008102, true},
		{"minus zero", 1 << 31, false},
		{"negative", math.Float32bits(-1), false},
		{"NaN", 0x7fc00000, false},
		{"negative NaN", 0xffc00000, false},
		{"infinite", 0x7f800000, false},
		{"denormal", 0x007fffff, false},
		{"too large", 0x7c008103, false},
	} {
		for head := range 4 {
			src := slices.Clone(good)
			binary.LittleEndian.PutUint32(src[4*head:], test.scale)
			err := c.Decode(make([]byte, l.SliceBytes), src)
			if (err == nil) != test.ok {
				t.Errorf("%s in head %d: %v", test.name, head, err)
			}
		}
	}
}

func TestLayouts(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*kvcache.Layout)
		says   string // empty: accepted
	}{
		{"bf16", func(*kvcache.Layout) {}, ""},
		{"other elements", func(l *kvcache.Layout) { l.ElementType = "fp8" }, `"fp8"`},
		{"another order", func(l *kvcache.Layout) { l.Order = "records/1" }, `"records/1"`},
		{"a slice of another size", func(l *kvcache.Layout) { l.SliceBytes++ }, "do not make a slice"},
		{"no heads", func(l *kvcache.Layout) { l.KVHeads, l.SliceBytes = 0, 0 }, "do not make a slice"},
		{"an odd number of elements", func(l *kvcache.Layout) { l.HeadSize, l.BlockTokens, l.SliceBytes = 3, 2, 48 }, "do not make a slice"},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := layout(2, 8, 4)
			test.change(&l)
			c, err := int8kv.New(l)
			switch {
			case test.says == "" && (err != nil || c.EncodedBytes() != 16+l.SliceBytes/2):
				t.Errorf("%v, %v", c, err)
			case test.says != "" && (err == nil || !strings.Contains(err.Error(), test.says)):
				t.Errorf("error %v does not say %s", err, test.says)
			}
		})
	}
}

func FuzzDecode(f *testing.F) {
	l := layout(1, 4, 4)
	c := newCoding(f, l)
	f.Add(make([]byte, c.EncodedBytes()))
	f.Add(bytes.Repeat([]byte{0x80, 0, 0x80, 0x3f}, c.EncodedBytes()/4))
	f.Add(bytes.Repeat([]byte{0xff}, c.EncodedBytes()))
	f.Fuzz(func(t *testing.T, src []byte) {
		src = append(src, make([]byte, c.EncodedBytes())...)[:c.EncodedBytes()]
		dst := make([]byte, l.SliceBytes)
		if c.Decode(dst, src) != nil {
			return
		}
		if want := referenceDecode(l, src); !bytes.Equal(dst, want) {
			t.Fatalf("decoded %x, want %x", dst, want)
		}
		for ; len(dst) > 0; dst = dst[2:] {
			if x := widen(binary.LittleEndian.Uint16(dst)); !finite(x) {
				t.Fatalf("decoded %g", x)
			}
		}
	})
}

func FuzzEncode(f *testing.F) {
	l := layout(1, 4, 4)
	c := newCoding(f, l)
	f.Add(slice(0x3f80, 0xbf80, 0x7f80, 0xff80, 0x7fc0, 1, 0x8000, 0x0d80))
	f.Fuzz(func(t *testing.T, src []byte) {
		src = append(src, make([]byte, l.SliceBytes)...)[:l.SliceBytes]
		encoded := encode(c, src)
		if want := referenceEncode(l, src); !bytes.Equal(encoded, want) {
			t.Fatalf("encoded %x, want %x", encoded, want)
		}
		if again := encode(c, decode(t, l, c, encoded)); !bytes.Equal(again, encoded) {
			t.Fatalf("encoded again %x, first %x", again, encoded)
		}
	})
}

func benchmarkSlice(b *testing.B) (kvcache.Layout, wire.Coding, []byte) {
	l := layout(4, 64, 32)
	random := rand.New(rand.NewPCG(1, 2))
	var src []byte
	for range l.SliceBytes / 2 {
		src = binary.LittleEndian.AppendUint16(src, uint16(math.Float32bits(float32(random.NormFloat64()))>>16))
	}
	b.SetBytes(int64(l.SliceBytes))
	return l, newCoding(b, l), src
}

// Throughput is in bytes of pages.
func BenchmarkEncode(b *testing.B) {
	_, c, src := benchmarkSlice(b)
	dst := make([]byte, c.EncodedBytes())
	for b.Loop() {
		c.Encode(dst, src)
	}
}

func BenchmarkDecode(b *testing.B) {
	l, c, src := benchmarkSlice(b)
	encoded, dst := encode(c, src), make([]byte, l.SliceBytes)
	for b.Loop() {
		if err := c.Decode(dst, encoded); err != nil {
			b.Fatal(err)
		}
	}
}
