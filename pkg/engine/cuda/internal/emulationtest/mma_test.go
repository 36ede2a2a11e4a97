package emulationtest

import (
	_ "embed"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"
)

// h200 is what mma.sync.m16n8k16 gave on an H200 for four kinds of inputs: small integers;
// normal numbers with an accumulator of 0; with one eight times as large; numbers of very
// different exponents. Each kind has two products of 64 rows: both A, [row][k]; both B,
// [column][k]; both accumulators, [row][column]; and both results. Values are little-endian
// bf16, and float32 of accumulators and results. wgmma.m64n8k16 gave the same bits.
//
//go:embed testdata/h200.bin
var h200 []byte

// take reads values off the front of data.
func take(t *testing.T, data *[]byte, values any) {
	t.Helper()
	n, err := binary.Decode(*data, binary.LittleEndian, values)
	if err != nil {
		t.Fatal(err)
	}
	*data = (*data)[n:]
}

func TestSumsOfAnH200(t *testing.T) {
	c := NewControl(t, Library(t))
	data := h200
	for _, kind := range []string{"integers", "normal", "large accumulator", "exponents"} {
		t.Run(kind, func(t *testing.T) {
			var a [2][4][16][16]uint16
			var b [2][8][16]uint16
			var sums, want [2][4][16][8]float32
			for _, values := range []any{&a, &b, &sums, &want} {
				take(t, &data, values)
			}
			for n := range a {
				for tile := range a[n] {
					compare(t, c, &sums[n][tile], &want[n][tile], &a[n][tile], transposed(&b[n]))
				}
			}
		})
	}
	if len(data) != 0 {
		t.Errorf("%d bytes left", len(data))
	}
}

func transposed(columns *[8][16]uint16) *[16][8]uint16 {
	var b [16][8]uint16
	for column := range columns {
		for k, x := range columns[column] {
			b[k][column] = x
		}
	}
	return &b
}

// compare holds both ways to compute a tile against what they should give, for equal bits.
func compare(t *testing.T, c *Control, sums, want *[16][8]float32, a *[16][16]uint16, b *[16][8]uint16) {
	t.Helper()
	got := *sums
	c.Multiply(&got, a, b)
	for row := range got {
		for column, x := range got[row] {
			var of [16]uint16
			for k := range of {
				of[k] = b[k][column]
			}
			rule, want := math.Float32bits(c.Dot(&a[row], &of, sums[row][column])), math.Float32bits(want[row][column])
			if tile := math.Float32bits(x); tile != want || rule != want {
				t.Fatalf("%x times %x on %x is %x in a tile and %x by itself, want %x", a[row], of, math.Float32bits(sums[row][column]), tile, rule, want)
			}
		}
	}
}

// TestTilesFollowTheRule: the fast way to compute a tile gives the rule's bits, whatever the
// exponents, with denormals, infinities and NaNs.
func TestTilesFollowTheRule(t *testing.T) {
	c := NewControl(t, Library(t))
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		number := hardNumbers(r)
		var a [16][16]uint16
		var b [16][8]uint16
		var sums, want [16][8]float32
		for i := range a {
			for k := range a[i] {
				a[i][k] = uint16(number() >> 16)
			}
			for j := range b[i] {
				b[i][j] = uint16(number() >> 16)
				sums[i][j] = math.Float32frombits(number())
			}
		}
		for row := range want {
			for column := range want[row] {
				var of [16]uint16
				for k := range of {
					of[k] = b[k][column]
				}
				want[row][column] = c.Dot(&a[row], &of, sums[row][column])
			}
		}
		compare(t, c, &sums, &want, &a, &b)
	}
}

