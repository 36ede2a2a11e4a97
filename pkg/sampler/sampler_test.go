package sampler_test

import (
	"errors"
	"math"
	"sort"
	"testing"

	"pgregory.net/rapid"

	"github.com/tandem-serving/tandem/pkg/sampler"
)

// The known answers of the Random123 distribution for Philox4x32-10.
func TestPhiloxKnownAnswers(t *testing.T) {
	const ones = 0xffffffff
	for _, c := range []struct {
		counter [4]uint32
		key     [2]uint32
		want    [4]uint32
	}{
		{[4]uint32{}, [2]uint32{}, [4]uint32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
		{[4]uint32{ones, ones, ones, ones}, [2]uint32{ones, ones}, [4]uint32{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
		{[4]uint32{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, [2]uint32{0xa4093822, 0x299f31d0}, [4]uint32{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
	} {
		if got := sampler.Philox(c.counter, c.key); got != c.want {
			t.Errorf("Philox(%x, %x) = %x, want %x", c.counter, c.key, got, c.want)
		}
	}
}

// reference is the definition in Sample's comment, word by word: a full sort,
// the standard library's exponential, no scratch.
func reference(logits []float32, p sampler.Params, offset uint64) (int32, bool) {
	order := make([]int, len(logits))
	for i := range order {
		order[i] = i
	}
	sort.SliceStable(order, func(i, j int) bool { return logits[order[i]] > logits[order[j]] })
	if p.Temperature == 0 {
		return int32(order[0]), true
	}
	weight := make([]float64, len(logits))
	for i, l := range logits {
		weight[i] = math.Exp((float64(l) - float64(logits[order[0]])) / float64(p.Temperature))
	}
	kept := order
	if p.TopK > 0 && p.TopK < len(kept) {
		kept = kept[:p.TopK]
	}
	certain := true
	if p.TopP > 0 && p.TopP < 1 {
		var total, running float64
		for _, id := range kept {
			total += weight[id]
		}
		for n, id := range kept {
			running += weight[id]
			if math.Abs(running-float64(p.TopP)*total) < 1e-9*total {
				certain = false // within rounding of the limit
			}
			if running >= float64(p.TopP)*total {
				kept = kept[:n+1]
				break
			}
		}
	}
	ids := append([]int(nil), kept...)
	sort.Ints(ids)
	var left []int
	var sum float64
	for _, id := range ids {
		if math.Abs(weight[id]-float64(p.MinP)) < 1e-9 {
			certain = false
		}
		if weight[id] >= float64(p.MinP) {
			left = append(left, id)
			sum += weight[id]
		}
	}
	target := sampler.Uniform(p.Seed, offset) * sum
	var running float64
	for _, id := range left {
		running += weight[id]
		if math.Abs(running-target) < 1e-9*sum {
			certain = false
		}
		if running > target {
			return int32(id), certain
		}
	}
	return int32(left[len(left)-1]), certain
}

func genParams(t *rapid.T) sampler.Params {
	return sampler.Params{
		Temperature: rapid.SampledFrom([]float32{0, 0.01, 0.5, 0.8, 1, 1.5, 20}).Draw(t, "temperature"),
		TopK:        rapid.SampledFrom([]int{0, 1, 2, 3, 10, 1000}).Draw(t, "top_k"),
		TopP:        rapid.SampledFrom([]float32{0, 0.1, 0.5, 0.9, 0.999, 1}).Draw(t, "top_p"),
		MinP:        rapid.SampledFrom([]float32{0, 0, 0.05, 0.5}).Draw(t, "min_p"),
		Seed:        rapid.Uint64().Draw(t, "seed"),
	}
}

func TestSampleAgreesWithItsDefinition(t *testing.T) {
	s := sampler.New() // one for all draws: scratch must not leak from one to the next
	rapid.Check(t, func(t *rapid.T) {
		logits := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) float32 {
			return float32(rapid.IntRange(-40, 40).Draw(t, "l")) / 4 // many ties
		}), 1, 200).Draw(t, "logits")
		p, offset := genParams(t), rapid.Uint64Range(0, 1000).Draw(t, "offset")
		before := append([]float32(nil), logits...)
		got := s.Sample(logits, p, offset)
		want, certain := reference(logits, p, offset)
		if certain && got != want {
			t.Fatalf("Sample = %d, the definition gives %d", got, want)
		}
		for i := range logits {
			if logits[i] != before[i] {
				t.Fatal("Sample changed the logits")
			}
		}
	})
}

func TestSampleFollowsTheDistribution(t *testing.T) {
	logits := []float32{0, 1, 2, 3, float32(math.Inf(-1))}
	var sum float64
	for _, l := range logits {
		sum += math.Exp(float64(l))
	}
	s, counts := sampler.New(), make([]int, len(logits))
	const draws = 200_000
	for i := range draws {
		counts[s.Sample(logits, sampler.Params{Temperature: 1, Seed: 42}, uint64(i))]++
	}
	for i, l := range logits {
		want := math.Exp(float64(l)) / sum
		got := float64(counts[i]) / draws
		if tolerance := 5*math.Sqrt(want*(1-want)/draws) + 1e-12; math.Abs(got-want) > tolerance {
			t.Errorf("token %d drawn with frequency %.5f, probability is %.5f", i, got, want)
		}
	}
}

func TestSampleOddLogits(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	hot := sampler.Params{Temperature: 1, TopP: 0.9, TopK: 2}
	for name, c := range map[string]struct {
		logits []float32
		want   int32
	}{
		"ties go to the smaller id": {[]float32{1, 3, 3, 2}, 1},
		"nan is never drawn":        {[]float32{nan, -1, nan}, 1},
		"all nan":                   {[]float32{nan, nan}, 0},
		"all minus infinity":        {[]float32{-inf, -inf}, 0},
		"plus infinity":             {[]float32{0, inf, 0}, 1},
	} {
		if got := sampler.New().Sample(c.logits, sampler.Params{}, 0); got != c.want {
			t.Errorf("%s: greedy draw is %d, want %d", name, got, c.want)
		}
		if got := sampler.New().Sample(c.logits, hot, 7); name != "ties go to the smaller id" && got != c.want {
			t.Errorf("%s: hot draw is %d, want %d", name, got, c.want)
		}
	}
}

func TestSampleAllocatesNothing(t *testing.T) {
	logits := make([]float32, 4096)
	for i := range logits {
		logits[i] = float32(i%97) / 10
	}
	s := sampler.New()
	for _, p := range []sampler.Params{{}, {Temperature: 0.8}, {Temperature: 0.8, TopP: 0.95}, {Temperature: 0.8, TopK: 40}, {Temperature: 0.8, TopK: 40, TopP: 0.9}} {
		s.Sample(logits, p, 0)
		if n := testing.AllocsPerRun(20, func() { s.Sample(logits, p, 1) }); n != 0 {
			t.Errorf("%+v: %v allocations a draw", p, n)
		}
	}
}

func TestValidate(t *testing.T) {
	nan := float32(math.NaN())
	for _, c := range []struct {
		params sampler.Params
		field  string
	}{
		{sampler.Params{}, ""},
		{sampler.Params{Temperature: 2, TopK: 50, TopP: 0.9, MinP: 0.1}, ""},
		{sampler.Params{Temperature: -1}, "temperature"},
		{sampler.Params{Temperature: nan}, "temperature"},
		{sampler.Params{Temperature: 101}, "temperature"},
		{sampler.Params{TopK: -1}, "top_k"},
		{sampler.Params{TopP: 1.5}, "top_p"},
		{sampler.Params{TopP: nan}, "top_p"},
		{sampler.Params{MinP: -0.1}, "min_p"},
	} {
		err := c.params.Validate()
		field := ""
		if e, ok := errors.AsType[*sampler.FieldError](err); ok {
			field = e.Field
		}
		if field != c.field {
			t.Errorf("%+v: error %v, want field %q", c.params, err, c.field)
		}
	}
}

func BenchmarkSample(b *testing.B) {
	logits := make([]float32, 128256)
	for i := range logits {
		logits[i] = float32(i*7919%1000) / 100
	}
	for name, p := range map[string]sampler.Params{
		"greedy":      {},
		"temperature": {Temperature: 0.8},
		"top_p":       {Temperature: 0.8, TopP: 0.95},
		"top_k":       {Temperature: 0.8, TopK: 40},
	} {
		b.Run(name, func(b *testing.B) {
			s := sampler.New()
			for i := range b.N {
				s.Sample(logits, p, uint64(i))
			}
		})
	}
}
