package sampler_test

import (
	"errors"
	"math"
	"testing"

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

func TestSampleFollowsTheDistribution(t *testing.T) {
	logits := []float32{0, 1, 2, 3, float32(math.Inf(-1))}
	var sum float64
	for _, l := range logits {
		sum += math.Exp(float64(l))
	}
	s, counts := sampler.New(), make([]int, len(logits))
	const draws = 200_000
	for i := range draws {
		counts[s.Sample(logits, sampler.Params{Temperature: 1, Seed: 42}, uint64(i), sampler.History{})]++
	}
	for i, l := range logits {
		want := math.Exp(float64(l)) / sum
		got := float64(counts[i]) / draws
		if tolerance := 5*math.Sqrt(want*(1-want)/draws) + 1e-12; math.Abs(got-want) > tolerance {
			t.Errorf("token %d drawn with frequency %.5f, probability is %.5f", i, got, want)
		}
	}
}

// TestSampleOddLogits: logits that are not finite give no token, wherever they are and
// whatever the parameters make of them; minus infinity is a token that is never drawn.
func TestSampleOddLogits(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	long := func(at int, l float32) []float32 {
		logits := make([]float32, 43)
		logits[1], logits[at] = 7, l
		return logits
	}
	for name, c := range map[string]struct {
		logits []float32
		want   int32
	}{
		"ties go to the smaller id":         {[]float32{-9, 3, 3, -9}, 1},
		"one finite":                        {[]float32{-inf, -1, -inf}, 1},
		"nan at the end":                    {[]float32{0, 1, nan}, sampler.None},
		"nan at the beginning":              {[]float32{nan, 1, 0}, sampler.None},
		"all nan":                           {[]float32{nan, nan}, sampler.None},
		"nan and minus infinity":            {[]float32{-inf, nan}, sampler.None},
		"all minus infinity":                {[]float32{-inf, -inf}, sampler.None},
		"plus infinity":                     {[]float32{0, inf, 0}, sampler.None},
		"nan among many, no larger one":     {long(20, nan), sampler.None},
		"nan among many, the last of eight": {long(24, nan), sampler.None},
		"nan behind all eights":             {long(42, nan), sampler.None},
		"infinity among many":               {long(17, inf), sampler.None},
		"many":                              {long(17, -inf), 1},
	} {
		for kind, p := range map[string]sampler.Params{
			"greedy": {}, "hot": {Temperature: 0.1, TopP: 0.5, TopK: 2}, "penalties": {RepetitionPenalty: 1.1},
			"forbids what is odd": {LogitBias: []sampler.TokenBias{{Token: 0, Bias: -100}, {Token: 2, Bias: -100}, {Token: 17, Bias: -100}, {Token: 20, Bias: -100}}},
		} {
			if kind == "hot" && name == "ties go to the smaller id" {
				continue
			}
			if got := sampler.New().Sample(c.logits, p, 7, sampler.History{}); got != c.want {
				t.Errorf("%s: %s draw is %d, want %d", name, kind, got, c.want)
			}
		}
	}
	// What the request itself asks for is no fault of the model's.
	forbidden := sampler.Params{LogitBias: bias(-100, -100)}
	if got := sampler.New().Sample([]float32{1, 2}, forbidden, 0, sampler.History{}); got != 0 {
		t.Errorf("of two forbidden tokens %d is drawn, want 0", got)
	}
}

func TestSampleAllocatesNothing(t *testing.T) {
	logits := make([]float32, 4096)
	for i := range logits {
		logits[i] = float32(i%97) / 10
	}
	h := sampler.History{Prompt: []int32{5, 6, 7}, Generated: []int32{9, 9, 5}}
	s := sampler.New()
	for _, p := range []sampler.Params{
		{}, {Temperature: 0.8}, {Temperature: 0.8, TopP: 0.95}, {Temperature: 0.8, TopK: 40}, {Temperature: 0.8, TopK: 40, TopP: 0.9},
		{RepetitionPenalty: 1.2, PresencePenalty: 1, LogitBias: []sampler.TokenBias{{Token: 3, Bias: 2}}},
		{Temperature: 0.8, TopP: 0.9, FrequencyPenalty: 1},
	} {
		s.Sample(logits, p, 0, h)
		if n := testing.AllocsPerRun(20, func() { s.Sample(logits, p, 1, h) }); n != 0 {
			t.Errorf("%+v: %v allocations a draw", p, n)
		}
	}
}

// bias gives each of the first tokens a bias.
func bias(values ...float32) []sampler.TokenBias {
	out := make([]sampler.TokenBias, len(values))
	for i, v := range values {
		out[i] = sampler.TokenBias{Token: int32(i), Bias: v}
	}
	return out
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
		{sampler.Params{TypicalP: 1.1}, "typical_p"},
		{sampler.Params{MinTokens: -1}, "min_tokens"},
		{sampler.Params{RepetitionPenalty: 1.1, PresencePenalty: -2, FrequencyPenalty: 2, LogitBias: bias(-100, 100)}, ""},
		{sampler.Params{RepetitionPenalty: -1}, "repetition_penalty"},
		{sampler.Params{RepetitionPenalty: 101}, "repetition_penalty"},
		{sampler.Params{PresencePenalty: 2.1}, "presence_penalty"},
		{sampler.Params{FrequencyPenalty: nan}, "frequency_penalty"},
		{sampler.Params{LogitBias: bias(101)}, "logit_bias"},
		{sampler.Params{LogitBias: bias(nan)}, "logit_bias"},
		{sampler.Params{LogitBias: make([]sampler.TokenBias, 2)}, "logit_bias"},
		{sampler.Params{LogitBias: []sampler.TokenBias{{Token: -1}}}, "logit_bias"},
		{sampler.Params{LogitBias: bias(make([]float32, sampler.MaxLogitBiases)...)}, ""},
		{sampler.Params{LogitBias: bias(make([]float32, sampler.MaxLogitBiases+1)...)}, "logit_bias"},
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