// hardNumbers makes bits of numbers around an exponent that it chooses, some with few or all
// bits set, and sometimes what is not finite.
func hardNumbers(r *rand.Rand) func() uint32 {
	middle, width := r.IntN(256), 1+r.IntN(40)
	if r.IntN(2) == 0 { // products as large as numbers
		middle = 110 + r.IntN(34)
	}
	largest := 254
	if r.IntN(8) == 0 {
		largest = 255
	}
	return func() uint32 {
		exponent := min(max(middle+r.IntN(width)-width/2, 0), largest)
		fraction := r.Uint32()
		switch r.IntN(8) {
		case 0:
			fraction = 0
		case 1:
			fraction = math.MaxUint32
		case 2:
			fraction, exponent = 0, 0
		}
		return r.Uint32()<<31 | uint32(exponent)<<23 | fraction&0x7fffff
	}
}

// TestRuleOfTheSum: the parts of the rule, one by one.
func TestRuleOfTheSum(t *testing.T) {
	c := NewControl(t, Library(t))
	inf := math.Inf(1)
	for name, s := range map[string]struct {
		pairs [][2]float64
		sum   float64
		want  float64
	}{
		"nothing":                    {nil, 0, 0},
		"zeros are positive":         {[][2]float64{{-1, 0}}, math.Copysign(0, -1), 0},
		"a bit 25 places down":       {[][2]float64{{1, 1}, {-1, 1}, {0x1p-25, 1}}, 0, 0x1p-25},
		"a bit further down":         {[][2]float64{{1, 1}, {-1, 1}, {0x1p-26, 1}}, 0, 0},
		"cut toward zero":            {[][2]float64{{1, 1}, {-1, 1}, {-0x1.8p-25, 1}}, 0, -0x1p-25},
		"each by itself":             {[][2]float64{{0x1p-26, 1}, {0x1p-26, 1}}, 1, 1},
		"1.5 squared is 2.25 * 2^0":  {[][2]float64{{1.5, 1.5}, {-1.5, 1.5}, {0x1p-25, 1}}, 0, 0x1p-25},
		"the accumulator's exponent": {[][2]float64{{1, 1}, {0x1p-24, 1}, {-4, 1}}, 4, 1},
		"the sum is cut":             {[][2]float64{{1, 0x1.8p-24}, {1, 0x1p-24}}, 1, 1 + 0x1p-23},
		"below zero too":             {[][2]float64{{-1, 0x1.8p-24}, {1, -0x1p-24}}, -1, -1 - 0x1p-23},
		"all seventeen at once":      {[][2]float64{{0x1p24, 1}, {1, 1}, {-0x1p24, 1}}, 0, 1},
		"products past float32":      {[][2]float64{{0x1p127, 2}, {-0x1p127, 2}, {0x1p110, 1}}, 0, 0x1p110},
		"a sum past float32":         {[][2]float64{{0x1p127, 2}}, 0, inf},
		"denormals":                  {[][2]float64{{0x1p-133, 1}, {0x1p-126, 0x1p-23}, {0x1p-126, 0x1.8p-24}}, 0x1p-149, 0x1p-133 + 0x1p-148},
		"infinity":                   {[][2]float64{{-inf, 1}, {0x1p127, 2}}, 1, -inf},
		"infinities":                 {[][2]float64{{-inf, 1}, {0x1p127, inf}}, 1, math.NaN()},
		"infinity times zero":        {[][2]float64{{-inf, 0}}, 1, math.NaN()},
		"an infinite accumulator":    {[][2]float64{{-0x1p127, 2}}, inf, inf},
		"infinities that differ":     {[][2]float64{{-inf, 2}}, inf, math.NaN()},
	} {
		t.Run(name, func(t *testing.T) {
			var a, b [16]uint16
			for i, pair := range s.pairs {
				a[i], b[i] = bf16(t, pair[0]), bf16(t, pair[1])
			}
			got := c.Dot(&a, &b, float32(s.sum))
			if want := float32(s.want); math.Float32bits(got) != math.Float32bits(want) && !(got != got && want != want) {
				t.Errorf("got %x, want %x", got, want)
			}
		})
	}
}

func bf16(t *testing.T, x float64) uint16 {
	t.Helper()
	bits := math.Float32bits(float32(x))
	if float64(float32(x)) != x || bits&0xffff != 0 {
		t.Fatalf("%x is no bf16", x)
	}
	return uint16(bits >> 16)
}
